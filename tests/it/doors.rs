//! HTTP as a handler sees it, through both doors: `http.send` of the world, and `wasi:http` with a client of its language
//! (Rust's `wstd`). What the one client behind them does is tested in `http.rs`. No database here.

use std::time::Duration;

use piecework::job::FailureClass;
use serde_json::{Value, json};

use super::support::bed::Bed;
use super::support::server::Server;

/// Rules that open a server of the test, and more lines for `[plugins.guest.http]`.
fn open(server: &Server, more: &str) -> String {
    format!(
        "[plugins.guest.http]\nallow = [{{ to = \"{}\", private = true }}]\n{more}\n",
        server.origin()
    )
}

/// The guest and its command for each door.
const DOORS: [(&str, &str); 2] = [("probe", "http"), ("client", "wasi_http")];

fn call(door: &str, url: &str) -> Value {
    json!({ "do": door, "url": url })
}

/// The body that the test's server echoes.
fn echoed(answer: &Value) -> Value {
    serde_json::from_str(answer["body"].as_str().unwrap_or_default())
        .unwrap_or_else(|error| panic!("{error}: {answer}"))
}

fn header<'a>(echo: &'a Value, name: &str) -> Option<&'a str> {
    let headers = echo["headers"].as_array()?;
    let found = headers.iter().find(|pair| {
        pair[0]
            .as_str()
            .is_some_and(|it| it.eq_ignore_ascii_case(name))
    });
    found?[1].as_str()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_doors_lead_to_an_allowed_server() {
    let server = Server::plain().await;
    for (guest, door) in DOORS {
        let bed = Bed::with(guest, &open(&server, ""));
        let mut request = call(door, &server.url("/echo?a=b"));
        request["method"] = "POST".into();
        request["headers"] = json!([["x-order", "4711"]]);
        request["body"] = "two lines\nof text".into();
        let outcome = bed.call(&request.to_string()).await;
        let result = outcome.verdict.unwrap().unwrap();
        let answer: Value = serde_json::from_str(&result).unwrap();
        assert_eq!(answer["status"], 200, "{door}: {answer}");
        let echo = echoed(&answer);
        assert_eq!(echo["method"], "POST", "{door}");
        assert_eq!(echo["path"], "/echo?a=b", "{door}");
        assert_eq!(echo["body"], "two lines\nof text", "{door}");
        assert_eq!(header(&echo, "x-order"), Some("4711"), "{door}");
        assert_eq!(
            header(&echo, "host"),
            Some(server.address.to_string().as_str()),
            "{door}"
        );
        let used = outcome.usage.http.unwrap();
        assert!(
            used.calls == 1 && used.bytes > 34 && used.time > Duration::ZERO,
            "{door}: {used:?}"
        );
    }
}

