//! Ordering keys: jobs with one key run one after another in the order of their ids, over the whole fleet, retries included.

use std::time::Duration;

use piecework::job::JobId;
use piecework::runner::Runner;
use piecework::store::Verdict;

use super::fence::{demand, finish, runner};
use super::support::db::Db;
use super::support::guests::Folder;
use super::support::process::{Host, SHORT};
use super::support::until;

/// Pairs of neighbours of one key that ran out of order or at the same time.
const OUT_OF_ORDER: &str = "
    select count(*) from (
      select finished_at, started_at, state,
             lag(finished_at) over (partition by ordering_key order by id) as before
      from piecework.job_history where ordering_key is not null) h
    where h.started_at < h.before or h.finished_at < h.before";

fn keyed(job_type: &str, payload: &str, key: &str) -> String {
    format!(r#"{{"job_type": "{job_type}", "payload": {payload}, "ordering_key": "{key}"}}"#)
}

async fn enqueue(db: &Db, jobs: &[String]) -> Vec<JobId> {
    let jobs = format!("[{}]", jobs.join(","));
    db.store.enqueue_many(&jobs).await.unwrap()
}

/// A runner with the probe, and its plugins folder.
async fn start(db: &Db) -> (Runner, Folder) {
    let folder = Folder::with(&[("probe", "probe")]);
    let runner = Runner::start(db.config(folder.path()), db.store.clone())
        .await
        .unwrap();
    (runner, folder)
}

async fn all_ended(db: &Db) {
    db.until(0, "select count(*) from piecework.job").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_with_one_key_run_one_after_another_and_others_beside_them() {
    let db = Db::new().await;
    let folder = Folder::with(&[("probe", "probe"), ("noop", "noop")]);
    let runner = Runner::start(db.config(folder.path()), db.store.clone())
        .await
        .unwrap();
    let mut jobs = Vec::new();
    for n in 0..300 {
        // Of two types, since a key is one thing over all of them.
        let job_type = if n % 2 == 0 { "noop" } else { "probe" };
        jobs.push(keyed(job_type, r#"{"do":"ok"}"#, &format!("k{}", n % 12)));
    }
    jobs.push(r#"{"job_type": "noop"}"#.to_owned());
    let ids = enqueue(&db, &jobs).await;
    all_ended(&db).await;
    assert_eq!(db.number(OUT_OF_ORDER).await, 0);
    assert_eq!(
        db.number("select count(*) from piecework.job_history where state = 'done'")
            .await,
        301
    );
    assert_eq!(db.state(ids[300]).await, "done");
    runner.halt();
    runner.join().await;
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_tried_again_holds_up_its_key_until_it_has_ended() {
    let db = Db::new().await;
    let folder = Folder::with(&[("probe", "probe")]);
    let mut config = db.config(folder.path());
    config.defaults.retry_base = piecework::config::Span::millis(100);
    let runner = Runner::start(config, db.store.clone()).await.unwrap();
    let retry = r#"{"do":"fail","text":"not yet","disposition":"retry","until":3}"#;
    let discard = r#"{"do":"fail","text":"never","disposition":"discard"}"#;
    let ok = r#"{"do":"ok"}"#;
    let ids = enqueue(
        &db,
        &[
            keyed("probe", retry, "k"),
            keyed("probe", ok, "k"),
            keyed("probe", discard, "k"),
            keyed("probe", ok, "k"),
        ],
    )
    .await;
    all_ended(&db).await;
    assert_eq!(db.number(OUT_OF_ORDER).await, 0);
    let attempts = "select attempt::text from piecework.jobs where id = $1";
    assert_eq!(db.text(attempts, ids[0]).await.as_deref(), Some("4"));
    assert_eq!(db.state(ids[2]).await, "failed");
    assert_eq!(db.state(ids[3]).await, "done");
    // One that is started anew waits for its turn too.
    let more = enqueue(&db, &[keyed("probe", r#"{"do":"nap","ms":400}"#, "k")]).await;
    db.becomes(more[0], "running").await;
    assert_eq!(
        db.store.retry(ids[2]).await.unwrap().as_deref(),
        Some("pending")
    );
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(db.state(ids[2]).await, "pending");
    db.becomes(ids[2], "failed").await;
    let overlap = "select count(*) from piecework.job_history a, piecework.job_history b
        where a.id <> b.id and a.started_at < b.finished_at and b.started_at < a.finished_at";
    assert_eq!(db.number(overlap).await, 0);
    runner.halt();
    runner.join().await;
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_job_makes_room_for_the_next_of_its_key() {
    let db = Db::new().await;
    let (runner, _folder) = start(&db).await;
    let spin = r#"{"do":"nap_forever"}"#;
    let ids = enqueue(
        &db,
        &[
            keyed("probe", spin, "k"),
            keyed("probe", spin, "k"),
            keyed("probe", r#"{"do":"ok"}"#, "k"),
        ],
    )
    .await;
    db.becomes(ids[0], "running").await;
    assert_eq!(db.state(ids[1]).await, "pending");
    // The one that runs, and one that waits, which changes nothing for the others.
    assert_eq!(
        db.store.cancel(ids[1]).await.unwrap().as_deref(),
        Some("cancelled")
    );
    assert_eq!(
        db.store.cancel(ids[0]).await.unwrap().as_deref(),
        Some("cancelled")
    );
    db.becomes(ids[2], "done").await;
    runner.halt();
    runner.join().await;
    db.drop().await;
}

/// The next job of a key is locked by somebody who thinks about cancelling it: the key waits, and nobody asks on and on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_whose_next_job_is_locked_waits_without_a_hot_loop() {
    let db = Db::new().await;
    let (runner, _folder) = start(&db).await;
    let nap = r#"{"do":"nap","ms":200}"#;
    let ids = enqueue(&db, &[keyed("probe", nap, "k"), keyed("probe", nap, "k")]).await;
    db.becomes(ids[0], "running").await;
    let mut transaction = db.pool.begin().await.unwrap();
    sqlx::query("select piecework.cancel($1)")
        .bind(ids[1].0)
        .execute(&mut *transaction)
        .await
        .unwrap();
    db.becomes(ids[0], "done").await;
    let rounds = || {
        runner
            .events()
            .rounds
            .load(std::sync::atomic::Ordering::Relaxed)
    };
    let before = rounds();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    // A few polls; it was 250 a second.
    assert!(rounds() - before < 60, "{} rounds", rounds() - before);
    transaction.rollback().await.unwrap();
    db.becomes(ids[1], "done").await;
    runner.halt();
    runner.join().await;
    db.drop().await;
}

/// A runner of version 1 ends a keyed job without a word to anybody.
#[tokio::test]
async fn keys_that_stand_still_are_found() {
    let db = Db::new().await;
    let runner = runner(&db).await;
    let ids = enqueue(&db, &[keyed("a", "{}", "k"), keyed("a", "{}", "k")]).await;
    let next = || async {
        db.store
            .claim(&demand(runner, &[("a", 8)], 8))
            .await
            .unwrap()
            .iter()
            .map(|job| job.id)
            .collect::<Vec<_>>()
    };
    assert_eq!(next().await, [], "nobody has decided yet");
    assert_eq!(
        db.store.settle(100).await.unwrap(),
        1,
        "one note for the key"
    );
    assert_eq!(next().await, [ids[0]]);
    sqlx::query("delete from piecework.job where id = $1")
        .bind(ids[0].0)
        .execute(&db.pool)
        .await
        .unwrap();
    assert_eq!(db.store.settle(100).await.unwrap(), 0);
    assert_eq!(db.store.note_idle_keys(100).await.unwrap(), 1);
    assert_eq!(db.store.settle(100).await.unwrap(), 1);
    assert_eq!(next().await, [ids[1]]);
    assert_eq!(db.store.note_idle_keys(100).await.unwrap(), 0);
    db.drop().await;
}

/// A late result of a job that was taken over must not let the next one start.
#[tokio::test]
async fn a_stale_finish_unblocks_nothing() {
    let db = Db::new().await;
    let runner = runner(&db).await;
    enqueue(&db, &[keyed("a", "{}", "k"), keyed("a", "{}", "k")]).await;
    db.store.settle(100).await.unwrap();
    let job = db
        .store
        .claim(&demand(runner, &[("a", 8)], 8))
        .await
        .unwrap()
        .remove(0);
    let mut late = finish(&job, Verdict::Done(None));
    late.claim.0 += 1;
    db.store.round(&[late], None).await.unwrap();
    let open = "select count(*) from piecework.job where not blocked";
    assert_eq!(db.number(open).await, 1);
    // A retry keeps the key, an end gives it on.
    let again = Verdict::Again {
        delay: Duration::ZERO,
        refund: false,
    };
    db.store.round(&[finish(&job, again)], None).await.unwrap();
    assert_eq!(db.number(open).await, 1);
    let job = db
        .store
        .claim(&demand(runner, &[("a", 8)], 8))
        .await
        .unwrap()
        .remove(0);
    db.store
        .round(&[finish(&job, Verdict::Failed)], None)
        .await
        .unwrap();
    assert_eq!(db.number(open).await, 1);
    assert_eq!(
        db.number("select count(*) from piecework.job").await,
        1,
        "the next one is open"
    );
    db.drop().await;
}

/// Producers whose transactions stay open, roll back and overtake each other, three runners as processes, and one of them is
/// killed in the middle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_a_fleet_keeps_the_order_of_each_key_while_a_host_is_killed() {
    let db = Db::new().await;
    let folder = Folder::with(&[("probe", "probe")]);
    let settings = SHORT.replace("retry_base = '1s'", "retry_base = '20ms'");
    let mut hosts: Vec<_> = (0..3)
        .map(|_| Host::start(&db, folder.path(), &settings))
        .collect();
    for host in &hosts {
        host.ready().await;
    }
    let mut producers = tokio::task::JoinSet::new();
    for producer in 0..4_u64 {
        let pool = db.pool.clone();
        producers.spawn(async move {
            let mut random = fastrand::Rng::with_seed(producer);
            for _ in 0..40 {
                let mut transaction = pool.begin().await.unwrap();
                for _ in 0..random.u32(1..4) {
                    let payload = if random.u32(..10) == 0 {
                        r#"{"do":"fail","text":"once","disposition":"retry","until":1}"#
                    } else {
                        r#"{"do":"nap","ms":3}"#
                    };
                    sqlx::query(
                        "select piecework.enqueue('probe', $1::text::jsonb, ordering_key => $2)",
                    )
                    .bind(payload)
                    .bind(format!("k{}", random.u32(..6)))
                    .execute(&mut *transaction)
                    .await
                    .unwrap();
                    tokio::time::sleep(Duration::from_millis(random.u64(..20))).await;
                }
                if random.u32(..5) == 0 {
                    transaction.rollback().await.unwrap();
                } else {
                    transaction.commit().await.unwrap();
                }
            }
        });
    }
    tokio::time::sleep(Duration::from_millis(700)).await;
    hosts[0].kill();
    while producers.join_next().await.is_some() {}
    until("all jobs to end", || async {
        (db.number("select count(*) from piecework.job").await == 0).then_some(())
    })
    .await;
    let unequal = "select count(*) from piecework.job_history where state <> 'done'";
    assert_eq!(db.number(unequal).await, 0);
    // A job that is committed late has a smaller id than one that ran before it: so what must hold is that no two of a key
    // were under way at the same time.
    let overlaps = "select count(*) from piecework.job_history a
        join piecework.job_history b on a.ordering_key = b.ordering_key and a.id < b.id
        where a.started_at < b.finished_at and b.started_at < a.finished_at";
    assert_eq!(db.number(overlaps).await, 0);
    drop(hosts);
    db.drop().await;
}
