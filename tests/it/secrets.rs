//! O-30: secrets never reach logs, errors, status output, the table or a file.

use std::path::Path;

use serde_json::json;
use url::Url;

use super::support::db::Db;
use super::support::guests::Folder;
use super::support::process::{Host, SHORT, command};
use super::support::server::Server;

const SECRET: &str = "sk_live_4711secret";
/// Characters that have to be escaped in an address.
const PASSWORD: &str = "p@ss:w/rd%23";

/// Everything that can be said, except by the compiler: a gigabyte about code.
const LEVEL: &str = "trace,cranelift_codegen=warn,cranelift_frontend=warn,regalloc2=warn,wasmtime_internal_cranelift=warn,wasmtime_internal_environ=warn,wasmtime=debug";

/// Whatever must not be seen anywhere.
struct Needles(Vec<String>);

impl Needles {
    #[track_caller]
    fn are_not_in(&self, place: &str, text: &str) {
        for needle in &self.0 {
            assert!(!text.contains(needle), "{place} shows `{needle}`:\n{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_o_30_secrets_and_passwords_are_seen_nowhere() {
    let db = Db::new().await;
    let server = Server::plain().await;
    let plugins = Folder::with(&[("probe", "probe"), ("client", "client")]);
    std::fs::write(plugins.path().join("stripe.key"), format!("{SECRET}\n")).unwrap();
    let file = plugins.path().join("stripe.key");
    let settings = format!(
        "{SHORT}
        [secrets.stripe]
        file = {file:?}
        hosts = [\"{0}\"]
        [plugins.probe]
        secrets = [\"stripe\"]
        [plugins.client]
        secrets = [\"stripe\"]
        [defaults.http]
        allow = [{{ to = \"{0}\", private = true }}, \"https://elsewhere.example\"]
        ",
        server.origin()
    );
    // A server that asks for no password takes any.
    let mut address = Url::parse(db.url()).unwrap();
    if address.password().is_none() {
        address.set_password(Some(PASSWORD)).unwrap();
    }
    let encoded = address.password().unwrap().to_owned();
    let needles = Needles(vec![
        SECRET.to_owned(),
        "c2tfbGl2ZV80NzExc2VjcmV0".to_owned(),
        PASSWORD.to_owned(),
        encoded,
    ]);

    let host = Host::start_logging(address.as_str(), plugins.path(), &settings, &[], LEVEL);
    host.ready().await;
    let mut jobs = Vec::new();
    for (url, place) in [
        (server.url("/no-content"), "header"),
        (server.url("/no-content"), "basic"),
        (server.url("/no-content"), "query"),
        (server.url("/junk"), "header"),
        (server.url("/close-now"), "query"),
        ("https://elsewhere.example/".to_owned(), "header"),
        (server.url("/no-content"), "body"),
    ] {
        let payload = json!({ "do": "secret_http", "secret": "stripe", "url": url, "place": place, "echo": true });
        jobs.push(db.enqueue("probe", &payload.to_string()).await);
    }
    let payload =
        json!({ "do": "wasi_http", "url": server.url("/no-content"), "secret": "stripe" });
    jobs.push(db.enqueue("client", &payload.to_string()).await);
    for id in &jobs {
        db.becomes(*id, "done").await;
    }
    assert_eq!(server.requests(), 6, "six of them were sent");
    let log = host.log().join("\n");
    assert!(log.len() > 10_000, "it is the full log");
    needles.are_not_in("the log", &log);

    for table in [
        "select coalesce(string_agg(j::text, ' '), '') from piecework.job_history j where $1 is not null",
        "select coalesce(string_agg(j::text, ' '), '') from piecework.runner j where $1 is not null",
    ] {
        let text = db.text(table, jobs[0]).await.unwrap();
        assert!(text.len() > 50);
        needles.are_not_in(table, &text);
    }
    let id = jobs[0].to_string();
    for arguments in [
        vec!["status"],
        vec!["status", "--json"],
        vec!["jobs", "list"],
        vec!["jobs", "show", &id],
        vec!["plugins", "list", "--plugins", "."],
    ] {
        let (seen, code) = run(plugins.path(), &settings, address.as_str(), &arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {seen}");
        needles.are_not_in(&arguments.join(" "), &seen);
    }

    // Addresses that do not work.
    let wrong_host = "postgres://ann:p%40ss%3Aw%2Frd%2523@127.0.0.1:9/x";
    for (wrong, code) in [
        (wrong_host.to_owned(), 1),
        (wrong_host.replace(":9/", ":nine/"), 2),
        (wrong_host.replace("postgres://", "postgers://"), 2),
        (wrong_host.replace("127.0.0.1", "[::"), 2),
    ] {
        let (seen, ended) = run(plugins.path(), &settings, &wrong, &["status"]);
        assert_eq!(ended, Some(code), "{wrong}: {seen}");
        needles.are_not_in(&wrong, &seen);
        // Nothing of an address that cannot be read is repeated.
        assert!(!seen.contains("ann"), "{seen}");
    }
    drop(host);
    db.drop().await;
}

/// Both streams of a command with all logging on, and its exit code.
fn run(folder: &Path, settings: &str, url: &str, arguments: &[&str]) -> (String, Option<i32>) {
    let file = folder.join("runner.toml");
    std::fs::write(&file, settings).unwrap();
    let output = command()
        .current_dir(folder)
        .args(["--log-level", LEVEL, "--config"])
        .arg(&file)
        .args(arguments)
        .env("DATABASE_URL", url)
        .env_remove("RUST_LOG")
        .output()
        .unwrap();
    let seen = [output.stdout, output.stderr].concat();
    (
        String::from_utf8_lossy(&seen).into_owned(),
        output.status.code(),
    )
}
