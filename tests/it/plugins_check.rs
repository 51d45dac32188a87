//! What `plugins check` and a running host say of files that cannot serve: the cause and the way out, in words that are
//! held here as they are printed.

use std::path::Path;
use std::time::{Duration, Instant};

use piecework::engine::{digest, hex};

use super::cli::{run, text};
use super::support::db::Db;
use super::support::guests::{self, Folder};
use super::support::process::{Host, SHORT};

/// A component of this text, after its imports a guest whose `run` does nothing and has this type.
fn component(imports: &str, run: &str) -> Vec<u8> {
    let text = format!(
        r#"(component
            {imports}
            (core module $guest (func (export "run")))
            (core instance $guest (instantiate $guest))
            {run})"#
    );
    wat::parse_str(text).unwrap()
}

/// A `run` that takes and returns nothing.
const RUN: &str = r#"(func (export "run") (canon lift (core func $guest "run")))"#;

/// What `wasm-tools component wit --wasm` makes of a package with one interface.
const WIT_PACKAGE: &str = r#"(component
    (type (component
        (type (instance (type (func (result bool))) (export "cancelled" (func (type 0)))))
        (export "piecework:handler/jobs@0.1.0" (instance (type 0)))))
    (export "jobs" (type 0))
    (@custom "package-docs" "\01{}"))"#;

fn precompiled(change: impl FnOnce(&mut wasmtime::Config)) -> Vec<u8> {
    let mut settings = wasmtime::Config::new();
    change(&mut settings);
    let engine = wasmtime::Engine::new(&settings).unwrap();
    engine.precompile_component(&guests::bytes("noop")).unwrap()
}

/// Name and content of the files that O-33 is about.
fn o_33() -> Vec<(&'static str, Vec<u8>)> {
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    vec![
        (
            "core",
            wat::parse_str("(module (func (export \"run\")))").unwrap(),
        ),
        (
            "text",
            b"\nversion https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n".to_vec(),
        ),
        ("elf", program[..4096].to_vec()),
        ("wit", wat::parse_str(WIT_PACKAGE).unwrap()),
        ("empty", Vec::new()),
        ("precompiled", precompiled(|_| {})),
    ]
}

/// And more that cannot serve.
fn others() -> Vec<(&'static str, Vec<u8>)> {
    let newer = |version: &str, more: &str| {
        format!(
            r#"(import "piecework:handler/jobs@{version}" (instance
                (export "cancelled" (func (result bool))) {more}))"#
        )
    };
    let whole = guests::bytes("flaky");
    vec![
        (
            "precompiled-fuel",
            precompiled(|settings| {
                settings.consume_fuel(true);
            }),
        ),
        ("watt", b"  (component)\n".to_vec()),
        ("gzip", vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0]),
        ("noise", vec![0xff, 0xfe, 0, 1, 2, 3, 4, 5]),
        ("future", b"\0asm\x0e\0\x01\0".to_vec()),
        ("cut-early", whole[..6].to_vec()),
        ("cut-half", whole[..whole.len() / 2].to_vec()),
        ("cut-late", whole[..whole.len() - 1].to_vec()),
        ("damaged", {
            let mut bytes = wat::parse_str("(component (type (func)))").unwrap();
            bytes[8] = 0x55;
            bytes
        }),
        ("no-run", component("", "")),
        (
            "server",
            component(
                "",
                r#"(func $f (canon lift (core func $guest "run")))
            (instance $i (export "handle" (func $f)))
            (export "wasi:http/incoming-handler@0.2.3" (instance $i))
            (export "other" (func $f))"#,
            ),
        ),
        (
            "run-instance",
            component("", r#"(instance $i) (export "run" (instance $i))"#),
        ),
        ("wrong-run", component("", RUN)),
        (
            "unknown",
            component(
                r#"(import "acme:db/client@1.2.0" (instance (export "query" (func))))
            (import "wasi:http/incoming-handler@0.2.0" (instance (export "handle" (func))))
            (import "wasi:clocks/monotonic-clock@0.3.0" (instance (export "now" (func (result u64)))))
            (import "wasi:config/store@0.2.0-draft" (instance))
            (import "piecework:handler/files@0.1.0" (instance))
            (import "now" (func (result u64)))"#,
                RUN,
            ),
        ),
        (
            "newer-world",
            component(
                &format!(
                    r#"(import "piecework:handler/types@0.2.0" (instance)) {}"#,
                    newer("0.2.0", "")
                ),
                RUN,
            ),
        ),
        (
            "newer-export",
            component(
                "",
                r#"(func $f (canon lift (core func $guest "run")))
            (instance $i (export "run" (func $f)))
            (export "piecework:handler/guest@0.2.0" (instance $i))"#,
            ),
        ),
        (
            "newer-functions",
            component(
                &newer(
                    "0.1.9",
                    r#"(export "pause" (func)) (export "resume" (func))"#,
                ),
                RUN,
            ),
        ),
        (
            "newer-wasi",
            component(
                r#"(import "wasi:random/insecure-seed@0.2.99" (instance (export "more" (func))))"#,
                RUN,
            ),
        ),
        (
            "other-type",
            component(
                r#"(import "piecework:handler/jobs@0.1.0" (instance
                (export "cancelled" (func (result string)))))"#,
                RUN,
            ),
        ),
        (
            "gc",
            wat::parse_str(format!(
                r#"(component (core module $guest
                (type $point (struct (field i32)))
                (func (export "run") (drop (struct.new $point (i32.const 1)))))
            (core instance $guest (instantiate $guest)) {RUN})"#
            ))
            .unwrap(),
        ),
        (
            "exceptions",
            wat::parse_str(format!(
                r#"(component (core module $guest
                (tag $e)
                (func (export "run") (throw $e)))
            (core instance $guest (instantiate $guest)) {RUN})"#
            ))
            .unwrap(),
        ),
        ("start-trap", guests::text("start_trap")),
        ("big-start", guests::text("big_start_memory")),
    ]
}

