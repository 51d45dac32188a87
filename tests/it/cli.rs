//! The commands as people call them: what they print, how they end, and what they say when something is wrong.

use std::path::Path;
use std::process::{Output, Stdio};

use super::support::db::Db;
use super::support::guests::{self, Folder};
use super::support::process::{Host, command};

pub(crate) fn run(db: Option<&Db>, folder: &Path, arguments: &[&str]) -> Output {
    let mut command = command();
    command
        .current_dir(folder)
        .args(arguments)
        .env_remove("DATABASE_URL")
        .env_remove("RUST_LOG")
        .stdin(Stdio::null());
    if let Some(db) = db {
        command.env("DATABASE_URL", db.url());
    }
    command.output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end().to_owned()
}

/// A refusal: this exit code, one line on standard error with this text, nothing on standard output.
#[track_caller]
pub(crate) fn refused(output: &Output, code: i32, says: &str) {
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(
        error.starts_with("error: ") && error.lines().count() == 1,
        "{error}"
    );
    assert!(error.contains(says), "{error}");
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
}

#[tokio::test]
async fn bad_settings_and_bad_input_are_refused_in_one_line() {
    let folder = Folder::new();
    let db = Db::new().await;
    std::fs::create_dir(folder.path().join("plugins")).unwrap();
    let here = folder.path();
    // The settings.
    std::fs::write(
        here.join("runner.toml"),
        "[runner]\nplugin_folder = \"x\"\n",
    )
    .unwrap();
    refused(
        &run(Some(&db), here, &["status"]),
        2,
        "`runner.toml` line 2: the key `plugin_folder` is not known; did you mean `plugins_folder`?",
    );
    std::fs::write(here.join("runner.toml"), "[runner\n").unwrap();
    refused(&run(Some(&db), here, &["run"]), 2, "`runner.toml` line 1: ");
    std::fs::remove_file(here.join("runner.toml")).unwrap();
    refused(
        &run(Some(&db), here, &["--config", "no.toml", "status"]),
        2,
        "cannot read the settings file `no.toml`",
    );
    // The plugins folder.
    refused(
        &run(Some(&db), here, &["run", "--plugins", "nowhere"]),
        2,
        "the plugins folder `nowhere` is not there: create it",
    );
    refused(
        &run(
            Some(&db),
            here,
            &["plugins", "list", "--plugins", "nowhere"],
        ),
        2,
        "the plugins folder `nowhere` is not there: create it",
    );
    // The payload: nothing of it reaches the table.
    for (payload, says) in [
        ("{", "it is not JSON"),
        ("", "it is not JSON"),
        (r#"{"a":"x\u0000y"}"#, "U+0000"),
        (r#""\ud800""#, "half a surrogate pair"),
        (
            "@missing.json",
            "cannot read the payload file `missing.json`",
        ),
    ] {
        refused(
            &run(Some(&db), here, &["enqueue", "mail", payload]),
            2,
            says,
        );
    }
    refused(
        &run(Some(&db), here, &["enqueue", "mail", "--priority", "9"]),
        2,
        "priority 9 is not one of 1 (first) to 4 (last)",
    );
    refused(
        &run(Some(&db), here, &["enqueue", "mail", "--due", "soon"]),
        2,
        "invalid input syntax for type timestamp",
    );
    refused(
        &run(Some(&db), here, &["enqueue", "mail", "--due", "infinity"]),
        2,
        "a job cannot be due at infinity",
    );
    assert_eq!(db.number("select count(*) from piecework.job").await, 0);
    // A job that is not there, a command that is not.
    refused(
        &run(Some(&db), here, &["jobs", "show", "4711"]),
        2,
        "there is no job 4711",
    );
    assert_eq!(run(Some(&db), here, &["enqeue"]).status.code(), Some(2));
    db.drop().await;
}

#[tokio::test]
async fn a_database_that_does_not_fit_is_refused_with_the_way_out() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path().join("plugins")).unwrap();
    let here = folder.path();
    let db = Db::empty().await;
    for arguments in [
        &["run"][..],
        &["status"],
        &["enqueue", "mail"],
        &["jobs", "list"],
    ] {
        refused(
            &run(Some(&db), here, arguments),
            2,
            "no piecework schema, this program needs version 4: run `piecework migrate`",
        );
    }
    assert_eq!(
        text(&run(Some(&db), here, &["migrate"]).stdout),
        "migrated from version 0 to 4"
    );
    assert_eq!(
        text(&run(Some(&db), here, &["migrate"]).stdout),
        "the schema is at version 4 already"
    );
    // Migrated, and then spoiled by somebody.
    sqlx::query("alter table piecework.job rename column due_at to run_at")
        .execute(&db.pool)
        .await
        .unwrap();
    refused(
        &run(Some(&db), here, &["run"]),
        2,
        "does not fit this program: column j.due_at does not exist",
    );
    sqlx::query("update piecework.migration set version = 99 where version = 4")
        .execute(&db.pool)
        .await
        .unwrap();
    refused(
        &run(Some(&db), here, &["run"]),
        2,
        "version 99 of the piecework schema, this program knows up to 4: use a newer piecework",
    );
    db.drop().await;
}

