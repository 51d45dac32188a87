//! Plugins of the fleet on runners: what is pushed serves everywhere, what is broken nowhere, and a canary that traps ends by itself.

use std::path::Path;
use std::time::Instant;

use piecework::engine::{digest, hex};
use piecework::store::{AutoRollback, Change};

use super::support::db::Db;
use super::support::field::{piecework, printed};
use super::support::guests::{self, Folder};
use super::support::process::{Host, SHORT};
use super::support::until;

fn version(component: &[u8]) -> String {
    hex(&digest(component))
}

/// Which version ran a job, in hex.
async fn ran(db: &Db, payload: &str) -> String {
    let id = db.enqueue("mail", payload).await;
    db.becomes(id, "done").await;
    let plugin = "select encode(plugin, 'hex') from piecework.job_history where id = $1";
    db.text(plugin, id).await.unwrap()
}

fn push(db: &Db, file: &Path, more: &[&str]) -> std::process::Output {
    let mut arguments = vec!["plugins", "push", file.to_str().unwrap(), "--type", "mail"];
    arguments.extend(more);
    piecework(db.url(), &arguments, "")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_three_runners_serve_what_is_pushed_and_nothing_broken() {
    let db = Db::new().await;
    let folders: Vec<_> = (0..3).map(|_| Folder::with(&[("mail", "noop")])).collect();
    let hosts: Vec<_> = folders
        .iter()
        .map(|folder| Host::start(&db, folder.path(), SHORT))
        .collect();
    for host in &hosts {
        host.ready().await;
    }
    let (noop, probe) = (guests::bytes("noop"), guests::bytes("probe"));
    assert_eq!(ran(&db, "{}").await, version(&noop));
    let files = Folder::with(&[("probe", "probe")]);
    std::fs::write(files.path().join("broken.wasm"), guests::text("start_trap")).unwrap();

    let begun = Instant::now();
    let pushed = push(&db, &files.path().join("probe.wasm"), &["--json"]);
    let took = begun.elapsed();
    assert!(pushed.status.success(), "{}", printed(&pushed));
    println!("three runners served it {took:?} after the push began");
    let answer: serde_json::Value = serde_json::from_slice(&pushed.stdout).unwrap();
    let states: Vec<_> = answer["runners"]
        .as_array()
        .unwrap()
        .iter()
        .map(|runner| &runner["state"])
        .collect();
    assert_eq!(states, ["serving"; 3]);
    for _ in 0..9 {
        assert_eq!(ran(&db, r#"{"do":"echo"}"#).await, version(&probe));
    }
    // The rule when both serve a type is there to be seen.
    let list = piecework(db.url(), &["plugins", "list"], "");
    let text = String::from_utf8(list.stdout).unwrap();
    assert!(list.status.success(), "{text}");
    assert_eq!(text.matches("overridden").count(), 3, "{text}");
    assert!(
        text.contains("the fleet serves `mail` with version"),
        "{text}"
    );

    // What is broken is refused by the command, and where that is switched off by each runner.
    let broken = files.path().join("broken.wasm");
    let refused = push(&db, &broken, &[]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(
        db.number("select count(*) from piecework.component").await,
        1
    );
    let refused = push(&db, &broken, &["--no-check"]);
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8(refused.stdout).unwrap();
    assert_eq!(
        text.matches("it does not start (trap)").count(),
        3,
        "{text}"
    );
    assert_eq!(ran(&db, r#"{"do":"echo"}"#).await, version(&probe));

    // A runner that starts now has nothing older to go on with: its file serves.
    let late = Host::start(&db, folders[0].path(), SHORT);
    late.ready().await;
    assert_eq!(late.count("release refused"), 1);
    let back = piecework(db.url(), &["plugins", "rollback", "mail"], "");
    assert!(back.status.success(), "{}", printed(&back));
    late.says("release loaded").await;
    for _ in 0..9 {
        assert_eq!(ran(&db, r#"{"do":"echo"}"#).await, version(&probe));
    }
    // One that starts serves the release from its first claim on.
    drop((hosts, late));
    let host = Host::start(&db, folders[1].path(), SHORT);
    assert_eq!(ran(&db, r#"{"do":"echo"}"#).await, version(&probe));
    let gone = piecework(db.url(), &["plugins", "withdraw", "mail"], "");
    assert!(gone.status.success(), "{}", printed(&gone));
    until("the file serves again", async || {
        (ran(&db, r#"{"do":"echo"}"#).await == version(&noop)).then_some(())
    })
    .await;
    drop(host);
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_a_canary_that_traps_is_rolled_back_and_no_job_is_lost() {
    let db = Db::new().await;
    let (noop, probe) = (guests::bytes("noop"), guests::bytes("probe"));
    let store = &db.store;
    let stable = store.push(&noop, None).await.unwrap();
    store.release("mail", Change::Push(stable)).await.unwrap();
    let canary = store.push(&probe, None).await.unwrap();
    let trial = Change::Canary(canary, 1000, AutoRollback::On);
    store.release("mail", trial).await.unwrap();
    let folder = Folder::new();
    let hosts: Vec<_> = (0..3)
        .map(|_| Host::start(&db, folder.path(), SHORT))
        .collect();
    for host in &hosts {
        host.ready().await;
    }
    // The handler that serves ignores the payload; the canary traps on it.
    until("the canary is rolled back", async || {
        for _ in 0..20 {
            db.enqueue("mail", r#"{"do":"boom","text":"broken"}"#).await;
        }
        let ended = "select count(*) from piecework.release_history where action = 'auto_rollback'";
        (db.number(ended).await > 0).then_some(())
    })
    .await;
    let all = "select count(*) from piecework.jobs";
    let enqueued = db.number(all).await;
    db.until(0, "select count(*) from piecework.job").await;
    let done = "select count(*) from piecework.job_history where state = 'done'";
    assert_eq!(db.number(done).await, enqueued);
    // No job but those of the canary failed an attempt, and all ended on the stable version.
    let by_canary = "select count(*) from piecework.job_history where attempts is not null";
    let share = db.number(by_canary).await;
    assert!(share >= 5 && share < enqueued / 2, "{share} of {enqueued}");
    let elsewhere = "select count(*) from piecework.job_history where plugin <> (select stable from piecework.release)";
    assert_eq!(db.number(elsewhere).await, 0);
    let numbers = db.number("select (numbers->'canary'->>'failed')::bigint from piecework.release_history where action = 'auto_rollback'").await;
    println!(
        "rolled back after {numbers} failed attempts of the canary; {share} of {enqueued} jobs met it"
    );
    drop(hosts);
    db.drop().await;
}
