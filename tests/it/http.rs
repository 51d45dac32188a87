//! HTTP of handlers: where calls may go, how long they take and how large they get, against servers that misbehave. O-40 and
//! O-41 of the field cases.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Empty};
use piecework::http::{Client, Timeouts};
use piecework::policy::Policy;
use tokio::net::TcpListener;

use crate::support::caller::*;
use crate::support::server::{Door, Server};

#[tokio::test]
async fn closed_addresses_get_no_connection_in_any_spelling() {
    let net = net();
    let four = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = four.local_addr().unwrap().port();
    let six = TcpListener::bind(("::1", port)).await.unwrap();
    let mut public = rule("*");
    public.private = false;
    let session = session(&net, rules(vec![public]));
    for url in [
        "http://169.254.169.254/".to_owned(),
        "http://[::ffff:169.254.169.254]/".to_owned(),
        "http://10.0.0.1/".to_owned(),
        format!("http://127.0.0.1:{port}/"),
        format!("http://127.1:{port}/"),
        format!("http://0x7f000001:{port}/"),
        format!("http://2130706433:{port}/"),
        format!("http://0:{port}/"),
        format!("http://[::1]:{port}/"),
        format!("http://[::]:{port}/"),
        format!("http://[::ffff:127.0.0.1]:{port}/"),
        format!("http://[64:ff9b::7f00:1]:{port}/"),
        format!("http://localhost:{port}/"),
        format!("http://LOCALHOST.:{port}/"),
    ] {
        let error = get(&session, &url).await.unwrap_err();
        assert_eq!(error.kind(), "denied", "{url}: {error}");
    }
    is(
        get(&session, &format!("http://localhost:{port}/?token=1")).await,
        "denied",
        &format!(
            "a private address: write {{ to = \"http://localhost:{port}\", private = true }} in `allow` under \
             `[plugins.mail.http]` (runner.toml line 12)"
        ),
    );
    let nobody = |listener: TcpListener| async move {
        let wait = Duration::from_millis(100);
        tokio::time::timeout(wait, listener.accept()).await.is_err()
    };
    assert!(nobody(four).await && nobody(six).await);
}

#[tokio::test]
async fn a_private_rule_opens_only_its_address_and_port() {
    let (net, one, two) = (net(), Server::plain().await, Server::plain().await);
    let session = session(&net, with_limits(&[&one], |_| {}));
    assert_eq!(get(&session, &one.url("/echo")).await.unwrap().status, 200);
    is(
        get(&session, &two.url("/echo?token=1")).await,
        "denied",
        &format!(
            "`{0}` is not allowed for the plugin `mail`: add \"{0}\" to `allow` under `[plugins.mail.http]`",
            two.origin()
        ),
    );
    assert_eq!(two.accepted(), 0);
}

#[tokio::test]
async fn a_narrow_rule_counts_before_a_wide_one_and_its_advice_helps() {
    let (net, server) = (net(), Server::plain().await);
    let (mut wide, mut narrow) = (rule("*"), rule(&server.origin()));
    wide.private = false;
    let opened = session(&net, rules(vec![wide.clone(), narrow.clone()]));
    get(&opened, &server.url("/echo")).await.unwrap();
    narrow.private = false;
    for list in [vec![wide.clone(), narrow.clone()], vec![narrow, rule("*")]] {
        let closed = session(&net, rules(list));
        is(
            get(&closed, &server.url("/echo")).await,
            "denied",
            "add `private = true` to this destination in `allow` under `[plugins.mail.http]`",
        );
    }
    let closed = session(&net, rules(vec![wide]));
    is(
        get(&closed, &server.url("/echo")).await,
        "denied",
        &format!(
            "write {{ to = \"{}\", private = true }} in",
            server.origin()
        ),
    );
}

#[tokio::test]
async fn redirects_are_handed_over() {
    let (net, server, other) = (net(), Server::plain().await, Server::plain().await);
    let session = session(&net, with_limits(&[&server], |_| {}));
    for to in [
        other.url("/echo"),
        "http://169.254.169.254/".to_owned(),
        server.url("/redirect"),
    ] {
        let answer = get(&session, &server.url(&format!("/redirect?{to}"))).await;
        let answer = answer.unwrap();
        assert_eq!(answer.status, 302);
        assert!(answer.headers.contains(&("location".to_owned(), to)));
    }
    assert_eq!((server.requests(), other.accepted()), (3, 0));
}