fn put(folder: &Folder, files: &[(&str, Vec<u8>)]) {
    for (name, content) in files {
        folder.put(name, content);
    }
}

/// The words stand in `tests/golden/plugins_check.txt`; with PIECEWORK_BLESS=1 in the environment they are written anew, to be read.
#[test]
fn process_o_33_every_bad_file_is_told_its_cause_and_the_way_out() {
    let folder = Folder::new();
    let files = [o_33(), others()].concat();
    put(&folder, &files);
    let names: Vec<_> = files
        .iter()
        .map(|(name, _)| format!("{name}.wasm"))
        .collect();
    let mut arguments = vec!["plugins", "check", "nowhere.wasm"];
    arguments.extend(names.iter().map(String::as_str));
    let output = run(None, folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    assert_eq!(text(&output.stderr), "");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/plugins_check.txt");
    if std::env::var_os("PIECEWORK_BLESS").is_some() {
        std::fs::write(&golden, said.clone() + "\n").unwrap();
    }
    let expected = std::fs::read_to_string(golden).unwrap();
    for (line, expected) in said.lines().zip(expected.lines()) {
        assert_eq!(line, expected);
    }
    assert_eq!(said.lines().count(), expected.lines().count());
    for name in std::iter::once("nowhere.wasm").chain(names.iter().map(String::as_str)) {
        let begin = said
            .lines()
            .position(|line| line.starts_with(&format!("{name}: refused: ")));
        let more = said.lines().skip(begin.unwrap() + 1);
        let lines = 1 + more.take_while(|line| line.starts_with("  ")).count();
        assert!((2..=3).contains(&lines), "{name}: {lines} lines");
    }
}

#[test]
fn process_a_good_file_is_shown_with_all_that_it_imports() {
    let folder = Folder::with(&[("mail", "flaky")]);
    let output = run(None, folder.path(), &["plugins", "check", "mail.wasm"]);
    assert_eq!(output.status.code(), Some(0));
    let said = text(&output.stdout);
    let lines: Vec<_> = said.lines().collect();
    assert!(
        lines[0].starts_with("mail.wasm: can serve `mail` ("),
        "{said}"
    );
    assert!(
        lines[1].starts_with("  imports  WASI 0.2 (cli, io), piecework:handler@0.1.0 ("),
        "{said}"
    );
    assert!(lines[1].contains("types"), "{said}");
    assert_eq!(
        lines[2],
        format!("  sha256   {}", hex(&digest(&guests::bytes("flaky"))))
    );
    folder.put("later", &guests::bytes("flaky"));
    folder.put(
        "bad",
        &others()
            .iter()
            .find(|(name, _)| *name == "unknown")
            .unwrap()
            .1,
    );
    let arguments = ["plugins", "check", "--json", "later.wasm", "bad.wasm"];
    let output = run(None, folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(1));
    let told: serde_json::Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    assert_eq!(told[0]["ok"], true);
    assert_eq!(told[0]["world"], "piecework:handler@0.1.0");
    assert!(
        told[0]["exports"]
            .as_array()
            .unwrap()
            .iter()
            .any(|item| item["name"] == "run")
    );
    let unknown = told[1]["unknown_imports"].as_array().unwrap();
    assert_eq!(unknown.len(), 6);
    assert_eq!(unknown[2]["wanted"], "0.3.0");
    assert!(
        unknown[2]["offered"][0]
            .as_str()
            .unwrap()
            .starts_with("0.2.")
    );
}

/// Longest until a bad file is listed as refused, as O-33 has it.
const SOON: Duration = Duration::from_secs(5);

/// The host starts with all of them and gets them live: each is refused with its own reason, the others work, the jobs wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_o_33_a_host_works_on_beside_files_that_cannot_load() {
    let db = Db::new().await;
    let folder = Folder::with(&[("noop", "noop")]);
    let bad = [o_33(), others()].concat();
    put(&folder, &bad);
    // With the usual 2 s it took 3.9 s on a busy machine.
    let settings = SHORT.replace("slots = 4", "slots = 4\nplugins_interval = '1s'");
    let begun = Instant::now();
    let host = Host::start(&db, folder.path(), &settings);
    host.ready().await;
    let mut waiting = Vec::new();
    for (name, _) in &bad {
        waiting.push(db.enqueue(name, "{}").await);
    }
    let id = db.enqueue("noop", "{}").await;
    db.becomes(id, "done").await;
    host.reaches("plugin refused", bad.len()).await;
    assert!(begun.elapsed() < SOON, "{:?} at the start", begun.elapsed());
    // Live: under other names, and a good one replaced by a bad one.
    let live: Vec<_> = bad
        .iter()
        .map(|(name, content)| (format!("live-{name}"), content))
        .collect();
    let begun = Instant::now();
    for (name, content) in &live {
        folder.put(name, content);
        waiting.push(db.enqueue(name, "{}").await);
    }
    folder.put("noop", live[0].1);
    let all = 2 * bad.len() + 1;
    host.reaches("plugin refused", all).await;
    assert!(begun.elapsed() < SOON, "{:?} live", begun.elapsed());
    let id = db.enqueue("noop", "{}").await;
    db.becomes(id, "done").await;
    let records = host.records("plugin refused");
    let logged = |name: &str| {
        let record = records.iter().find(|record| record["plugin"] == name);
        record.unwrap()["reason"].as_str().unwrap().to_owned()
    };
    let folder_path = folder.path().to_str().unwrap().to_owned();
    let list = ["plugins", "list", "--json", "--plugins", &folder_path];
    let output = run(None, folder.path(), &list);
    assert_eq!(output.status.code(), Some(1));
    let states: serde_json::Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    assert_eq!(states.as_array().unwrap().len(), 1 + 2 * bad.len());
    let mut reasons = std::collections::BTreeSet::new();
    for state in states.as_array().unwrap() {
        let name = state["name"].as_str().unwrap();
        assert_eq!(state["state"], "refused", "{name}");
        let reason = state["reason"].as_str().unwrap();
        assert_eq!(reason, logged(name), "{name}");
        reasons.insert(reason.to_owned());
    }
    for (name, _) in o_33() {
        assert!(reasons.remove(&logged(name)), "{name} has its own reason");
    }
    // The folder was looked at often enough; nothing was said twice.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(host.count("plugin refused"), all);
    assert_eq!(host.count("plugin loaded"), 1);
    for id in waiting {
        assert_eq!(db.state(id).await, "pending");
    }
    drop(host);
    db.drop().await;
}