#[test]
fn a_database_that_is_not_there_is_refused_without_its_password() {
    let folder = Folder::new();
    let ask = |url: &str| {
        let output = command()
            .current_dir(folder.path())
            .args(["--log-level", "trace", "status"])
            .env("DATABASE_URL", url)
            .output()
            .unwrap();
        let said = text(&output.stderr);
        assert!(
            !said.contains("p@ss") && !said.contains("p%40ss") && !said.contains("hunter2"),
            "{said}"
        );
        (output.status.code(), said)
    };
    let (code, said) = ask("postgres://me:p%40ss@127.0.0.1:1/db");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("the database is not available"), "{said}");
    for malformed in [
        "nonsense hunter2",
        "postgres://me:hunter2@[/db",
        "mysql://me:hunter2@127.0.0.1:1/db",
    ] {
        let (code, said) = ask(malformed);
        assert_eq!(code, Some(2), "{malformed}: {said}");
        assert!(
            said.contains("is not a PostgreSQL address such as"),
            "{said}"
        );
    }
}

#[test]
fn without_a_database_the_error_names_the_ways_to_one() {
    let folder = Folder::new();
    std::fs::write(
        folder.path().join("runner.toml"),
        "[database]\nfolder = \"nothing-here\"\n",
    )
    .unwrap();
    refused(
        &run(None, folder.path(), &["status"]),
        2,
        "set DATABASE_URL or `url` under `[database]` in runner.toml, or start `piecework dev`",
    );
}

