//! What becomes of the jobs of hosts that are killed: all are taken over in time, and the one that kills its hosts is
//! given up.

use std::time::Duration;

use piecework::store::NewJob;

use crate::support::db::Db;
use crate::support::guests::Folder;
use crate::support::process::{Host, SHORT};
use crate::support::until;

/// Nothing but what the defaults say: lease 20 s, beat 5 s, sweep 3 s.
#[tokio::test]
async fn process_8_jobs_of_a_host_that_was_killed_run_again_within_30_s_at_default_settings() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("probe", "probe")]);
    let mut first = Host::start(&db, plugins.path(), "");
    first.ready().await;
    // Less than the time limit of 30 s, more than the lease.
    db.enqueue_times(8, "probe", r#"{"do": "nap", "ms": 28000}"#)
        .await;
    db.until(
        8,
        "select count(*) from piecework.job where state = 'running'",
    )
    .await;
    let second = Host::start(&db, plugins.path(), "");
    second.ready().await;

    let killed_at = now(&db).await;
    first.kill();
    db.until(
        8,
        "select count(*) from piecework.job where state = 'running' and attempt = 2",
    )
    .await;
    let last = last_start(&db).await;
    assert!(last - killed_at < 30.0, "after {} s", last - killed_at);
    // The row is written before the handler is called.
    second.reaches("attempt started", 8).await;
    db.drop().await;
}

/// The third host starts when both leases have run out for sure: nobody was there to notice. (The case waits for 60 s.)
#[tokio::test]
async fn process_o_03_killing_every_host_loses_no_job() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("probe", "probe")]);
    let mut hosts = [
        Host::start(&db, plugins.path(), SHORT),
        Host::start(&db, plugins.path(), SHORT),
    ];
    for host in &hosts {
        host.ready().await;
    }
    db.enqueue_times(8, "probe", r#"{"do": "nap", "ms": 25000}"#)
        .await;
    db.until(
        8,
        "select count(*) from piecework.job where state = 'running'",
    )
    .await;
    for host in &mut hosts {
        host.kill();
    }
    db.until(
        2,
        "select count(*) from piecework.runner where state = 'live' and lease_until < now()",
    )
    .await;
    assert_eq!(
        db.number("select count(*) from piecework.job where state = 'running'")
            .await,
        8
    );

    let third = Host::start_on(db.url(), plugins.path(), SHORT, &["--slots", "8"]);
    third.ready().await;
    db.until(
        8,
        "select count(*) from piecework.job where state = 'running' and attempt = 2",
    )
    .await;
    // Lease 5 s and 2 s more; the leases are over, so it takes little more than a sweep.
    let late = last_start(&db).await - registered(&db, third.runner()).await;
    assert!(
        late < 7.0,
        "the last one started {late} s after the third host was there"
    );
    still_nothing_is_forgotten(&db).await;
    third.reaches("attempt started", 8).await;
    assert_eq!(
        db.number("select count(*) from piecework.job_history")
            .await,
        0,
        "none failed"
    );
    db.drop().await;
}

/// The same when the next host is there at once, while the leases of the dead ones still hold.
#[tokio::test]
async fn process_o_03_a_host_that_starts_right_after_all_were_killed_recovers_every_job() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("probe", "probe")]);
    let mut hosts = [
        Host::start(&db, plugins.path(), SHORT),
        Host::start(&db, plugins.path(), SHORT),
    ];
    for host in &hosts {
        host.ready().await;
    }
    db.enqueue_times(8, "probe", r#"{"do": "nap", "ms": 25000}"#)
        .await;
    db.until(
        8,
        "select count(*) from piecework.job where state = 'running'",
    )
    .await;
    for host in &mut hosts {
        host.kill();
    }
    let third = Host::start_on(db.url(), plugins.path(), SHORT, &["--slots", "8"]);
    third.ready().await;
    db.until(
        8,
        "select count(*) from piecework.job where state = 'running' and attempt = 2",
    )
    .await;
    let late = last_start(&db).await - registered(&db, third.runner()).await;
    assert!(
        late < 7.0,
        "the last one started {late} s after the third host was there"
    );
    still_nothing_is_forgotten(&db).await;
    db.drop().await;
}

