//! The claim at the level of the store: what it takes, in which order, and how a runner learns that there is something.

use std::time::Duration;

use piecework::job::{JobId, JobType, Priority, Timestamp};

use super::fence::{demand, runner};
use super::support::db::Db;

#[tokio::test]
async fn a_claim_takes_due_jobs_by_priority_and_within_each_limit() {
    let db = Db::new().await;
    let runner = runner(&db).await;
    sqlx::query(
        "insert into piecework.job (job_type, priority, due_at)
         select t, p, now() - n * interval '1 second' from unnest(array['a', 'b', 'c']) t, generate_series(1, 4) p, generate_series(1, 10) n",
    )
    .execute(&db.pool)
    .await
    .unwrap();
    sqlx::query(
        "insert into piecework.job (job_type, due_at) values ('a', now() + interval '1 hour')",
    )
    .execute(&db.pool)
    .await
    .unwrap();
    // `a` has 3 slots over all its priorities, `b` as many as there are; `c` is not asked for.
    let claimed = db
        .store
        .claim(&demand(runner, &[("a", 3), ("b", 15)], 15))
        .await
        .unwrap();
    let count = |job_type: &str, priority: i16| {
        claimed
            .iter()
            .filter(|job| job.job_type.as_str() == job_type && job.priority == Priority(priority))
            .count()
    };
    assert!(claimed.len() <= 15);
    assert_eq!(
        (count("a", 1), count("a", 2) + count("a", 3) + count("a", 4)),
        (3, 0)
    );
    assert_eq!(count("b", 1), 10);
    assert!(
        claimed
            .iter()
            .all(|job| job.attempt == 1 && job.job_type.as_str() != "c")
    );
    assert_eq!(
        db.number("select count(*) from piecework.job where state = 'running'")
            .await,
        i64::try_from(claimed.len()).unwrap()
    );
    db.drop().await;
}

#[tokio::test]
async fn two_claims_at_once_share_no_job() {
    let db = Db::new().await;
    let runner = runner(&db).await;
    sqlx::query("insert into piecework.job (job_type) select 'a' from generate_series(1, 400)")
        .execute(&db.pool)
        .await
        .unwrap();
    let demand = demand(runner, &[("a", 50)], 50);
    let claims = (0..8).map(|_| db.store.claim(&demand));
    let mut ids: Vec<JobId> = futures(claims)
        .await
        .into_iter()
        .flatten()
        .map(|job| job.id)
        .collect();
    let all = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!((ids.len(), all), (400, 400));
    db.drop().await;
}

#[tokio::test]
async fn marks_skip_what_was_claimed_and_a_claim_without_finds_stragglers() {
    let db = Db::new().await;
    let runner = runner(&db).await;
    let first = db.enqueue("a", "{}").await;
    let mut demand = demand(runner, &[("a", 8)], 8);
    let claimed = db.store.claim(&demand).await.unwrap();
    assert_eq!(claimed[0].id, first);
    for pick in &mut demand.picks {
        pick.mark = (claimed[0].due_at, claimed[0].id.0);
    }
    // Due before the mark: hidden behind it.
    sqlx::query(
        "insert into piecework.job (job_type, due_at) values ('a', now() - interval '1 day')",
    )
    .execute(&db.pool)
    .await
    .unwrap();
    let ahead = db.enqueue("a", "{}").await;
    let claimed: Vec<_> = db
        .store
        .claim(&demand)
        .await
        .unwrap()
        .iter()
        .map(|job| job.id)
        .collect();
    assert_eq!(claimed, [ahead]);
    for pick in &mut demand.picks {
        pick.mark = (Timestamp::MIN, 0);
    }
    assert_eq!(db.store.claim(&demand).await.unwrap().len(), 1);
    db.drop().await;
}

#[tokio::test]
async fn enqueue_notifies_only_while_some_runner_waits() {
    let db = Db::new().await;
    let runner = runner(&db).await;
    let mut listener = sqlx::postgres::PgListener::connect(db.url()).await.unwrap();
    listener.listen("piecework").await.unwrap();
    db.enqueue("a", "{}").await;
    db.store.rest(runner, &[JobType::from("a")]).await.unwrap();
    db.enqueue("b", "{}").await;
    let later = piecework::store::NewJob {
        job_type: "a".into(),
        payload: "\"later\"".into(),
        delay: Some(Duration::from_secs(3600)),
        ..Default::default()
    };
    db.store.enqueue(&later).await.unwrap();
    db.enqueue("a", "{}").await;
    // The first notice is the last job's: the others had nobody to wake.
    let notice = tokio::time::timeout(super::support::LONGEST, listener.recv())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(notice.payload(), "a");
    db.store.awake(runner).await.unwrap();
    db.enqueue("a", "{}").await;
    sqlx::query("select pg_notify('piecework', 'end')")
        .execute(&db.pool)
        .await
        .unwrap();
    let notice = tokio::time::timeout(super::support::LONGEST, listener.recv())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(notice.payload(), "end", "the other jobs sent none");
    drop(listener);
    db.drop().await;
}

#[tokio::test]
async fn rest_tells_when_the_next_job_is_due() {
    let db = Db::new().await;
    let runner = runner(&db).await;
    let types = [JobType::from("a"), JobType::from("b")];
    assert_eq!(db.store.rest(runner, &types).await.unwrap(), None);
    for (job_type, seconds) in [("a", 900), ("b", 600), ("c", 60)] {
        let job = piecework::store::NewJob {
            job_type: job_type.into(),
            payload: "{}".into(),
            delay: Some(Duration::from_secs(seconds)),
            ..Default::default()
        };
        db.store.enqueue(&job).await.unwrap();
    }
    let next = db.store.rest(runner, &types).await.unwrap().unwrap();
    assert!(
        next > Duration::from_secs(500) && next <= Duration::from_secs(600),
        "{next:?}"
    );
    db.drop().await;
}

async fn futures<T, E: std::fmt::Debug>(
    work: impl Iterator<Item = impl Future<Output = Result<T, E>>>,
) -> Vec<T> {
    // Eight at a time through a pool of five: the store's bound is part of the test.
    let mut pending: Vec<_> = work.map(Box::pin).collect();
    let mut done = Vec::new();
    std::future::poll_fn(|context| {
        pending.retain_mut(|one| match one.as_mut().poll(context) {
            std::task::Poll::Ready(result) => {
                done.push(result.unwrap());
                false
            }
            std::task::Poll::Pending => true,
        });
        if pending.is_empty() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    done
}
