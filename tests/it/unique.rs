//! Unique keys: decided by an index, over concurrent transactions, and the caller always learns who won. O-23.

use std::time::Duration;

use piecework::job::JobId;
use piecework::runner::Runner;
use piecework::store::{NewJob, Verdict};
use sqlx::{Executor, Row};

use super::fence::{demand, finish, runner};
use super::support::db::Db;
use super::support::guests::Folder;
use super::support::until;

#[expect(
    clippy::disallowed_methods,
    reason = "the options are this file's own text"
)]
async fn enqueue(db: impl Executor<'_, Database = sqlx::Postgres>, options: &str) -> i64 {
    let call = format!("select piecework.enqueue('a', {options}) as id");
    sqlx::raw_sql(sqlx::AssertSqlSafe(call))
        .fetch_one(db)
        .await
        .unwrap()
        .get("id")
}

/// Until a call waits for a lock.
async fn someone_waits(db: &Db) {
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    db.until(1, waiting).await;
}

#[tokio::test]
async fn o_23_two_enqueues_with_one_key_leave_one_job_also_when_one_rolls_back() {
    let db = Db::new().await;
    let key = "unique_key => 'order-1'";
    let mut first = db.pool.begin().await.unwrap();
    let one = enqueue(&mut *first, key).await;
    // The second waits for the first: it cannot know yet who wins.
    let pool = db.pool.clone();
    let second = tokio::spawn(async move { enqueue(&pool, key).await });
    someone_waits(&db).await;
    first.commit().await.unwrap();
    assert_eq!(second.await.unwrap(), one, "the caller learns who won");
    assert_eq!(db.number("select count(*) from piecework.job").await, 1);

    let key = "unique_key => 'order-2'";
    let mut first = db.pool.begin().await.unwrap();
    let one = enqueue(&mut *first, key).await;
    let pool = db.pool.clone();
    let second = tokio::spawn(async move { enqueue(&pool, key).await });
    someone_waits(&db).await;
    first.rollback().await.unwrap();
    let two = second.await.unwrap();
    assert_ne!(two, one);
    assert_eq!(db.number("select count(*) from piecework.job").await, 2);
    assert_eq!(db.state(JobId(two)).await, "pending");
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_callers_at_once_get_one_id() {
    let db = Db::new().await;
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..100 {
        let store = db.store.clone();
        let job = NewJob {
            job_type: "a".into(),
            payload: format!(r#"{{"n":{n}}}"#),
            unique_key: Some("k".into()),
            ..NewJob::default()
        };
        calls.spawn(async move { store.enqueue(&job).await.unwrap() });
    }
    let ids: std::collections::BTreeSet<_> = calls.join_all().await.into_iter().collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(db.number("select count(*) from piecework.job").await, 1);
    // Another type, and no key, are others.
    let other = NewJob {
        job_type: "b".into(),
        payload: "{}".into(),
        unique_key: Some("k".into()),
        ..NewJob::default()
    };
    assert!(!ids.contains(&db.store.enqueue(&other).await.unwrap()));
    assert!(!ids.contains(&db.enqueue("a", "{}").await));
    db.drop().await;
}

#[tokio::test]
async fn a_key_is_free_when_its_job_ends_and_with_a_window_only_after_it() {
    let db = Db::new().await;
    let runner = runner(&db).await;
    for (options, again) in [
        ("unique_key => 'k'", false),
        ("unique_key => 'w', unique_for => interval '1 hour'", true),
    ] {
        let one = enqueue(&db.pool, options).await;
        assert_eq!(enqueue(&db.pool, options).await, one, "pending");
        let job = db
            .store
            .claim(&demand(runner, &[("a", 1)], 1))
            .await
            .unwrap()
            .remove(0);
        assert_eq!(enqueue(&db.pool, options).await, one, "running");
        let done = finish(&job, Verdict::Done(None));
        db.store.round(&[done], None).await.unwrap();
        assert_eq!(job.id, JobId(one));
        let next = enqueue(&db.pool, options).await;
        assert_eq!(next == one, again, "{options}");
        if next != one {
            db.store.cancel(JobId(next)).await.unwrap();
        }
    }
    // The window ends by itself.
    sqlx::query("update piecework.unique_window set until = now() - interval '1 second'")
        .execute(&db.pool)
        .await
        .unwrap();
    let options = "unique_key => 'w', unique_for => interval '1 hour'";
    let fresh = enqueue(&db.pool, options).await;
    assert_eq!(enqueue(&db.pool, options).await, fresh);
    db.store.forget_windows().await.unwrap();
    assert_eq!(
        db.number("select count(*) from piecework.unique_window")
            .await,
        1
    );
    for (call, reason) in [
        (
            "select piecework.enqueue('a', unique_key => '')",
            "1 to 500 characters",
        ),
        (
            "select piecework.enqueue('a', unique_for => interval '1 hour')",
            "needs a unique_key",
        ),
        (
            "select piecework.enqueue('a', unique_key => 'k', unique_for => interval '-1 hour')",
            "up to 3600 days",
        ),
    ] {
        let refusal = sqlx::raw_sql(call)
            .execute(&db.pool)
            .await
            .unwrap_err()
            .to_string();
        assert!(refusal.contains(reason), "{refusal}");
    }
    db.drop().await;
}

#[tokio::test]
async fn arrays_take_keys_too_and_keep_their_order() {
    let db = Db::new().await;
    let jobs = r#"[
        {"job_type": "a", "unique_key": "z"}, {"job_type": "a"}, {"job_type": "a", "unique_key": "b"},
        {"job_type": "a", "unique_key": "z", "payload": {"second": true}}
    ]"#;
    let ids = db.store.enqueue_many(jobs).await.unwrap();
    assert_eq!(ids.len(), 4);
    assert_eq!(ids[0], ids[3]);
    // Ordering keys keep the order of the array, whatever else is in it.
    let mixed = r#"[{"job_type": "b", "ordering_key": "o"}, {"job_type": "a", "ordering_key": "o"},
        {"job_type": "A", "unique_key": "u"}, {"job_type": "a", "unique_key": "a", "ordering_key": "o"}]"#;
    let mixed = db.store.enqueue_many(mixed).await.unwrap();
    assert!(mixed.is_sorted(), "{mixed:?}");
    for id in mixed {
        db.store.cancel(id).await.unwrap();
    }
    let key = "select unique_key from piecework.jobs where id = $1";
    assert_eq!(db.text(key, ids[0]).await.as_deref(), Some("z"));
    assert_eq!(db.text(key, ids[1]).await, None);
    assert_eq!(db.text(key, ids[2]).await.as_deref(), Some("b"));
    assert_eq!(db.number("select count(*) from piecework.job").await, 3);
    for (job, reason) in [
        (
            r#"{"job_type": "a", "unique_key": 7}"#,
            "unique_key must be text",
        ),
        (
            r#"{"job_type": "a", "unique_for": 7}"#,
            "needs a unique_key",
        ),
        (
            r#"{"job_type": "a", "uniqe_key": "k"}"#,
            "`uniqe_key` is not known",
        ),
    ] {
        let refusal = db
            .store
            .enqueue_many(&format!("[{job}]"))
            .await
            .unwrap_err()
            .to_string();
        assert!(refusal.starts_with("job 0: "), "{refusal}");
        assert!(refusal.contains(reason), "{refusal}");
    }
    db.drop().await;
}