#[tokio::test]
async fn process_enqueue_waits_for_the_result_and_ends_by_the_outcome() {
    let db = Db::new().await;
    let folder = Folder::with(&[("probe", "probe"), ("markdown", "markdown")]);
    let host = Host::start(&db, folder.path(), "[defaults]\nretry_base = \"10ms\"\n");
    host.ready().await;
    let here = folder.path();
    let output = run(
        Some(&db),
        here,
        &[
            "enqueue",
            "markdown",
            r##"{"markdown":"# Hello\n\nbrave new *world*"}"##,
            "--wait",
        ],
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["title"], "Hello");
    assert_eq!(result["words"], 4);
    assert!(result["html"].as_str().unwrap().contains("<em>world</em>"));
    // Numbers keep their digits on the way back.
    std::fs::write(
        here.join("payload.json"),
        r#"{"do":"echo","n":18446744073709551616}"#,
    )
    .unwrap();
    let output = run(
        Some(&db),
        here,
        &["enqueue", "probe", "@payload.json", "--wait", "--json"],
    );
    assert!(
        text(&output.stdout).contains("18446744073709551616"),
        "{}",
        text(&output.stdout)
    );
    let output = run(
        Some(&db),
        here,
        &[
            "enqueue",
            "probe",
            r#"{"do":"boom","text":"order 4711 has no lines"}"#,
            "--max-attempts",
            "2",
            "--wait",
        ],
    );
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("failed after 2 attempts (trap)") && said.contains("order 4711 has no lines"),
        "{said}"
    );

    let listed: serde_json::Value =
        serde_json::from_slice(&run(Some(&db), here, &["jobs", "list", "--json"]).stdout).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 3);
    assert_eq!(listed[0]["state"], "failed");
    assert!(listed[0].get("payload").is_none());
    let failed = text(&run(Some(&db), here, &["jobs", "list", "--state", "failed"]).stdout);
    assert_eq!(failed.lines().count(), 2, "{failed}");
    let id = listed[0]["id"].to_string();
    let shown = text(&run(Some(&db), here, &["jobs", "show", &id]).stdout);
    assert!(
        shown.contains("failure       trap") && shown.contains("2"),
        "{shown}"
    );
    let status: serde_json::Value =
        serde_json::from_slice(&run(Some(&db), here, &["status", "--json"]).stdout).unwrap();
    assert_eq!(status["runners"][0]["state"], "live");
    drop(host);
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_cancelled_and_what_attempts_used_is_shown() {
    let db = Db::new().await;
    let folder = Folder::with(&[("probe", "probe")]);
    let here = folder.path();
    let waiting = db.enqueue("nobody", "{}").await.to_string();
    let done = db
        .enqueue("probe", r#"{"do":"http","url":"http://127.0.0.1:9/"}"#)
        .await;
    let host = Host::start(&db, here, "");
    db.becomes(done, "done").await;
    let done = done.to_string();
    let output = run(
        Some(&db),
        here,
        &["jobs", "cancel", &waiting, &done, "4711"],
    );
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (
            Some(1),
            format!(
                "job {waiting} is cancelled\njob {done} had ended before: it is done, nothing was changed\nthere is no job 4711: it never was, or the history has dropped it"
            )
        )
    );
    let output = run(Some(&db), here, &["jobs", "cancel", &waiting, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said[0]["state"], "cancelled");
    let output = run(Some(&db), here, &["jobs", "show", &done]);
    let shown = text(&output.stdout);
    for member in [
        "plugin",
        "runner",
        "run_us",
        "cpu_us",
        "peak_memory",
        "http_calls",
        "http_bytes",
        "http_us",
    ] {
        assert!(
            shown.lines().any(|line| line.starts_with(member)),
            "{member}: {shown}"
        );
    }
    assert!(shown.contains("http_calls    1"), "{shown}");
    drop(host);
    db.drop().await;
}

#[tokio::test]
async fn hostile_text_in_a_job_is_shown_as_text() {
    let db = Db::new().await;
    let folder = Folder::new();
    db.enqueue("a\u{1b}[2Jb\u{202e}c", "{}").await;
    for arguments in [&["jobs", "list"][..], &["jobs", "show", "1"], &["status"]] {
        let output = run(Some(&db), folder.path(), arguments);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let shown = text(&output.stdout);
        assert!(
            !shown.contains('\u{1b}') && !shown.contains('\u{202e}'),
            "{shown:?}"
        );
        assert!(
            shown.contains("u{1b}[2Jb") || shown.contains("u001b[2Jb"),
            "{shown}"
        );
    }
    db.drop().await;
}

#[test]
fn plugins_are_listed_and_checked_without_a_database() {
    let folder = Folder::with(&[("good", "noop")]);
    let here = folder.path();
    let plugins = here.to_str().unwrap();
    let output = run(None, here, &["plugins", "list", "--plugins", plugins]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("serving"));
    folder.put("core", b"\0asm\x01\0\0\0");
    let output = run(None, here, &["plugins", "list", "--plugins", plugins]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stdout).contains("it is a core module"),
        "{}",
        text(&output.stdout)
    );
    let output = run(
        None,
        here,
        &["plugins", "check", "good.wasm", "core.wasm", "missing.wasm"],
    );
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    assert!(said.contains("good.wasm: can serve `good` ("), "{said}");
    assert!(said.contains("core.wasm: refused: it is a core module (version bytes 01 00 00 00), not a component\n  to do    build for the target wasm32-wasip2"), "{said}");
    assert!(
        said.contains("missing.wasm: refused: it cannot be read"),
        "{said}"
    );
    refused(
        &run(None, here, &["invoke", "core.wasm"]),
        1,
        "`core.wasm` is refused: it is a core module",
    );
}