#[tokio::test]
async fn methods_and_the_ceiling_are_held() {
    let (net, server) = (net(), Server::plain().await);
    let mut own = rule(&server.origin());
    own.methods = Some(vec!["GET".into()]);
    let mut rules = rules(vec![own, rule("http://10.0.0.1")]);
    rules.ceiling = Policy(vec![rule(&server.origin())]);
    let session = session(&net, rules);
    is(
        post(&session, &server.url("/echo"), "x").await,
        "denied",
        "only `GET`: add \"POST\" to the `methods` of this destination in `allow` under `[plugins.mail.http]`",
    );
    is(
        get(&session, "http://10.0.0.1/").await,
        "denied",
        "add \"http://10.0.0.1\" to `allow` under `[ceiling.http]` (runner.toml line 3)",
    );
    let trace = session.send("TRACE", "http://10.0.0.1/", &[], None, None);
    is(trace.await, "denied", "`TRACE` is never allowed");
    is(get(&session, "ftp://example.com/").await, "denied", "`ftp`");
    is(
        get(&session, "http://user@example.com/").await,
        "denied",
        "user",
    );
    is(get(&session, "example.com").await, "protocol", "absolute");
    assert_eq!(server.accepted(), 0);
    assert_eq!(session.usage().calls, 6);
}

#[tokio::test]
async fn a_ceiling_without_private_closes_what_the_plugin_opens() {
    let (net, server) = (net(), Server::plain().await);
    let mut rules = with_limits(&[&server], |_| {});
    rules.ceiling.0[0].private = false;
    let session = session(&net, rules);
    is(
        get(&session, &server.url("/echo")).await,
        "denied",
        "`[ceiling.http]`",
    );
    assert_eq!(server.accepted(), 0);
}

#[tokio::test]
async fn each_cause_has_its_own_kind_and_its_time() {
    let (net, server) = (net(), Server::plain().await);
    let limit = Duration::from_millis(300);
    let rules = with_limits(&[&server], |limits| limits.timeout = limit);
    let session = session(&net, rules);
    for (path, kind, part) in [
        (
            "/silent",
            "timeout",
            "within 300ms (timeout of the whole call)",
        ),
        ("/dribble-head", "timeout", "within 300ms"),
        ("/dribble-body", "timeout", "within 300ms"),
        ("/endless-headers", "too-large", "the head of the answer"),
        ("/headers?300", "too-large", "more than 256 headers"),
        ("/large-header?66000", "too-large", "larger than 64 KiB"),
        ("/huge", "too-large", "larger than 8 MiB"),
        ("/short", "protocol", "before its answer was whole"),
        ("/close-now", "protocol", "before its answer was whole"),
        ("/junk", "protocol", "talking to"),
        ("/upgrade", "protocol", "changed the protocol"),
    ] {
        let answer = soon(limit, get(&session, &server.url(path))).await;
        is(answer, kind, part);
    }
    let asked = server.accepted();
    // None of these connections was kept.
    assert_eq!(asked, 11);
    until_true("the server's sockets to close", || server.open() == 0).await;
    assert_eq!(
        get(&session, &server.url("/echo")).await.unwrap().status,
        200
    );
}

#[tokio::test]
async fn bodies_stop_at_their_cap() {
    let (net, server) = (net(), Server::plain().await);
    let session = session(&net, with_limits(&[&server], |_| {}));
    let huge = get(&session, &server.url("/huge?chunked")).await;
    is(huge, "too-large", "larger than 8 MiB (`response`)");
    is(
        get(&session, &server.url("/bomb")).await,
        "too-large",
        "8 MiB",
    );
    let full = get(&session, &server.url("/fill?8388608")).await.unwrap();
    assert_eq!(full.body.len(), 8 * 1024 * 1024);
    is(
        get(&session, &server.url("/fill?8388609")).await,
        "too-large",
        "8 MiB",
    );
    let body = "x".repeat(8 * 1024 * 1024 + 1);
    is(
        post(&session, &server.url("/echo"), &body).await,
        "too-large",
        "(`request`)",
    );
    let large = [("x".to_owned(), "a".repeat(66_000))];
    let url = server.url("/echo");
    let large = session.send("GET", &url, &large, None, None);
    is(
        large.await,
        "too-large",
        "URL and headers are larger than 64 KiB",
    );
}

