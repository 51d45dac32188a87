//! What a host claims: what it can start now, and of types that it serves, nothing else.

use std::cell::Cell;

use crate::support::db::Db;
use crate::support::guests::Folder;
use crate::support::process::{Host, SHORT, command};
use crate::support::until;

const TWO_SLOTS: [&str; 2] = ["--slots", "2"];

/// Naps of 1 s in place of 3 s. A host that claimed ahead would have all 40 before the other one is there.
#[tokio::test]
async fn process_o_07_a_host_claims_only_what_it_can_start_now() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("probe", "probe")]);
    let first = Host::start_on(db.url(), plugins.path(), SHORT, &TWO_SLOTS);
    first.ready().await;
    let second = Host::start_on(db.url(), plugins.path(), SHORT, &TWO_SLOTS);
    // It registers right after that, so it comes late, and not by much.
    second.says("plugin loaded").await;
    db.enqueue_times(40, "probe", r#"{"do": "nap", "ms": 1000}"#)
        .await;

    let most = Cell::new(0);
    until("40 jobs to be done", || async {
        let of_one = "select coalesce(max(n), 0) from
            (select count(*) as n from piecework.job where state = 'running' group by runner) t";
        most.set(most.get().max(db.number(of_one).await));
        (db.number("select count(*) from piecework.job_history")
            .await
            == 40)
            .then_some(())
    })
    .await;
    assert_eq!(most.get(), 2, "running rows of one host");
    let wrong = "select count(*) from piecework.job_history where state <> 'done' or attempt <> 1";
    assert_eq!(db.number(wrong).await, 0);
    for host in [&first, &second] {
        let started = host.count("attempt started");
        assert!((17..=23).contains(&started), "{started} of 40");
    }
    // None of them lay in a host between its claim and its start: run time and time from claim to finish are the same.
    let waited = "select count(*) from piecework.job_history
        where finished_at - started_at - run_us * interval '1 microsecond' > interval '700 milliseconds'";
    assert_eq!(db.number(waited).await, 0);
    db.drop().await;
}

/// Naps of 1 s again; a lease of 5 s.
#[tokio::test]
async fn process_o_07_a_killed_host_makes_no_more_jobs_late_than_it_has_slots() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("probe", "probe")]);
    let mut first = Host::start_on(db.url(), plugins.path(), SHORT, &TWO_SLOTS);
    let second = Host::start_on(db.url(), plugins.path(), SHORT, &TWO_SLOTS);
    first.ready().await;
    second.ready().await;
    db.enqueue_times(20, "probe", r#"{"do": "nap", "ms": 1000}"#)
        .await;
    until("the first host to work", || async {
        (first.count("job done") > 1).then_some(())
    })
    .await;
    first.kill();

    db.until(
        20,
        "select count(*) from piecework.job_history where state = 'done'",
    )
    .await;
    let late = db
        .number("select count(*) from piecework.job_history where attempt > 1")
        .await;
    assert!((1..=2).contains(&late), "{late} jobs were late");
    db.drop().await;
}

/// The plugin comes as soon as the others are done, not after 30 s.
#[tokio::test]
async fn process_o_15_jobs_of_a_type_that_no_host_serves_wait_untouched() {
    let db = Db::new().await;
    let (without, with) = (
        Folder::with(&[("probe", "probe")]),
        Folder::with(&[("probe", "probe")]),
    );
    let settings = SHORT.replace("[runner]", "[runner]\nplugins_interval = '300ms'");
    let first = Host::start(&db, without.path(), &settings);
    let second = Host::start(&db, with.path(), &settings);
    first.ready().await;
    second.ready().await;
    db.enqueue_times(100, "x", r#"{"do": "ok"}"#).await;
    db.enqueue_times(100, "probe", r#"{"do": "ok"}"#).await;
    db.until(100, "select count(*) from piecework.job_history where job_type = 'probe' and state = 'done' and attempt = 1").await;

    let untouched = "select count(*) from piecework.job
        where job_type = 'x' and state = 'pending' and attempt = 0 and attempts is null and last_error is null and claim is null";
    assert_eq!(db.number(untouched).await, 100);
    let status = status(&db);
    let line = status
        .lines()
        .find(|line| line.starts_with("x "))
        .unwrap_or_else(|| panic!("{status}"));
    assert!(
        line.contains("100") && line.contains("waiting for a plugin"),
        "{line}"
    );

    with.put("x", &crate::support::guests::bytes("probe"));
    db.until(100, "select count(*) from piecework.job_history where job_type = 'x' and state = 'done' and attempt = 1").await;
    let of_x = |host: &Host| {
        host.records("attempt started")
            .iter()
            .filter(|record| record["job_type"] == "x")
            .count()
    };
    until("the log to catch up", || async {
        (of_x(&second) == 100).then_some(())
    })
    .await;
    assert_eq!(of_x(&first), 0);
    db.drop().await;
}

fn status(db: &Db) -> String {
    let output = command()
        .arg("status")
        .env("DATABASE_URL", db.url())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}