/// The ladder: each step enqueues the next under the same key; who acknowledges cancels it, also in the middle of a step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelling_by_key_ends_a_chain_whatever_step_it_is_at() {
    let db = Db::new().await;
    let folder = Folder::with(&[("probe", "probe")]);
    let runner = Runner::start(db.config(folder.path()), db.store.clone())
        .await
        .unwrap();
    for n in 0..20 {
        let key = format!("incident-{n}");
        // A step that sleeps and then asks for another one of its kind, which waits for an hour.
        let job = NewJob {
            job_type: "probe".into(),
            payload: format!(
                r#"{{"do":"follow","job_type":"probe","payload":{{"do":"ok"}},"unique_key":"{key}","delay":3600,"ms":{}}}"#,
                n * 10
            ),
            unique_key: Some(key.clone()),
            ..NewJob::default()
        };
        let first = db.store.enqueue(&job).await.unwrap();
        // Before, in the middle of, and after the first step's end.
        tokio::time::sleep(Duration::from_millis(95)).await;
        assert_eq!(
            db.store.cancel_by_key("probe", &key).await.unwrap(),
            1,
            "{key}: one of the two steps was there"
        );
        assert_eq!(db.store.cancel_by_key("probe", &key).await.unwrap(), 0);
        let state = db.state(first).await;
        assert!(state == "done" || state == "cancelled", "{key}: {state}");
    }
    until("the handlers to end", || async {
        let left = "select count(*) from piecework.jobs where state in ('pending', 'running')";
        (db.number(left).await == 0).then_some(())
    })
    .await;
    let both =
        "select count(*) from (select distinct state from piecework.jobs where root is null) s";
    assert_eq!(
        db.number(both).await,
        2,
        "some were done, some were cancelled"
    );
    // A follow-up knows where it comes from.
    assert!(
        db.number(
            "select count(*) from piecework.jobs where root = parent and state = 'cancelled'"
        )
        .await
            > 0
    );
    runner.halt();
    runner.join().await;
    db.drop().await;
}

