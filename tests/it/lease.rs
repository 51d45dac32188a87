//! Who owns a job: nobody else while its runner renews the lease, and nobody but the newest claim ever after.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use piecework::job::JobId;
use rustix::process::Signal;
use sqlx::Row;

use crate::support::db::Db;
use crate::support::guests::Folder;
use crate::support::process::{Host, SHORT};
use crate::support::until;

/// A lease that a short job outlives: 3 s in place of the 5 s of the case, so that the test takes 12 s and not 20 s.
const BRIEF: &str = "
[database]
call_timeout = '2s'
[runner]
slots = 10
lease = '3s'
beat = '1s'
reap_interval = '1s'
[defaults]
";

/// A job runs four leases long; each runner's lease must have been seen to move at least 3 times meanwhile.
#[tokio::test]
async fn process_o_01_a_job_that_runs_much_longer_than_its_lease_runs_once() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("probe", "probe")]);
    let settings = format!("{BRIEF}timeout = '60s'");
    let hosts = [
        Host::start(&db, plugins.path(), &settings),
        Host::start(&db, plugins.path(), &settings),
    ];
    for host in &hosts {
        host.ready().await;
    }
    // As many as there are slots, so that all run side by side.
    let jobs = db
        .enqueue_times(20, "probe", r#"{"do": "nap", "ms": 12000}"#)
        .await;
    db.until(
        20,
        "select count(*) from piecework.job where state = 'running'",
    )
    .await;

    let leases: RefCell<BTreeMap<i64, BTreeSet<String>>> = RefCell::default();
    until("the first job to end", || async {
        let seen = sqlx::query("select id, lease_until::text as lease from piecework.runner")
            .fetch_all(&db.pool)
            .await
            .unwrap();
        for row in seen {
            let mut leases = leases.borrow_mut();
            let of_runner = leases.entry(row.get("id")).or_default();
            of_runner.insert(row.get("lease"));
        }
        let ended = "select count(*) from piecework.job_history";
        (db.number(ended).await > 0).then_some(())
    })
    .await;
    db.until(
        20,
        "select count(*) from piecework.job_history where state = 'done' and attempt = 1 and attempts is null",
    )
    .await;

    let leases = leases.into_inner();
    assert_eq!(leases.len(), 2, "nobody registered anew: {leases:?}");
    for host in &hosts {
        assert!(leases[&host.runner()].len() > 3, "{leases:?}");
        assert_eq!(host.count("attempt started"), 10);
    }
    for job in jobs {
        assert_eq!(hosts.iter().map(|host| host.starts(job)).sum::<usize>(), 1);
    }
    db.drop().await;
}

/// The limit is longer than the lease (4 s and 3 s; the case says 10 s and 5 s), so it is not the lease that ends the jobs.
#[tokio::test]
async fn process_o_01_only_its_own_time_limit_ends_a_long_job() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("probe", "probe")]);
    let settings = format!("{BRIEF}timeout = '4s'\nretry_base = '100ms'\nretry_factor = 1.0");
    let hosts = [
        Host::start(&db, plugins.path(), &settings),
        Host::start(&db, plugins.path(), &settings),
    ];
    for host in &hosts {
        host.ready().await;
    }
    let job = r#"{"job_type": "probe", "max_attempts": 2, "payload": {"do": "nap", "ms": 15000}}"#;
    let jobs = format!("[{}]", [job; 6].join(","));
    db.store.enqueue_many(&jobs).await.unwrap();
    db.until(
        6,
        "select count(*) from piecework.job_history where state = 'failed'",
    )
    .await;

    // The last attempt by the database's clock from claim to verdict, the first by the runner's.
    let wrong = "select count(*) from piecework.job_history
        where attempt <> 2 or failure <> 'timeout' or last_error not like '%time limit of 4s%' or runner is null
           or finished_at - started_at not between interval '3 seconds' and interval '5 seconds'
           or jsonb_array_length(attempts) <> 1 or attempts -> 0 ->> 'failure' <> 'timeout'
           or (attempts -> 0 ->> 'run_us')::bigint not between 3000000 and 5000000";
    assert_eq!(db.number(wrong).await, 0);
    assert_eq!(
        hosts
            .iter()
            .map(|host| host.count("attempt started"))
            .sum::<usize>(),
        12
    );
    db.drop().await;
}