/// O-40: nothing is connected to, and whoever reads the job learns which line would allow it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o_40_a_denied_call_names_the_line_that_would_allow_it() {
    let server = Server::plain().await;
    let settings = "[plugins.guest.http]\ncalls = 100\nallow = [\"https://api.example.com\"]\n";
    for (guest, door) in DOORS {
        let bed = Bed::with(guest, settings);
        let outcome = bed
            .call(&call(door, &server.url("/echo")).to_string())
            .await;
        let result = outcome.verdict.unwrap().unwrap();
        let text = format!("{result}\n{}", outcome.output.unwrap_or_default());
        let advice = format!(
            "`{0}` is not allowed for the plugin `guest`: add \\\"{0}\\\" to `allow` under `[plugins.guest.http]` (runner.toml line 3)",
            server.origin()
        );
        assert!(
            text.contains(&advice) || text.contains(&advice.replace('\\', "")),
            "{door}: {text}"
        );
        assert!(
            result.contains("denied"),
            "the guest sees a typed error and goes on: {result}"
        );
    }
    // Allowed, but private and not opened.
    let settings = format!("[plugins.guest.http]\nallow = [\"{}\"]\n", server.origin());
    for (guest, door) in DOORS {
        let bed = Bed::with(guest, &settings);
        let outcome = bed
            .call(&call(door, &server.url("/echo")).to_string())
            .await;
        let text = format!(
            "{}\n{}",
            outcome.verdict.unwrap().unwrap(),
            outcome.output.unwrap_or_default()
        );
        assert!(
            text.contains("is a private address")
                || text.contains("is 127.0.0.1, a private address"),
            "{door}: {text}"
        );
        assert!(text.contains("private = true"), "{door}: {text}");
    }
    assert_eq!(server.accepted(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o_40_redirects_are_answers_and_the_next_hop_is_checked_like_the_first() {
    let server = Server::plain().await;
    let closed = Server::plain().await;
    for (guest, door) in DOORS {
        let bed = Bed::with(guest, &open(&server, ""));
        let url = server.url(&format!("/redirect?{}", closed.url("/echo")));
        let answer = bed.answer(&call(door, &url).to_string()).await;
        assert_eq!(answer["status"], 302, "{door}: {answer}");
        let location = answer["headers"]
            .as_array()
            .unwrap()
            .iter()
            .find(|pair| pair[0] == "location")
            .unwrap();
        let hop = location[1].as_str().unwrap();
        let refused = bed.answer(&call(door, hop).to_string()).await;
        assert!(
            refused["error"].as_str().unwrap().contains("denied"),
            "{door}: {refused}"
        );
    }
    assert_eq!(closed.accepted(), 0);
}

/// O-41: each cause has an error of its own, and the guest can still return a result.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o_41_slow_and_oversized_answers_end_and_the_guest_goes_on() {
    let server = Server::plain().await;
    let limits = "first_byte_timeout = \"300ms\"\ntimeout = \"600ms\"\nresponse = \"1MiB\"\n";
    let bed = Bed::with("probe", &open(&server, limits));
    for (path, kind) in [
        ("/silent", "timeout"),
        ("/dribble-head", "timeout"),
        ("/dribble-body", "timeout"),
        ("/endless-headers", "too-large"),
        ("/huge", "too-large"),
        ("/huge?chunked", "too-large"),
        ("/short", "protocol"),
        ("/bomb", "too-large"),
    ] {
        let answer = bed
            .answer(&call("http", &server.url(path)).to_string())
            .await;
        assert_eq!(answer["error"], kind, "{path}: {answer}");
    }
    let bed = Bed::with("client", &open(&server, limits));
    for path in ["/silent", "/dribble-body", "/huge?chunked", "/short"] {
        let answer = bed
            .answer(&call("wasi_http", &server.url(path)).to_string())
            .await;
        assert!(answer["error"].is_string(), "{path}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_counted_over_both_doors() {
    let server = Server::plain().await;
    let bed = Bed::with("probe", &open(&server, "calls = 3"));
    let mut request = call("http", &server.url("/echo"));
    request["times"] = 4.into();
    let answer = bed.answer(&request.to_string()).await;
    assert_eq!(answer["error"], "limit", "{answer}");
    assert!(
        answer["message"].as_str().unwrap().contains('3'),
        "{answer}"
    );
    assert_eq!(server.requests(), 3);
    let bed = Bed::with("client", &open(&server, "concurrent = 4"));
    let mut request = call("wasi_http", &server.url("/silent"));
    request["concurrent"] = 10.into();
    request["timeout"] = 300.into();
    let answer = bed.answer(&request.to_string()).await;
    let errors = answer["errors"].as_object().unwrap();
    assert_eq!(
        errors.values().filter_map(Value::as_u64).sum::<u64>(),
        10,
        "{answer}"
    );
    assert!(errors.len() >= 2, "limit and timeout: {answer}");
    assert_eq!(
        server.accepted(),
        5,
        "three calls shared one connection, four had their own"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_idempotency_key_is_sent_when_the_rule_asks_for_it() {
    let server = Server::plain().await;
    let settings = format!(
        "[plugins.guest.http]\nallow = [{{ to = \"{}\", private = true, idempotency_key = true }}]\n",
        server.origin()
    );
    for (guest, door) in DOORS {
        let bed = Bed::with(guest, &settings);
        let mut request = call(door, &server.url("/echo"));
        request["method"] = "POST".into();
        let key = echoed(&bed.answer(&request.to_string()).await);
        assert_eq!(
            header(&key, "idempotency-key"),
            Some("piecework-4711-0"),
            "{door}: {key}"
        );
    }
}

/// O-30: the handler works with a secret that it never holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o_30_a_secret_reaches_its_own_hosts_and_nobody_else() {
    let server = Server::plain().await;
    let other = Server::plain().await;
    let secret = "sk_live_4711/secret+value";
    let file = std::env::temp_dir().join(format!("piecework-secret-{}", std::process::id()));
    std::fs::write(&file, format!("{secret}\n")).unwrap();
    let settings = format!(
        "[secrets.stripe]\nfile = {file:?}\nhosts = [\"{0}\"]\n[plugins.guest]\nsecrets = [\"stripe\"]\n[plugins.guest.config]\ngreeting = \"hello\"\n[plugins.guest.http]\nallow = [{{ to = \"{0}\", private = true }}, {{ to = \"{1}\", private = true }}]\n",
        server.origin(),
        other.origin()
    );
    let bed = Bed::with("probe", &settings);
    std::fs::remove_file(&file).unwrap();
    let send = |url: &str, place: &str| {
        json!({ "do": "secret_http", "secret": "stripe", "url": url, "place": place, "echo": false })
            .to_string()
    };
    let echo = echoed(&bed.answer(&send(&server.url("/echo"), "header")).await);
    assert_eq!(
        header(&echo, "authorization"),
        Some(format!("Bearer {secret}").as_str())
    );
    let echo = echoed(&bed.answer(&send(&server.url("/echo"), "basic")).await);
    let basic = header(&echo, "authorization").unwrap();
    // `user:` and the secret in base64.
    assert_eq!(basic, "Basic dXNlcjpza19saXZlXzQ3MTEvc2VjcmV0K3ZhbHVl");
    let echo = echoed(&bed.answer(&send(&server.url("/echo"), "query")).await);
    assert!(
        echo["path"].as_str().unwrap().contains("sk_live_4711"),
        "{echo}"
    );
    let client = Bed::with("client", &settings_again(&settings, &file, secret));
    let request = json!({ "do": "wasi_http", "url": server.url("/echo"), "secret": "stripe" });
    let echo = echoed(&client.answer(&request.to_string()).await);
    assert_eq!(
        header(&echo, "authorization"),
        Some(format!("Bearer {secret}").as_str())
    );
    // Elsewhere, and in a body, the placeholder itself is stopped.
    for (url, place) in [
        (other.url("/echo"), "header"),
        (other.url("/echo"), "basic"),
        (other.url("/echo"), "query"),
        (server.url("/echo"), "body"),
    ] {
        let answer = bed.answer(&send(&url, place)).await;
        assert_eq!(answer["error"], "denied", "{place}: {answer}");
        let message = answer["message"].as_str().unwrap();
        assert!(message.contains("stripe") && !message.contains("4711"));
    }
    assert_eq!(other.accepted(), 0);
    // What the guest holds, prints and logs is a placeholder, another one for each attempt.
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..2 {
        let all = bed.answer(r#"{"do":"config","key":null}"#).await;
        assert_eq!(all["greeting"], "hello", "{all}");
        let placeholder = all["secrets.stripe"].as_str().unwrap().to_owned();
        assert!(!placeholder.contains("4711") && placeholder.len() > 20);
        seen.insert(placeholder);
    }
    assert_eq!(seen.len(), 2);
    assert_eq!(
        bed.answer(r#"{"do":"config","key":"nothing"}"#).await,
        json!({ "value": null })
    );
    let debug = format!("{:?}", bed.grants);
    assert!(!debug.contains("4711"), "{debug}");
}

/// The secret's file is there for a moment only: it is read once.
fn settings_again(settings: &str, file: &std::path::Path, secret: &str) -> String {
    std::fs::write(file, secret).unwrap();
    settings.to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_never_outlives_its_attempt() {
    let server = Server::plain().await;
    for (guest, door) in DOORS {
        let bed = Bed::with(
            guest,
            &open(&server, "first_byte_timeout = \"1h\"\ntimeout = \"1h\""),
        )
        .timeout(Duration::from_millis(300));
        let failure = bed
            .failure(&call(door, &server.url("/silent")).to_string())
            .await;
        assert_eq!(failure.0, FailureClass::Timeout, "{door}: {}", failure.1);
        super::support::until("the socket to be closed", || async {
            (server.open() == 0).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_is_no_way_out_but_http() {
    let server = Server::plain().await;
    let bed = Bed::with("probe", &open(&server, ""));
    let payload = json!({ "do": "sockets", "address": server.address.to_string() });
    let outcome = bed.answer(&payload.to_string()).await;
    for way in ["tcp", "listen", "udp", "lookup"] {
        let said = outcome[way].as_str().unwrap();
        assert_ne!(said, "it worked", "{outcome}");
    }
    assert_eq!(server.accepted(), 0);
}