/// Job P naps until its host is killed, three times; a hundred others run beside it. A lease of 3 s in place of 5 s, and
/// the kill comes at once and not a second later, so that the test takes 15 s.
#[tokio::test]
async fn process_o_06_a_job_that_kills_its_host_is_given_up_and_its_neighbours_are_not() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("probe", "probe")]);
    let settings = "
        [database]
        call_timeout = '2s'
        [runner]
        slots = 4
        lease = '3s'
        beat = '1s'
        reap_interval = '1s'
    ";
    let mut host = Host::start(&db, plugins.path(), settings);
    host.ready().await;
    // Always claimed first, so that there is company at every kill.
    let killer = NewJob {
        job_type: "probe".into(),
        payload: r#"{"do": "nap", "ms": 25000}"#.into(),
        priority: Some(1),
        max_attempts: Some(3),
        ..NewJob::default()
    };
    let killer = db.store.enqueue(&killer).await.unwrap();
    let others = db
        .enqueue_times(100, "probe", r#"{"do": "nap", "ms": 300}"#)
        .await;
    for kill in 1..=3 {
        until("P to start with company", || async {
            (host.starts(killer) == 1 && host.count("attempt started") > 3).then_some(())
        })
        .await;
        host.kill();
        assert_eq!(host.starts(killer), 1);
        let attempt = db
            .text(
                "select attempt::text from piecework.job where id = $1",
                killer,
            )
            .await;
        assert_eq!(attempt, Some(kill.to_string()), "raised by the claim");
        host = Host::start(&db, plugins.path(), settings);
    }
    db.becomes(killer, "failed").await;
    let reason = db
        .text(
            "select failure || ': ' || last_error from piecework.jobs where id = $1",
            killer,
        )
        .await
        .unwrap();
    assert!(
        reason.starts_with("host_lost: the runner that ran it is gone"),
        "{reason}"
    );
    assert!(reason.ends_with("no attempt is left"), "{reason}");
    assert_eq!(
        db.number("select max(attempt)::bigint from piecework.job_history where state = 'failed'")
            .await,
        3
    );
    assert_eq!(host.starts(killer), 0, "a fourth start");

    db.until(
        i64::try_from(others.len()).unwrap(),
        "select count(*) from piecework.job_history where state = 'done'",
    )
    .await;
    // Each attempt but the last is one that a kill took.
    let wrong = "select count(*) from piecework.job_history
        where state = 'done' and (attempt <> 1 + coalesce(jsonb_array_length(attempts), 0)
          or exists (select from jsonb_array_elements(attempts) a where a ->> 'failure' <> 'host_lost'))";
    assert_eq!(db.number(wrong).await, 0);
    // Three shared the host each time, at most.
    let punished = db
        .number("select sum(attempt - 1)::bigint from piecework.job_history where state = 'done'")
        .await;
    assert!((1..=9).contains(&punished), "{punished}");
    db.drop().await;
}

/// Seconds since 1970 by the database's clock.
async fn now(db: &Db) -> f64 {
    seconds(db, "select extract(epoch from clock_timestamp())::float8").await
}

async fn last_start(db: &Db) -> f64 {
    seconds(
        db,
        "select extract(epoch from max(started_at))::float8 from piecework.job",
    )
    .await
}

async fn seconds(db: &Db, query: &'static str) -> f64 {
    sqlx::query_scalar(query).fetch_one(&db.pool).await.unwrap()
}

async fn registered(db: &Db, runner: i64) -> f64 {
    let query = "select extract(epoch from started_at)::float8 from piecework.runner where id = $1";
    sqlx::query_scalar(query)
        .bind(runner)
        .fetch_one(&db.pool)
        .await
        .unwrap()
}

/// From now on nothing runs whose owner's lease ran out long ago: looked at over three sweeps.
async fn still_nothing_is_forgotten(db: &Db) {
    let forgotten = "select count(*) from piecework.job j left join piecework.runner r on r.id = j.runner
        where j.state = 'running' and (r.id is null or r.state in ('dead', 'stopped') or r.lease_until < now() - interval '2 seconds')";
    for _ in 0..30 {
        assert_eq!(db.number(forgotten).await, 0);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
