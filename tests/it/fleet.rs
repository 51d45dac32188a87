//! Limits that hold over all runners: jobs that run at once, of a type and of a group, and starts in an interval.

use std::cell::Cell;

use piecework::config::Span;
use piecework::runner::Runner;

use super::support::db::Db;
use super::support::guests::Folder;
use super::support::process::{Host, SHORT};
use super::support::until;

/// Most jobs that were under way at the same time, by the times that the database noted.
const MOST_AT_ONCE: &str = "
    select coalesce(max(n), 0) from (
      select (select count(*) from piecework.job_history b
              where b.started_at <= a.started_at and a.started_at < b.finished_at) as n
      from piecework.job_history a) t";

/// Several runners with the probe and the settings that `set` makes.
async fn start(
    db: &Db,
    runners: usize,
    set: fn(&mut piecework::config::Config),
) -> (Vec<Runner>, Folder) {
    let folder = Folder::with(&[("probe", "probe"), ("noop", "noop")]);
    let mut all = Vec::new();
    for _ in 0..runners {
        let mut config = db.config(folder.path());
        set(&mut config);
        all.push(Runner::start(config, db.store.clone()).await.unwrap());
    }
    (all, folder)
}

async fn stop(db: Db, runners: Vec<Runner>) {
    for runner in runners {
        runner.halt();
        runner.join().await;
    }
    db.drop().await;
}

async fn all_done(db: &Db, jobs: i64) {
    db.until(0, "select count(*) from piecework.job").await;
    let done = "select count(*) from piecework.job_history where state = 'done'";
    assert_eq!(db.number(done).await, jobs);
}

/// Naps of 0.3 s in place of 2 s, a lease of 5 s. A dead host's jobs count until they are taken back, and then no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_o_26_a_limit_of_the_fleet_holds_and_does_not_leak_when_hosts_die() {
    let db = Db::new().await;
    let folder = Folder::with(&[("probe", "probe")]);
    let settings = format!("{SHORT}\n[plugins.probe]\nfleet_concurrency = 2\n");
    let mut hosts: Vec<_> = (0..3)
        .map(|_| Host::start(&db, folder.path(), &settings))
        .collect();
    for host in &hosts {
        host.ready().await;
    }
    db.enqueue_times(30, "probe", r#"{"do": "nap", "ms": 300}"#)
        .await;
    let most = Cell::new(0);
    let ended = Cell::new(0);
    let watch = |goal: i64| {
        let (db, most, ended) = (&db, &most, &ended);
        async move {
            until("jobs to end", || async {
                let running = "select count(*) from piecework.job where state = 'running'";
                most.set(most.get().max(db.number(running).await));
                ended.set(
                    db.number("select count(*) from piecework.job_history")
                        .await,
                );
                (ended.get() >= goal).then_some(())
            })
            .await;
        }
    };
    for (kill, goal) in [(0, 5), (1, 10), (2, 15)] {
        watch(goal).await;
        // The one that runs something, where it can be told.
        hosts[kill].kill();
        hosts[kill] = Host::start(&db, folder.path(), &settings);
    }
    watch(30).await;
    assert_eq!(most.get(), 2, "running at once");
    assert_eq!(db.number(MOST_AT_ONCE).await, 2, "by their times");
    all_done(&db, 30).await;
    drop(hosts);
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_for_groups_holds_for_each_of_them() {
    let db = Db::new().await;
    let (runners, _folder) = start(&db, 2, |config| {
        config.defaults.group_concurrency = 2;
    })
    .await;
    for group in ["a", "b", "c"] {
        let job = format!(
            r#"{{"job_type": "probe", "payload": {{"do": "nap", "ms": 60}}, "group_key": "{group}"}}"#
        );
        let jobs = format!("[{}]", vec![job; 12].join(","));
        db.store.enqueue_many(&jobs).await.unwrap();
    }
    all_done(&db, 36).await;
    let of_a_group = "
        select max(n) from (
          select (select count(*) from piecework.job_history b
                  where b.group_key = a.group_key and b.started_at <= a.started_at and a.started_at < b.finished_at) as n
          from piecework.job_history a) t";
    assert_eq!(db.number(of_a_group).await, 2);
    assert!(
        db.number(MOST_AT_ONCE).await > 2,
        "groups do not wait for each other"
    );
    stop(db, runners).await;
}

/// Most starts in any 500 ms, of a group or, with `$all`, of all.
const MOST_STARTS: &str = "
    select max(n) from (
      select (select count(*) from piecework.job_history b
              where b.started_at >= a.started_at and b.started_at < a.started_at + interval '500 milliseconds') as n
      from piecework.job_history a) t";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_interval_sees_more_starts_than_the_rate_allows() {
    let db = Db::new().await;
    let (runners, _folder) = start(&db, 2, |config| {
        config.defaults.starts = 10;
        config.defaults.starts_per = Span::millis(500);
    })
    .await;
    db.enqueue_times(50, "noop", "{}").await;
    all_done(&db, 50).await;
    assert_eq!(db.number(MOST_STARTS).await, 10);
    // And not much less than it allows: 50 starts take 4 intervals, or a tenth more.
    let took = "select (extract(epoch from max(started_at) - min(started_at)) * 1000)::bigint from piecework.job_history";
    let took = db.number(took).await;
    assert!(took >= 2000, "{took} ms");
    stop(db, runners).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_rate_for_groups_holds_for_each_of_them() {
    let db = Db::new().await;
    let (runners, _folder) = start(&db, 2, |config| {
        config.defaults.group_starts = 4;
        config.defaults.starts_per = Span::millis(500);
    })
    .await;
    for group in ["a", "b"] {
        let job = format!(r#"{{"job_type": "noop", "group_key": "{group}"}}"#);
        let jobs = format!("[{}]", vec![job; 12].join(","));
        db.store.enqueue_many(&jobs).await.unwrap();
    }
    db.enqueue_times(5, "noop", "{}").await;
    all_done(&db, 29).await;
    let of_a_group = "
        select max(n) from (
          select (select count(*) from piecework.job_history b
                  where b.group_key = a.group_key and b.started_at >= a.started_at
                    and b.started_at < a.started_at + interval '500 milliseconds') as n
          from piecework.job_history a) t";
    assert_eq!(db.number(of_a_group).await, 4);
    assert!(db.number(MOST_STARTS).await >= 8, "each has its own");
    stop(db, runners).await;
}

/// A type that is full takes nothing from the others, which have picks of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_type_holds_up_no_other() {
    let db = Db::new().await;
    let (runners, _folder) = start(&db, 1, |config| {
        config.runner.slots = 4;
        let probe = config.plugins.entry("probe".into()).or_default();
        probe.fleet_concurrency = Some(1);
    })
    .await;
    db.enqueue_times(5, "probe", r#"{"do": "nap", "ms": 1000}"#)
        .await;
    db.enqueue_times(200, "noop", "{}").await;
    db.until(
        200,
        "select count(*) from piecework.job_history where job_type = 'noop'",
    )
    .await;
    let left = "select count(*) from piecework.job where job_type = 'probe'";
    assert!(db.number(left).await >= 2, "the others did not wait");
    all_done(&db, 205).await;
    stop(db, runners).await;
}
