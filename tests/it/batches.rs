//! Batches: a job that runs when all jobs of the batch have ended, however they ended.

use piecework::job::JobId;
use piecework::runner::Runner;

use super::support::db::Db;
use super::support::guests::Folder;
use super::support::process::{Host, SHORT};

async fn batch(db: &Db, jobs: &str, and_then: &str) -> Result<JobId, String> {
    sqlx::query_scalar("select piecework.enqueue_batch($1::text::jsonb, $2::text::jsonb)")
        .bind(jobs)
        .bind(and_then)
        .fetch_one(&db.pool)
        .await
        .map(JobId)
        .map_err(|error| error.to_string())
}

async fn start(db: &Db) -> (Runner, Folder) {
    let folder = Folder::with(&[("probe", "probe"), ("noop", "noop")]);
    let runner = Runner::start(db.config(folder.path()), db.store.clone())
        .await
        .unwrap();
    (runner, folder)
}

/// The last job of each batch started after every other one of it had ended.
const TOO_EARLY: &str = "
    select count(*) from piecework.job_history l
    join piecework.job_history m on m.batch = l.id and m.id <> l.id
    where l.batch = l.id and m.finished_at > l.started_at";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_job_runs_once_when_all_others_have_ended() {
    let db = Db::new().await;
    let (runner, _folder) = start(&db).await;
    let jobs = r#"[
        {"job_type": "probe", "payload": {"do": "nap", "ms": 150}},
        {"job_type": "probe", "payload": {"do": "discard", "text": "no"}},
        {"job_type": "noop", "group_key": "g"},
        {"job_type": "noop", "ordering_key": "o"},
        {"job_type": "noop", "unique_key": "u", "delay": 0.2},
        {"job_type": "nobody", "unique_key": "later"}]"#;
    let last = batch(&db, jobs, r#"{"job_type": "noop", "priority": 1}"#)
        .await
        .unwrap();
    db.until(
        5,
        "select count(*) from piecework.job_history where batch is not null",
    )
    .await;
    assert_eq!(db.state(last).await, "pending", "one is left");
    let blocked = "select blocked::text from piecework.jobs where id = $1";
    assert_eq!(db.text(blocked, last).await.as_deref(), Some("true"));
    // The one that nobody serves is cancelled: that is an end too.
    assert_eq!(db.store.cancel_by_key("nobody", "later").await.unwrap(), 1);
    db.becomes(last, "done").await;
    assert_eq!(db.number(TOO_EARLY).await, 0);
    let attempt = "select attempt::text from piecework.job_history where id = $1";
    assert_eq!(db.text(attempt, last).await.as_deref(), Some("1"));
    runner.halt();
    runner.join().await;
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_batches_end_each_by_itself() {
    let db = Db::new().await;
    let (runner, _folder) = start(&db).await;
    let jobs = format!("[{}]", vec![r#"{"job_type": "noop"}"#; 40].join(","));
    for n in 0..30 {
        let and_then = format!(r#"{{"job_type": "noop", "group_key": "g{}"}}"#, n % 3);
        let and_then = if n % 2 == 0 {
            &and_then
        } else {
            r#"{"job_type": "noop"}"#
        };
        batch(&db, &jobs, and_then).await.unwrap();
    }
    // An empty one is over at once.
    batch(&db, "[]", r#"{"job_type": "noop"}"#).await.unwrap();
    db.until(0, "select count(*) from piecework.job").await;
    assert_eq!(
        db.number(
            "select count(*) from piecework.job_history where state = 'done' and attempt = 1"
        )
        .await,
        30 * 41 + 1
    );
    assert_eq!(db.number(TOO_EARLY).await, 0);
    runner.halt();
    runner.join().await;
    db.drop().await;
}

/// Three hosts, one killed while it runs jobs of the batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_a_batch_outlives_a_host() {
    let db = Db::new().await;
    let folder = Folder::with(&[("probe", "probe")]);
    let mut hosts: Vec<_> = (0..3)
        .map(|_| Host::start(&db, folder.path(), SHORT))
        .collect();
    for host in &hosts {
        host.ready().await;
    }
    let job = r#"{"job_type": "probe", "payload": {"do": "nap", "ms": 30}}"#;
    let jobs = format!("[{}]", vec![job; 600].join(","));
    let last = batch(&db, &jobs, job).await.unwrap();
    db.until(1, "select least(count(*), 1) from piecework.job_history")
        .await;
    hosts[0].kill();
    db.becomes(last, "done").await;
    assert_eq!(db.number("select count(*) from piecework.job").await, 0);
    assert_eq!(db.number(TOO_EARLY).await, 0);
    drop(hosts);
    db.drop().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_batch_is_said_and_nothing_is_enqueued() {
    let db = Db::new().await;
    for (jobs, and_then, why) in [
        ("{}", "{}", "takes a JSON array of jobs"),
        ("[1]", "{}", "each an object"),
        ("[]", "[]", "a JSON object"),
        ("[]", "{}", "and_then: it needs a `job_type`"),
        (
            r#"[{"job_type": ""}]"#,
            r#"{"job_type": "a"}"#,
            "job 0: it needs a `job_type`",
        ),
        (
            "[]",
            r#"{"job_type": "a", "unique_key": "u"}"#,
            "has no unique key",
        ),
        (
            "[]",
            r#"{"job_type": "a", "ordering_key": "o"}"#,
            "no ordering key",
        ),
    ] {
        let error = batch(&db, jobs, and_then).await.unwrap_err();
        assert!(error.contains(why), "{jobs} {and_then}: {error}");
    }
    assert_eq!(db.number("select count(*) from piecework.job").await, 0);
    db.drop().await;
}

/// A runner of an older version ends a job and does not note its batch.
#[tokio::test]
async fn a_batch_that_stands_still_is_found() {
    let db = Db::new().await;
    let last = batch(&db, r#"[{"job_type": "a"}]"#, r#"{"job_type": "b"}"#)
        .await
        .unwrap();
    db.store.settle(10).await.unwrap();
    sqlx::query("delete from piecework.job where job_type = 'a'")
        .execute(&db.pool)
        .await
        .unwrap();
    assert_eq!(db.store.settle(10).await.unwrap(), 0);
    assert_eq!(db.store.note_idle_keys(10).await.unwrap(), 1);
    db.store.settle(10).await.unwrap();
    let blocked = "select blocked::text from piecework.jobs where id = $1";
    assert_eq!(db.text(blocked, last).await.as_deref(), Some("false"));
    assert_eq!(db.store.note_idle_keys(10).await.unwrap(), 0);
    db.drop().await;
}
