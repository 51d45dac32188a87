//! `piecework invoke`: a handler alone, with recorded answers in place of a network.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use super::support::guests::{self, Folder};
use super::support::process::command;
use super::support::server::Server;

/// The guest, and what asks it for a call, of each door.
const DOORS: [(&str, &str); 2] = [("probe", "http"), ("client", "wasi_http")];

struct Bench {
    folder: Folder,
}

impl Bench {
    fn new(settings: &str) -> Self {
        let folder = Folder::with(&[("probe", "probe"), ("client", "client")]);
        fs::write(folder.path().join("runner.toml"), settings).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn run(&self, guest: &str, payload: &Value, arguments: &[&str]) -> Output {
        command()
            .args(["--config", &self.path("runner.toml"), "invoke", "--json"])
            .arg(self.folder.path().join(guest).with_extension("wasm"))
            .args(["--payload", &payload.to_string()])
            .args(arguments)
            .output()
            .unwrap()
    }

    fn call(&self, guest: &str, payload: &Value, arguments: &[&str]) -> Value {
        let output = self.run(guest, payload, arguments);
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
    }

    /// A call that must not be made: wrong usage.
    fn misuse(&self, arguments: &[&str], because: &str) {
        let output = self.run("probe", &json!({ "do": "ok" }), arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(because), "{said}");
    }
}

fn open(server: &Server, more: &str) -> String {
    format!(
        "[defaults.http]\nallow = [{{ to = '{}', private = true }}]\n{more}",
        server.origin()
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_recorded_is_answered_without_a_server() {
    let server = Server::plain().await;
    let bench = Bench::new(&open(&server, ""));
    for (guest, door) in DOORS {
        let call = json!({
            "do": door, "method": "POST", "url": server.url("/echo?a=b"), "headers": [["x-order", "4711"]], "body": "text",
        });
        let file = bench.path(&format!("{guest}.json"));
        let recorded = bench.call(guest, &call, &["--http", &format!("record:{file}")]);
        assert_eq!(recorded["result"]["status"], 200, "{recorded}");
        let made = server.requests();
        let replayed = bench.call(guest, &call, &["--http", &format!("replay:{file}")]);
        assert_eq!(replayed["result"], recorded["result"], "{door}");
        assert_eq!(replayed["http_unused"], json!([]));
        assert_eq!(replayed["http_calls"], 1, "{door}");
        assert_eq!(server.requests(), made, "nobody was called");
        // Another call is not in it, and it says so.
        let mut other = call.clone();
        other["body"] = "other".into();
        let denied = bench.call(guest, &other, &["--http", &format!("replay:{file}")]);
        let said = denied.to_string();
        assert!(
            said.contains("denied") && said.contains("is not in the recording"),
            "{said}"
        );
        assert_eq!(
            denied["http_unused"],
            json!([format!("POST {}", server.url("/echo?a=b"))])
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_and_bytes_are_recorded_too() {
    let server = Server::plain().await;
    let bench = Bench::new(&open(&server, ""));
    for path in ["/junk", "/gzip-false"] {
        let call = json!({ "do": "http", "url": server.url(path) });
        let file = bench.path("errors.json");
        let recorded = bench.call("probe", &call, &["--http", &format!("record:{file}")]);
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains("\"error\""), "{text}");
        let replayed = bench.call("probe", &call, &["--http", &format!("replay:{file}")]);
        assert_eq!(replayed["result"], recorded["result"], "{path}");
    }
    // By hand, and not UTF-8; the second of two equal calls is the second answer.
    let url = "https://elsewhere.example/x";
    let recording = json!({ "calls": [
        { "request": { "method": "GET", "url": url }, "response": { "status": 500 } },
        { "request": { "method": "GET", "url": url }, "response": { "status": 201, "headers": [["X-Name", "v"]], "body": { "base64": "/2E=" } } },
    ] });
    let file = bench.path("hand.json");
    fs::write(&file, recording.to_string()).unwrap();
    let call = json!({ "do": "http", "url": url, "times": 2 });
    let replayed = bench.call("probe", &call, &["--http", &format!("replay:{file}")]);
    assert_eq!(
        replayed["result"],
        json!({ "status": 201, "headers": [["x-name", "v"]], "body": "\u{fffd}a" })
    );
}

/// O-30: also where the server sends back what it was sent, in whatever spelling.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_recorded_in_any_spelling() {
    const SECRET: &str = "s3cret/with+signs=";
    let server = Server::plain().await;
    let origin = server.origin();
    let bench = Bench::new("");
    let token = bench.path("token");
    fs::write(&token, SECRET).unwrap();
    let settings = open(
        &server,
        &format!(
            "[secrets.token]\nfile = {token:?}\nhosts = ['{origin}']\n[plugins.probe]\nsecrets = ['token']\n"
        ),
    );
    fs::write(bench.path("runner.toml"), &settings).unwrap();
    for place in ["header", "basic", "query"] {
        let call = json!({ "do": "secret_http", "secret": "token", "url": server.url("/echo"), "place": place });
        let file = bench.path(&format!("{place}.json"));
        let recorded = bench.call("probe", &call, &["--http", &format!("record:{file}")]);
        assert_eq!(recorded["result"]["status"], 200, "{recorded}");
        let text = fs::read_to_string(&file).unwrap();
        for spelling in [
            SECRET,
            "s3cret%2Fwith%2Bsigns%3D",
            "czNjcmV0L3dpdGgrc2lnbnM",
            "M2NyZXQvd2l0aCtzaWduc",
            "zY3JldC93aXRoK3NpZ25zP",
        ] {
            assert!(!text.contains(spelling), "{place}: {spelling} in {text}");
        }
        assert!(text.contains("{secret token}"), "{place}: {text}");
        // Another call has another placeholder, and neither the value nor a server is needed.
        fs::remove_file(&token).unwrap();
        let replayed = bench.call("probe", &call, &["--http", &format!("replay:{file}")]);
        assert_eq!(replayed["result"]["status"], 200, "{place}: {replayed}");
        fs::write(&token, SECRET).unwrap();
    }
}

#[test]
fn calls_are_denied_and_checkpoints_are_given() {
    let bench = Bench::new("[defaults.http]\nallow = ['https://*']\n");
    let call = json!({ "do": "http", "url": "https://elsewhere.example/x", "fail": true });
    let denied = bench.call("probe", &call, &["--http", "deny"]);
    assert_eq!(denied["outcome"], "guest_retry");
    assert_eq!(denied["disposition"], "retry");
    assert!(
        denied["error"]
            .as_str()
            .unwrap()
            .contains("calls are denied"),
        "{denied}"
    );

    let load = json!({ "do": "checkpoint_load", "name": "step" });
    let loaded = bench.call(
        "probe",
        &load,
        &["--checkpoint", "step={\"at\": 7}", "--checkpoint", "x=1"],
    );
    assert!(loaded["result"].to_string().contains("7"), "{loaded}");
    let save = json!({ "do": "checkpoint_save", "name": "step", "json": "{\"at\":8}" });
    let saved = bench.call("probe", &save, &[]);
    assert_eq!(saved["checkpoints"], json!({ "step": { "at": 8 } }));
    let size = guests::bytes("probe").len();
    assert_eq!(saved["size"], size);
    assert!(saved["compile_us"].as_u64().unwrap() > 0);
}

#[test]
fn what_is_wrong_is_said_before_anything_is_called() {
    let bench = Bench::new("");
    let file = |text: &str| {
        let path = bench.path("recording.json");
        fs::write(&path, text).unwrap();
        format!("replay:{path}")
    };
    bench.misuse(
        &["--http", "maybe"],
        "allow, deny, record:FILE or replay:FILE",
    );
    bench.misuse(
        &["--http", "replay:"],
        "allow, deny, record:FILE or replay:FILE",
    );
    bench.misuse(
        &["--http", "replay:/no/such"],
        "make one with `--http record:/no/such`",
    );
    bench.misuse(
        &["--http", "record:/no/such/folder/x"],
        "cannot write `/no/such/folder/x`",
    );
    bench.misuse(&["--http", &file("{")], "is no recording");
    bench.misuse(
        &[
            "--http",
            &file(r#"{"calls":[{"request":{"method":"GET","url":"u"}}]}"#),
        ],
        "call 1, GET u: it needs one of `response` and `error`",
    );
    bench.misuse(
        &["--http", &file(r#"{"calls":[{"request":{"method":"GET","url":"u"},"error":{"kind":"tired","message":""}}]}"#)],
        "there is no error of the kind `tired`",
    );
    bench.misuse(&["--checkpoint", "step"], "NAME=JSON");
    bench.misuse(&["--checkpoint", "step={"], "is no JSON");
    assert!(!Path::new("/no/such").exists());
}