#[tokio::test]
async fn each_phase_has_its_limit() {
    let (net, server) = (net(), Server::plain().await);
    let rules = with_limits(&[&server], |limits| {
        limits.first_byte_timeout = Duration::from_millis(200);
    });
    let client = Arc::new(Client::new(&net, rules));
    let later = Instant::now() + Duration::from_secs(60);
    let session = client.session(later, "");
    let limit = Duration::from_millis(200);
    let silent = soon(limit, get(&session, &server.url("/silent"))).await;
    is(silent, "timeout", "within 200ms (first byte timeout)");
    let asked = Duration::from_millis(100);
    let url = server.url("/dribble-body");
    let silent = soon(asked, session.send("GET", &url, &[], None, Some(asked))).await;
    is(
        silent,
        "timeout",
        "within 100ms (timeout of the whole call)",
    );
    let options = Timeouts {
        between_bytes: Some(asked),
        ..Timeouts::default()
    };
    let request = http::Request::get(server.url("/begun")).body(Empty::new());
    let begun = session.stream(request.unwrap(), options).await.unwrap();
    let ended = soon(asked, begun.into_body().collect()).await;
    is(ended, "timeout", "within 100ms (between bytes timeout)");
    let short = client.session(Instant::now() + asked, "");
    let ended = soon(asked, get(&short, &server.url("/silent"))).await;
    is(ended, "timeout", "the attempt's time was over");
    is(
        get(&short, &server.url("/echo")).await,
        "timeout",
        "the attempt's time",
    );
}

#[tokio::test]
async fn connections_that_cannot_be_made_say_why() {
    let net = net();
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let full = socket.listen(1).unwrap();
    let address = full.local_addr().unwrap();
    // Nobody accepts: once the backlog is full, the system answers no further connection.
    let mut held = Vec::new();
    while let Ok(Ok(stream)) = tokio::time::timeout(
        Duration::from_millis(200),
        tokio::net::TcpStream::connect(address),
    )
    .await
    {
        held.push(stream);
    }
    let mut rules = rules(vec![rule("*")]);
    rules.limits.connect_timeout = Duration::from_millis(300);
    let session = session(&net, rules);
    let unanswered = soon(
        Duration::from_millis(300),
        get(&session, &format!("http://{address}/")),
    )
    .await;
    is(unanswered, "timeout", "within 300ms (connect timeout)");
    drop((held, full));
    is(
        get(&session, &format!("http://{address}/")).await,
        "connect",
        "cannot connect to",
    );
    let nowhere = get(&session, "http://no-such-name.invalid/").await;
    is(nowhere, "dns", "`http://no-such-name.invalid`");
    let closed = Server::start("127.0.0.1:0", Door::Closed).await;
    is(
        get(&session, &closed.url("/")).await,
        "protocol",
        "closed the connection",
    );
    let six = Server::start("[::1]:0", Door::Plain).await;
    assert_eq!(get(&session, &six.url("/echo")).await.unwrap().status, 200);
    // The name may lead to both addresses; only one of them listens.
    let four = Server::plain().await;
    let url = four.url("/echo").replace("127.0.0.1", "localhost");
    assert_eq!(get(&session, &url).await.unwrap().status, 200);
}

#[tokio::test]
async fn a_dropped_call_closes_its_socket() {
    let (net, server) = (net(), Server::plain().await);
    let session = session(&net, with_limits(&[&server], |_| {}));
    for path in ["/silent", "/begun", "/no-read"] {
        let url = server.url(path);
        let body = "x".repeat(if path == "/no-read" { 5_000_000 } else { 1 });
        let call = post(&session, &url, &body);
        let before = server.requests();
        let reached = until_true("the request to arrive", || server.requests() > before);
        tokio::select! {
            answer = call => panic!("{answer:?}"),
            () = reached => {}
        }
        until_true("the socket to close", || server.open() == 0).await;
    }
    assert_eq!(session.usage().calls, 3);
}

#[tokio::test]
async fn a_dropped_session_closes_what_it_has_open() {
    let (net, server) = (net(), Server::plain().await);
    let session = session(&net, with_limits(&[&server], |_| {}));
    let mut bodies = Vec::new();
    for path in ["/begun", "/begun", "/huge"] {
        let body = if path == "/huge" {
            stream(&session, &server.url("/huge?chunked")).await
        } else {
            stream(&session, &server.url(path)).await
        };
        bodies.push(body.unwrap().into_body());
    }
    drop(session);
    until_true("the sockets to close", || server.open() == 0).await;
    for body in bodies {
        is(body.collect().await, "cancelled", "ended with its attempt");
    }
    drop(net);
}

#[tokio::test]
async fn a_body_that_nobody_reads_ends_with_its_time() {
    let (net, server) = (net(), Server::plain().await);
    let rules = with_limits(&[&server], |limits| {
        limits.timeout = Duration::from_millis(300);
    });
    let session = session(&net, rules);
    let huge = stream(&session, &server.url("/huge?chunked"))
        .await
        .unwrap();
    until_true("the socket to close", || server.open() == 0).await;
    is(
        huge.into_body().collect().await,
        "timeout",
        "300ms (timeout of the whole call)",
    );
}

