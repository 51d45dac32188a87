//! A large component comes while jobs run, and comes back quickly after a restart.

use std::time::Duration;

use super::support::db::Db;
use super::support::guests::Folder;
use super::support::process::{Host, SHORT};
use super::support::{large, until};

/// Jobs that did not end well, or not on their first attempt.
const BAD: &str = "select count(*) from piecework.job_history where state <> 'done' or attempt > 1 or attempts is not null";

#[tokio::test]
async fn process_a_large_component_is_compiled_while_jobs_run_and_once() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("noop", "noop")]);
    let compiled = Folder::new();
    let cache = compiled.path().join("compiled");
    let settings = format!("{SHORT}[engine]\ncache = '{}'\n", cache.display());
    let mut host = Host::start(&db, plugins.path(), &settings);
    host.ready().await;
    plugins.put("large", &large::component());
    let mut jobs = 0;
    let loaded = until("the large component", || async {
        // Half of the lease of 5 s: it is renewed every second.
        let late =
            "select count(*) from piecework.runner where lease_until < now() + interval '2.5 s'";
        assert_eq!(db.number(late).await, 0);
        let records = host.records("plugin loaded");
        records
            .into_iter()
            .find(|record| record["plugin"] == "large")
    });
    let flow = async {
        loop {
            jobs += db.enqueue_times(10, "noop", "{}").await.len();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let loaded = tokio::select! {
        loaded = loaded => loaded,
        () = flow => unreachable!(),
    };
    assert_eq!(loaded["cached"], false);
    let compile_ms = loaded["compile_ms"].as_u64().unwrap();
    let waited = "select coalesce(percentile_disc(array[0.5, 0.99, 1]) within group (order by extract(epoch from started_at - due_at) * 1000)::text, '') \
                  from piecework.job_history where job_type = 'noop'";
    eprintln!("compiled in {compile_ms} ms beside {jobs} jobs");
    let large = db.enqueue("large", "{}").await;
    db.becomes(large, "done").await;
    db.until(0, "select count(*) from piecework.job").await;
    let waited: String = sqlx::query_scalar(waited)
        .fetch_one(&db.pool)
        .await
        .unwrap();
    eprintln!("pick-up p50, p99, max in ms: {waited}");
    assert!(jobs > 0);
    assert_eq!(db.number(BAD).await, 0);
    for bad in [
        "the lease is lost: its handlers were stopped, others may run their jobs",
        "the lease could not be renewed",
    ] {
        assert_eq!(host.count(bad), 0, "{bad}");
    }
    // It was compiled elsewhere.
    assert_eq!(
        host.count("a component is compiled in a process of its own"),
        1
    );
    host.signal(rustix::process::Signal::TERM);
    host.ended().await;

    let host = Host::start(&db, plugins.path(), &settings);
    host.ready().await;
    let records = host.records("plugin loaded");
    let again = records.iter().find(|record| record["plugin"] == "large");
    let again = again.expect("loaded before it registers");
    assert_eq!(again["cached"], true);
    // Half a second is what it should be where nothing else runs.
    let again = again["compile_ms"].as_u64().unwrap();
    eprintln!("from the cache in {again} ms");
    assert!(again < 2000, "{again} ms");
    let large = db.enqueue("large", "{}").await;
    db.becomes(large, "done").await;
    drop(host);
    db.drop().await;
}
