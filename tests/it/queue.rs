//! Pausing a job type, starting failed jobs anew, topics.

use std::time::Duration;

use piecework::job::JobId;
use piecework::runner::Runner;
use piecework::store::NewJob;

use super::support::db::Db;
use super::support::guests::Folder;
use super::support::until;

async fn start(db: &Db, folder: &Folder) -> Runner {
    let mut config = db.config(folder.path());
    config.defaults.retry_base = piecework::config::Span::millis(10);
    Runner::start(config, db.store.clone()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_job_type_waits_and_others_do_not() {
    let db = Db::new().await;
    let folder = Folder::with(&[("noop", "noop"), ("probe", "probe")]);
    let runner = start(&db, &folder).await;
    assert!(db.store.pause("noop", true).await.unwrap());
    assert!(
        !db.store.pause("noop", true).await.unwrap(),
        "it was already"
    );
    let paused = db.enqueue("noop", "{}").await;
    let other = db.enqueue("probe", r#"{"do":"ok"}"#).await;
    db.becomes(other, "done").await;
    // The runner has nothing to do, and knows it: it goes to sleep instead of asking on and on.
    db.until(
        1,
        "select count(*) from piecework.runner where waiting and state = 'live'",
    )
    .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(db.state(paused).await, "pending");
    let status = db.store.status_jobs().await.unwrap();
    assert!(status[0].paused && status[0].due == 1);
    // Resuming wakes it up.
    assert!(db.store.pause("noop", false).await.unwrap());
    db.becomes(paused, "done").await;
    assert!(!db.store.pause("noop", false).await.unwrap());
    runner.halt();
    runner.join().await;
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_job_is_started_anew_with_its_history() {
    let db = Db::new().await;
    let folder = Folder::with(&[("probe", "probe")]);
    let runner = start(&db, &folder).await;
    // Fails twice, and would succeed the third time; it has saved something before.
    let job = NewJob {
        job_type: "probe".into(),
        payload: r#"{"do":"steps","steps":3,"fail_at":2}"#.into(),
        max_attempts: Some(1),
        ..NewJob::default()
    };
    let id = db.store.enqueue(&job).await.unwrap();
    db.becomes(id, "failed").await;
    let enqueued = "select enqueued_at::text from piecework.jobs where id = $1";
    let before = db.text(enqueued, id).await;
    assert_eq!(
        db.store.retry(id).await.unwrap().as_deref(),
        Some("pending")
    );
    // The probe panics on attempt 1 only where step 2 is not saved yet.
    until("the end", || async {
        let state = db.state(id).await;
        (state == "done").then_some(())
    })
    .await;
    let how = "select concat_ws(' ', attempt, jsonb_array_length(attempts), attempts -> 0 ->> 'failure', result ->> 'did') from piecework.jobs where id = $1";
    assert_eq!(db.text(how, id).await.as_deref(), Some("1 1 trap [3]"));
    assert_eq!(db.text(enqueued, id).await, before);
    assert_eq!(
        db.number("select count(*) from piecework.jobs").await,
        1,
        "it is one job"
    );
    // What is done, or never was, stays so.
    assert_eq!(db.store.retry(id).await.unwrap().as_deref(), Some("done"));
    assert_eq!(db.store.retry(JobId(-1)).await.unwrap(), None);
    runner.halt();
    runner.join().await;
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_jobs_are_started_anew_by_type() {
    let db = Db::new().await;
    let folder = Folder::with(&[("probe", "probe"), ("other", "probe")]);
    let runner = start(&db, &folder).await;
    let discard = r#"{"do":"fail","text":"no","disposition":"discard"}"#;
    db.enqueue_times(5, "probe", discard).await;
    let other = db.enqueue("other", discard).await;
    db.until(
        6,
        "select count(*) from piecework.jobs where state = 'failed'",
    )
    .await;
    runner.halt();
    runner.join().await;
    // One whose key somebody else has taken is left.
    sqlx::query("update piecework.job_history set unique_key = 'k' where id = (select min(id) from piecework.job_history where job_type = 'probe')")
        .execute(&db.pool)
        .await
        .unwrap();
    let taken = NewJob {
        job_type: "probe".into(),
        payload: "{}".into(),
        unique_key: Some("k".into()),
        ..NewJob::default()
    };
    db.store.enqueue(&taken).await.unwrap();
    let refused = db
        .number("select min(id) from piecework.job_history where job_type = 'probe'")
        .await;
    let refusal = db
        .store
        .retry(JobId(refused))
        .await
        .unwrap_err()
        .to_string();
    assert!(refusal.contains("has its unique key k"), "{refusal}");
    assert_eq!(
        db.store
            .retry_all(Some("probe"), "failed", 3)
            .await
            .unwrap(),
        2,
        "the oldest three, one of which cannot"
    );
    assert_eq!(
        db.store
            .retry_all(Some("probe"), "failed", 100)
            .await
            .unwrap(),
        2
    );
    assert_eq!(db.state(other).await, "failed");
    assert_eq!(
        db.store.retry_all(None, "failed", 100).await.unwrap(),
        1,
        "of any type"
    );
    assert!(db.store.retry_all(None, "done", 100).await.is_err());
    db.drop().await;
}

#[tokio::test]
async fn a_topic_reaches_each_subscriber_once_in_the_callers_transaction() {
    let db = Db::new().await;
    let job = NewJob {
        payload: r#"{"order": 1.10}"#.into(),
        ..NewJob::default()
    };
    assert_eq!(db.store.publish("order.paid", &job).await.unwrap(), 0);
    for job_type in ["mail", "invoice", "stock"] {
        assert!(
            db.store
                .subscribe("order.paid", job_type, true)
                .await
                .unwrap()
        );
    }
    assert!(
        !db.store
            .subscribe("order.paid", "mail", true)
            .await
            .unwrap()
    );
    assert!(
        db.store
            .subscribe("order.paid", "stock", false)
            .await
            .unwrap()
    );
    let mut transaction = db.pool.begin().await.unwrap();
    sqlx::query("select piecework.publish('order.paid')")
        .execute(&mut *transaction)
        .await
        .unwrap();
    transaction.rollback().await.unwrap();
    assert_eq!(db.number("select count(*) from piecework.job").await, 0);
    assert_eq!(db.store.publish("order.paid", &job).await.unwrap(), 2);
    let types: Vec<(String, String)> =
        sqlx::query_as("select job_type, payload::text from piecework.job order by job_type")
            .fetch_all(&db.pool)
            .await
            .unwrap();
    let order = r#"{"order": 1.10}"#.to_owned();
    assert_eq!(
        types,
        [("invoice".into(), order.clone()), ("mail".into(), order)]
    );
    assert_eq!(db.store.topics().await.unwrap().len(), 2);
    // With a key each type has one.
    let once = NewJob {
        unique_key: Some("order-7".into()),
        ..job
    };
    for _ in 0..3 {
        assert_eq!(db.store.publish("order.paid", &once).await.unwrap(), 2);
    }
    assert_eq!(db.number("select count(*) from piecework.job").await, 4);
    db.drop().await;
}