#[tokio::test]
async fn calls_are_counted_and_limited() {
    let (net, server) = (net(), Server::plain().await);
    let rules = with_limits(&[&server], |limits| {
        limits.calls = 6;
        limits.concurrent = 2;
    });
    let session = session(&net, rules);
    let one = stream(&session, &server.url("/begun")).await.unwrap();
    let two = stream(&session, &server.url("/begun")).await.unwrap();
    is(
        stream(&session, &server.url("/echo")).await,
        "limit",
        "2 HTTP calls are open",
    );
    drop(one);
    let three = stream(&session, &server.url("/echo")).await.unwrap();
    assert!(
        !three
            .into_body()
            .collect()
            .await
            .unwrap()
            .to_bytes()
            .is_empty()
    );
    drop(two);
    let begun = Instant::now();
    let answer = post(&session, &server.url("/echo"), "hello").await.unwrap();
    assert!(json(&answer)["body"] == "hello" && begun.elapsed() < Duration::from_secs(5));
    let before = session.usage();
    get(&session, &server.url("/fill?10000")).await.unwrap();
    let after = session.usage();
    assert!((10_000..11_000).contains(&(after.received - before.received)));
    assert!((50..1_000).contains(&(after.sent - before.sent)));
    assert!(after.time > before.time && after.calls == 6, "{after:?}");
    is(
        get(&session, &server.url("/echo")).await,
        "limit",
        "the 6 HTTP calls",
    );
    assert_eq!(session.usage().calls, 6);
}

#[tokio::test]
async fn a_call_that_is_open_has_used_its_time() {
    let (net, server) = (net(), Server::plain().await);
    let session = session(&net, with_limits(&[&server], |_| {}));
    let one = stream(&session, &server.url("/begun")).await.unwrap();
    let two = stream(&session, &server.url("/begun")).await.unwrap();
    let longest = Instant::now();
    let before = session.usage().time;
    let shortest = Instant::now();
    let passes = until_true("time to pass", || {
        session.usage().time > Duration::from_millis(50)
    });
    soon(Duration::from_secs(1), passes).await;
    // Both count.
    let passed = shortest.elapsed();
    let used = session.usage().time - before;
    assert!(
        used >= 2 * passed && used <= 2 * longest.elapsed(),
        "{used:?} in {passed:?}"
    );
    drop(one);
    let one_ended = session.usage().time;
    drop(two);
    let ended = session.usage();
    assert!(ended.time > one_ended && ended == session.usage());
}

#[tokio::test]
async fn nothing_is_left_after_many_broken_calls() {
    let net = net();
    let (server, closed) = (
        Server::plain().await,
        Server::start("127.0.0.1:0", Door::Closed).await,
    );
    let mut rules = rules(vec![rule("*")]);
    rules.limits.calls = 2000;
    rules.limits.timeout = Duration::from_millis(20);
    let session = Arc::new(session(&net, rules));
    let paths = [
        "/silent",
        "/dribble-head",
        "/dribble-body",
        "/short",
        "/huge",
        "/close-now",
    ];
    let round = |number: usize| {
        let urls = [
            server.url(paths[number % paths.len()]),
            closed.url("/"),
            "http://no-such-name.invalid/".to_owned(),
        ];
        let session = session.clone();
        async move {
            let mut calls = tokio::task::JoinSet::new();
            for url in urls {
                let session = session.clone();
                calls.spawn(async move { get(&session, &url).await });
            }
            while let Some(ended) = calls.join_next().await {
                assert!(ended.unwrap().is_err());
            }
        }
    };
    let threads = || {
        let names = std::fs::read_dir("/proc/self/task").unwrap();
        let names = names
            .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|name| name.starts_with("http")).count()
    };
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // Whatever comes with the first call is there; the thread may not even have its name before it.
    assert!(get(&session, &closed.url("/")).await.is_err());
    let before = (threads(), files());
    for number in 0..200 {
        round(number).await;
    }
    // Other tests run beside this one and come and go: that it falls back at some time is enough.
    until_true("threads and files to be as before", || {
        server.open() == 0 && threads() <= before.0 && files() <= before.1
    })
    .await;
    assert_eq!(session.usage().calls, 601);
}

#[tokio::test]
async fn a_net_can_be_dropped_anywhere() {
    let server = Server::plain().await;
    let net = net();
    let session = session(&net, with_limits(&[&server], |_| {}));
    let body = stream(&session, &server.url("/begun")).await.unwrap();
    drop(net);
    is(body.into_body().collect().await, "cancelled", "ended");
    is(
        get(&session, &server.url("/echo")).await,
        "cancelled",
        "the runner stops",
    );
    until_true("the socket to close", || server.open() == 0).await;
}