#[test]
fn a_handler_is_invoked_without_a_database() {
    let folder = Folder::new();
    std::fs::write(folder.path().join("probe.wasm"), guests::bytes("probe")).unwrap();
    let output = run(
        None,
        folder.path(),
        &[
            "invoke",
            "probe.wasm",
            "--payload",
            r#"{"do":"follow","job_type":"next","payload":{"n":9007199254740993},"then":"ok"}"#,
            "--json",
        ],
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.contains("9007199254740993"), "{said}");
    let answer: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (
            answer["outcome"].as_str(),
            answer["follow_ups"][0]["job_type"].as_str()
        ),
        (Some("done"), Some("next"))
    );
    let output = run(
        None,
        folder.path(),
        &[
            "invoke",
            "probe.wasm",
            "--payload",
            r#"{"do":"boom","text":"order 4711"}"#,
        ],
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("order 4711"));
    std::fs::write(
        folder.path().join("runner.toml"),
        "[plugins.probe]\ntimeout = \"200ms\"\n",
    )
    .unwrap();
    let output = run(
        None,
        folder.path(),
        &["invoke", "probe.wasm", "--payload", r#"{"do":"spin"}"#],
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("outcome    timeout"));
}

#[tokio::test]
async fn retention_is_shown_and_set_for_the_fleet() {
    let folder = Folder::new();
    let here = folder.path();
    let db = Db::new().await;
    let shown = run(Some(&db), here, &["retention"]);
    let shown = text(&shown.stdout);
    for line in [
        "done       7 days",
        "failed     90 days",
        "cancelled  30 days",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
    let set = ["retention", "--done", "0s", "--failed", "36h", "--json"];
    let set = run(Some(&db), here, &set);
    let lines: serde_json::Value = serde_json::from_slice(&set.stdout).unwrap();
    let expected = serde_json::json!([
        { "state": "done", "keep_seconds": 0.0 },
        { "state": "failed", "keep_seconds": 129_600.0 },
        { "state": "cancelled", "keep_seconds": 2_592_000.0 },
    ]);
    assert_eq!(lines, expected);
    assert!(text(&run(Some(&db), here, &["retention"]).stdout).contains("not at all"));
    // All of it or nothing.
    let refusal = run(
        Some(&db),
        here,
        &["retention", "--failed", "1h", "--cancelled", "101years"],
    );
    refused(
        &refusal,
        2,
        "--cancelled: jobs are kept for 100 years at most",
    );
    let full = run(Some(&db), here, &["retention", "--failed", "100years"]);
    assert_eq!(full.status.code(), Some(0), "{}", text(&full.stderr));
    let odd = run(Some(&db), here, &["retention", "--done", "a while"]);
    assert_eq!(odd.status.code(), Some(2));
    db.drop().await;
}

#[tokio::test]
async fn status_says_what_waits_and_what_has_ended() {
    let folder = Folder::new();
    let here = folder.path();
    let db = Db::new().await;
    db.enqueue("mail", "{}").await;
    let id = db.enqueue("mail", "{}").await;
    db.store.cancel(id).await.unwrap();
    sqlx::query(
        "insert into piecework.job (job_type) select 'many' from generate_series(1, 123456)",
    )
    .execute(&db.pool)
    .await
    .unwrap();
    let json: serde_json::Value =
        serde_json::from_slice(&run(Some(&db), here, &["status", "--json"]).stdout).unwrap();
    let mail = &json["job_types"][0];
    assert_eq!(
        (&mail["job_type"], &mail["due"]),
        (&"mail".into(), &1.into())
    );
    assert_eq!(mail["estimated"], serde_json::json!([]));
    assert_eq!(
        json["job_types"][1]["estimated"],
        serde_json::json!(["due"])
    );
    let ended = serde_json::json!([
        { "job_type": "mail", "done": 0, "failed": 0, "cancelled": 1, "estimated": [] }
    ]);
    assert_eq!(json["finished"], ended);
    assert_eq!(json["finished_seconds"], 86_400);
    let shown = text(&run(Some(&db), here, &["status"]).stdout);
    assert!(
        shown.contains("~1") && shown.contains("ENDED IN 24 H"),
        "{shown}"
    );
    db.drop().await;
}