/// Somebody enqueues a key and keeps the transaction open: the handler that wants to follow up with it waits, nobody else does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_being_enqueued_holds_up_no_other_job() {
    let db = Db::new().await;
    let folder = Folder::with(&[("probe", "probe")]);
    let runner = Runner::start(db.config(folder.path()), db.store.clone())
        .await
        .unwrap();
    let mut transaction = db.pool.begin().await.unwrap();
    let theirs: i64 = sqlx::query_scalar(
        "select piecework.enqueue('next', unique_key => 'U', delay => interval '1 hour')",
    )
    .fetch_one(&mut *transaction)
    .await
    .unwrap();
    let follow = r#"{"do":"follow","job_type":"next","payload":{},"unique_key":"U","ms":100}"#;
    let waits = db.enqueue("probe", follow).await;
    let others = db
        .enqueue_times(20, "probe", r#"{"do":"nap","ms":100}"#)
        .await;
    for id in &others {
        db.becomes(*id, "done").await;
    }
    let more = db.enqueue("probe", r#"{"do":"ok"}"#).await;
    db.becomes(more, "done").await;
    assert_eq!(db.state(waits).await, "running");
    transaction.commit().await.unwrap();
    db.becomes(waits, "done").await;
    let next = "select count(*) from piecework.job where job_type = 'next'";
    assert_eq!(db.number(next).await, 1);
    assert_eq!(db.state(JobId(theirs)).await, "pending");
    runner.halt();
    runner.join().await;
    db.drop().await;
}

#[tokio::test]
async fn a_chain_is_cancelled_as_a_whole_and_nothing_beside_it() {
    let db = Db::new().await;
    let first = enqueue(&db.pool, "unique_key => 'k'").await;
    let step = enqueue(&db.pool, &format!("parent => {first}")).await;
    let deep = enqueue(&db.pool, &format!("parent => {step}")).await;
    let beside = enqueue(&db.pool, "priority => 1").await;
    let root = "select root::text from piecework.jobs where id = $1";
    for id in [step, deep] {
        assert_eq!(db.text(root, JobId(id)).await, Some(first.to_string()));
    }
    assert_eq!(db.store.cancel_by_key("a", "k").await.unwrap(), 3);
    assert_eq!(db.state(JobId(beside)).await, "pending");
    for id in [first, step, deep] {
        assert_eq!(db.state(JobId(id)).await, "cancelled");
    }
    assert_eq!(db.store.cancel_by_key("a", "k").await.unwrap(), 0);
    db.drop().await;
}