/// Three jobs at once: one that the second host has finished when the first one wakes, one that it still runs, and one
/// whose attempt on the first host ends with an error.
#[tokio::test]
async fn process_o_02_a_host_that_comes_back_after_losing_a_job_changes_nothing() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("probe", "probe")]);
    let (mut first, second) = two_hosts(&db, &plugins, SHORT).await;
    second.signal(Signal::STOP);
    let finished = db.enqueue("probe", r#"{"do": "nap", "ms": 1500}"#).await;
    let running = db.enqueue("probe", r#"{"do": "nap", "ms": 6000}"#).await;
    let error = db
        .enqueue("probe", r#"{"do": "call", "ms": 1500, "until": 1}"#)
        .await;
    let all = [finished, running, error];
    until("three attempts on the first host", || async {
        (first.count("attempt started") == 3).then_some(())
    })
    .await;
    first.signal(Signal::STOP);
    second.signal(Signal::CONT);
    let lost = first.runner();

    for id in [finished, error] {
        db.becomes(id, "done").await;
    }
    assert_eq!(db.state(running).await, "running");
    let before = standing(&db, &all, lost).await;
    first.signal(Signal::CONT);
    // Whatever it has to say it says before it registers under a new id, or right after.
    until("the first host to register anew", || async {
        (first.runner() != lost).then_some(())
    })
    .await;
    assert_eq!(db.state(running).await, "running", "it woke too late");
    assert_eq!(standing(&db, &all, lost).await, before);
    db.becomes(running, "done").await;

    for id in all {
        assert_eq!((first.starts(id), second.starts(id)), (1, 1));
        outcome_is_the_second_host_s(&db, id, &second).await;
        let dropped = first.records("result dropped, the job was taken over");
        let of_it = dropped
            .iter()
            .filter(|record| record["job"] == id.to_string());
        assert!(of_it.count() <= 1, "said once: {dropped:?}");
    }
    assert_eq!(first.count("job done") + first.count("attempt failed"), 0);
    takes_the_next_job(&db, &mut first, 4).await;
    db.drop().await;
}

/// The first host does not notice: its lease is taken away in the database while it waits for its next beat, so what its
/// guests return is sent, and must match nothing.
#[tokio::test]
async fn process_o_02_a_result_that_comes_too_late_is_dropped_and_logged_once() {
    let db = Db::new().await;
    let settings = "
        [runner]
        slots = 2
        lease = '15s'
        beat = '5s'
        reap_interval = '200ms'
        [defaults]
    ";
    let plugins = Folder::with(&[("probe", "probe")]);
    let (mut first, second) = two_hosts(&db, &plugins, settings).await;
    a_beat(&db, &first).await;
    // All that follows is over before the next one. Two slots, so that it has none free to claim with.
    second.signal(Signal::STOP);
    let good = db.enqueue("probe", r#"{"do": "nap", "ms": 1500}"#).await;
    let bad = db
        .enqueue("probe", r#"{"do": "call", "ms": 1500, "until": 1}"#)
        .await;
    until("two attempts on the first host", || async {
        (first.count("attempt started") == 2).then_some(())
    })
    .await;
    second.signal(Signal::CONT);
    let lost = first.runner();
    expire(&db, lost).await;

    until("both results to be dropped", || async {
        (first.count("result dropped, the job was taken over") == 2).then_some(())
    })
    .await;
    for id in [good, bad] {
        db.becomes(id, "done").await;
        outcome_is_the_second_host_s(&db, id, &second).await;
    }
    until("the first host to register anew", || async {
        (first.runner() != lost).then_some(())
    })
    .await;
    assert_eq!(first.count("result dropped, the job was taken over"), 2);
    assert_eq!(first.count("job done") + first.count("attempt failed"), 0);
    takes_the_next_job(&db, &mut first, 2).await;
    db.drop().await;
}

/// The database declares it dead while it is well, as after a jump of the database's clock: until its next beat tells it so,
/// it must not use up the attempts of jobs that others take back at once.
#[tokio::test]
async fn process_o_02_a_host_that_was_declared_dead_claims_nothing_until_it_registers_anew() {
    let db = Db::new().await;
    let settings = "
        [runner]
        slots = 4
        lease = '15s'
        beat = '5s'
        reap_interval = '200ms'
        poll = '200ms'
        [defaults]
    ";
    let plugins = Folder::with(&[("probe", "probe")]);
    let (first, _second) = two_hosts(&db, &plugins, settings).await;
    let lost = first.runner();
    a_beat(&db, &first).await;
    expire(&db, lost).await;
    db.until(
        1,
        "select count(*) from piecework.runner where state = 'dead'",
    )
    .await;
    db.enqueue_times(4, "mine", r#"{"do": "nap", "ms": 1000}"#)
        .await;
    db.until(4, "select count(*) from piecework.job_history")
        .await;
    let wrong = "select count(*) from piecework.job_history where attempt > 1 or state <> 'done'";
    assert_eq!(db.number(wrong).await, 0);
    assert_ne!(first.runner(), lost);
    db.drop().await;
}

/// Waits until this host has just renewed its lease.
async fn a_beat(db: &Db, host: &Host) {
    let lease = || async {
        let lease = "select lease_until::text from piecework.runner where id = $1";
        sqlx::query_scalar::<_, String>(lease)
            .bind(host.runner())
            .fetch_one(&db.pool)
            .await
            .unwrap()
    };
    let before = lease().await;
    until("a beat", || async {
        (lease().await != before).then_some(())
    })
    .await;
}

/// Ends a lease that its owner believes in.
async fn expire(db: &Db, runner: i64) {
    let expire =
        "update piecework.runner set lease_until = now() - interval '1 second' where id = $1";
    sqlx::query(expire)
        .bind(runner)
        .execute(&db.pool)
        .await
        .unwrap();
}

/// Two ready hosts. The first one serves the job type `mine` as well.
async fn two_hosts(db: &Db, plugins: &Folder, settings: &str) -> (Host, Host) {
    let both = format!("{settings}\n[plugins.probe]\njob_types = ['probe', 'mine']");
    let hosts = (
        Host::start(db, plugins.path(), &both),
        Host::start(db, plugins.path(), settings),
    );
    hosts.0.ready().await;
    hosts.1.ready().await;
    hosts
}

/// The rows of these jobs and of the runner that lost them, to the letter.
async fn standing(db: &Db, ids: &[JobId], lost: i64) -> Vec<String> {
    sqlx::query_scalar(
        "select to_jsonb(j)::text from piecework.job j where id = any ($1)
         union all select to_jsonb(h)::text from piecework.job_history h where id = any ($1)
         union all select to_jsonb(r)::text from piecework.runner r where id = $2
         order by 1",
    )
    .bind(ids.iter().map(|id| id.0).collect::<Vec<_>>())
    .bind(lost)
    .fetch_all(&db.pool)
    .await
    .unwrap()
}

async fn outcome_is_the_second_host_s(db: &Db, id: JobId, second: &Host) {
    let row = sqlx::query(
        "select attempt, runner, failure, attempts -> 0 ->> 'failure' as lost, jsonb_array_length(attempts) as earlier
         from piecework.job_history where id = $1 and state = 'done'",
    )
    .bind(id.0)
    .fetch_one(&db.pool)
    .await
    .unwrap();
    assert_eq!(row.get::<i32, _>("attempt"), 2);
    assert_eq!(row.get::<i64, _>("runner"), second.runner());
    assert_eq!(row.get::<Option<String>, _>("failure"), None);
    assert_eq!(row.get::<String, _>("lost"), "host_lost");
    assert_eq!(row.get::<i32, _>("earlier"), 1);
}

/// It is healthy, and has neither more nor fewer slots than before.
async fn takes_the_next_job(db: &Db, host: &mut Host, slots: i64) {
    db.enqueue_times(12, "mine", r#"{"do": "nap", "ms": 400}"#)
        .await;
    let most = Cell::new(0);
    let runs = "select count(*) from piecework.job where state = 'running' and job_type = 'mine'";
    let done = "select count(*) from piecework.job_history where state = 'done' and job_type = 'mine' and attempt = 1";
    until("twelve jobs on the first host", || async {
        most.set(most.get().max(db.number(runs).await));
        (db.number(done).await == 12).then_some(())
    })
    .await;
    assert_eq!(most.get(), slots);
    host.signal(Signal::TERM);
    assert!(host.ended().await.success());
}
