//! Finish and reap at the level of the store: what is fenced stays fenced, and nothing strands.

use std::collections::BTreeMap;
use std::time::Duration;

use piecework::job::{
    ClaimToken, Claimed, FailureClass, FollowUp, HttpUsage, JobType, Priority, RunnerId, Timestamp,
    Usage,
};
use piecework::store::{Demand, Ended, Finish, Pick, Verdict};

use super::support::db::Db;

pub(crate) fn demand(runner: RunnerId, wants: &[(&str, u32)], total: u32) -> Demand {
    Demand {
        runner,
        picks: Priority::ALL
            .iter()
            .flat_map(|priority| {
                wants.iter().map(|(job_type, want)| Pick {
                    job_type: JobType::from(*job_type),
                    priority: *priority,
                    want: *want,
                    mark: (Timestamp::MIN, 0),
                })
            })
            .collect(),
        total,
        deadlines: wants
            .iter()
            .map(|(job_type, _)| (JobType::from(*job_type), Duration::from_secs(60)))
            .collect::<BTreeMap<_, _>>(),
        ..Demand::default()
    }
}

pub(crate) fn finish(job: &Claimed, verdict: Verdict) -> Finish {
    let failure = (!matches!(verdict, Verdict::Done(_)))
        .then(|| (FailureClass::GuestRetry, "asked for it".to_owned()));
    Finish {
        id: job.id,
        claim: job.claim,
        ordering_key: job.ordering_key.clone(),
        batch: job.batch,
        verdict,
        failure,
        follow_ups: Vec::new(),
        usage: Usage {
            run: Duration::from_millis(3),
            cpu: Duration::from_millis(2),
            fuel: None,
            peak_memory: 4096,
            http: Some(HttpUsage {
                calls: 2,
                bytes: 3000,
                time: Duration::from_millis(1),
            }),
        },
        output: None,
        progress: Some((40, "under way".into())),
        plugin: [7; 32],
    }
}

pub(crate) async fn runner(db: &Db) -> RunnerId {
    db.store
        .register(
            "test",
            8,
            &[JobType::from("a")],
            Duration::from_secs(20),
            &[],
        )
        .await
        .unwrap()
}

/// The next job of type `a`.
async fn claim_one(db: &Db, runner: RunnerId) -> Claimed {
    let demand = demand(runner, &[("a", 1)], 1);
    db.store.claim(&demand).await.unwrap().remove(0)
}

#[tokio::test]
async fn a_stale_finish_changes_nothing() {
    let db = Db::new().await;
    let runner = runner(&db).await;
    let id = db.enqueue("a", r#"{"n": 1.10}"#).await;
    let job = claim_one(&db, runner).await;
    for verdict in [
        Verdict::Done(Some("1".into())),
        Verdict::Failed,
        Verdict::Again {
            delay: Duration::ZERO,
            refund: true,
        },
    ] {
        let mut late = finish(&job, verdict);
        late.claim = ClaimToken(job.claim.0 + 1);
        late.follow_ups = vec![follow_up(&job)];
        let cycle = db.store.round(&[late], None).await.unwrap();
        assert_eq!(cycle.stale, [(id, ClaimToken(job.claim.0 + 1))]);
    }
    let row = "select count(*) from piecework.job where state = 'running' and attempt = 1 and last_error is null and attempts is null";
    assert_eq!(db.number(row).await, 1);
    assert_eq!(
        db.number("select count(*) from piecework.job_history")
            .await,
        0
    );
    // The good one is written once, and then it is stale too.
    let good = finish(
        &job,
        Verdict::Done(Some(r#"{"x": 18446744073709551616}"#.into())),
    );
    assert!(
        db.store
            .round(std::slice::from_ref(&good), None)
            .await
            .unwrap()
            .stale
            .is_empty()
    );
    assert_eq!(
        db.store.round(&[good], None).await.unwrap().stale,
        [(id, job.claim)]
    );
    // A runner that had lost the answer can tell.
    let attempts = [(id, job.claim), (id, ClaimToken(job.claim.0 + 1))];
    let before = db.store.ends(&attempts).await.unwrap();
    assert_eq!(
        before.into_iter().collect::<Vec<_>>(),
        [((id, job.claim), Ended::Written)]
    );
    assert_eq!(db.state(id).await, "done");
    assert_eq!(
        db.text("select result::text from piecework.jobs where id = $1", id)
            .await
            .as_deref(),
        Some(r#"{"x": 18446744073709551616}"#)
    );
    assert_eq!(
        db.text("select payload::text from piecework.jobs where id = $1", id)
            .await
            .as_deref(),
        Some(r#"{"n": 1.10}"#)
    );
    db.drop().await;
}

fn follow_up(job: &Claimed) -> FollowUp {
    FollowUp {
        job_type: "next".into(),
        payload: serde_json::value::RawValue::from_string("{\"big\":9007199254740993}".into())
            .unwrap(),
        delay: Some(60),
        due_at: None,
        priority: Some(1),
        max_attempts: Some(2),
        unique_key: None,
        unique_for: None,
        ordering_key: None,
        group_key: None,
        parent: Some(job.id),
        root: Some(job.root),
    }
}

#[tokio::test]
async fn follow_ups_come_with_the_success_and_only_then() {
    let db = Db::new().await;
    let runner = runner(&db).await;
    db.enqueue("a", "{}").await;
    db.enqueue("a", "{}").await;
    let jobs = db
        .store
        .claim(&demand(runner, &[("a", 2)], 2))
        .await
        .unwrap();
    let mut done = finish(&jobs[0], Verdict::Done(None));
    let mut failed = finish(&jobs[1], Verdict::Failed);
    done.follow_ups = vec![follow_up(&jobs[0]), follow_up(&jobs[0])];
    failed.follow_ups = vec![follow_up(&jobs[1])];
    let cycle = db
        .store
        .round(&[done, failed], Some(&demand(runner, &[("a", 2)], 2)))
        .await
        .unwrap();
    assert!(cycle.stale.is_empty() && cycle.claimed.is_empty());
    let row = "select count(*) from piecework.job where job_type = 'next' and priority = 1 and max_attempts = 2 and due_at > now()
               and payload::text = '{\"big\": 9007199254740993}'";
    assert_eq!(db.number(row).await, 2);
    assert_eq!(
        db.number("select count(distinct parent) from piecework.job where job_type = 'next'")
            .await,
        1
    );
    db.drop().await;
}

#[tokio::test]
async fn a_result_that_cannot_be_stored_fails_its_own_job_and_no_other() {
    let db = Db::new().await;
    let runner = runner(&db).await;
    for _ in 0..9 {
        db.enqueue("a", "{}").await;
    }
    let jobs = db
        .store
        .claim(&demand(runner, &[("a", 9)], 9))
        .await
        .unwrap();
    // The engine checks results; this is the last line behind it.
    let finishes: Vec<_> = jobs
        .iter()
        .enumerate()
        .map(|(n, job)| {
            finish(
                job,
                Verdict::Done(Some(if n == 4 {
                    r#""\u0000""#.into()
                } else {
                    n.to_string()
                })),
            )
        })
        .collect();
    assert!(
        db.store
            .round(&finishes, None)
            .await
            .unwrap()
            .stale
            .is_empty()
    );
    assert_eq!(
        db.number("select count(*) from piecework.job_history where state = 'done'")
            .await,
        8
    );
    assert_eq!(db.state(jobs[4].id).await, "failed");
    assert_eq!(
        db.text(
            "select failure from piecework.jobs where id = $1",
            jobs[4].id
        )
        .await
        .as_deref(),
        Some("bad_result")
    );
    db.drop().await;
}

#[tokio::test]
async fn a_retry_carries_its_history_and_lies_ahead_of_every_mark() {
    let db = Db::new().await;
    let runner = runner(&db).await;
    sqlx::query("insert into piecework.job (job_type, due_at, max_attempts) values ('a', now() - interval '1 day', 100)").execute(&db.pool).await.unwrap();
    let mut last = None;
    for attempt in 1..=23 {
        let job = claim_one(&db, runner).await;
        assert_eq!(job.attempt, attempt);
        db.store
            .round(
                &[finish(
                    &job,
                    Verdict::Again {
                        delay: Duration::ZERO,
                        refund: false,
                    },
                )],
                None,
            )
            .await
            .unwrap();
        last = Some(job);
    }
    let id = last.unwrap().id;
    // The newest 20 attempts, oldest first.
    assert_eq!(
        db.text(
            "select attempts -> 0 ->> 'attempt' from piecework.jobs where id = $1",
            id
        )
        .await
        .as_deref(),
        Some("4")
    );
    assert_eq!(
        db.text(
            "select attempts -> 19 ->> 'failure' from piecework.jobs where id = $1",
            id
        )
        .await
        .as_deref(),
        Some("guest_retry")
    );
    assert_eq!(
        db.number("select jsonb_array_length(attempts)::bigint from piecework.job")
            .await,
        20
    );
    assert_eq!(
        db.number("select count(*) from piecework.job where due_at > now() - interval '1 minute'")
            .await,
        1
    );
    // A refund gives the attempt back.
    let job = claim_one(&db, runner).await;
    db.store
        .round(
            &[finish(
                &job,
                Verdict::Again {
                    delay: Duration::from_secs(60),
                    refund: true,
                },
            )],
            None,
        )
        .await
        .unwrap();
    assert_eq!(
        db.number(
            "select attempt::bigint from piecework.job where due_at > now() + interval '50 seconds'"
        )
        .await,
        23
    );
    db.drop().await;
}

#[tokio::test]
async fn a_runner_that_was_declared_dead_cannot_renew_and_its_jobs_are_taken_back() {
    let db = Db::new().await;
    let dead = runner(&db).await;
    let alive = runner(&db).await;
    for attempts in [1, 5] {
        sqlx::query("insert into piecework.job (job_type, max_attempts) values ('a', $1)")
            .bind(attempts)
            .execute(&db.pool)
            .await
            .unwrap();
    }
    db.enqueue("b", "{}").await;
    let lost = db.store.claim(&demand(dead, &[("a", 8)], 8)).await.unwrap();
    let kept = db
        .store
        .claim(&demand(alive, &[("b", 8)], 8))
        .await
        .unwrap();
    assert!(
        db.store.lapse().await.unwrap().is_empty() && db.store.reap(100).await.unwrap().is_empty()
    );
    sqlx::query(
        "update piecework.runner set lease_until = now() - interval '1 second' where id = $1",
    )
    .bind(dead.0)
    .execute(&db.pool)
    .await
    .unwrap();
    assert_eq!(db.store.lapse().await.unwrap(), [(dead, "test".to_owned())]);
    assert!(
        !db.store
            .renew(dead, Duration::from_secs(20), &[])
            .await
            .unwrap()
    );
    assert!(
        db.store
            .renew(alive, Duration::from_secs(20), &[])
            .await
            .unwrap()
    );
    let mut reaped = db.store.reap(100).await.unwrap();
    reaped.sort_by_key(|job| job.id);
    assert_eq!(
        reaped
            .iter()
            .map(|job| (job.id, job.failed))
            .collect::<Vec<_>>(),
        [(lost[0].id, true), (lost[1].id, false)]
    );
    assert_eq!(
        db.text(
            "select failure from piecework.jobs where id = $1",
            lost[0].id
        )
        .await
        .as_deref(),
        Some("host_lost")
    );
    assert_eq!(
        db.text(
            "select attempts -> 0 ->> 'failure' from piecework.jobs where id = $1",
            lost[1].id
        )
        .await
        .as_deref(),
        Some("host_lost")
    );
    assert_eq!(db.state(lost[1].id).await, "pending");
    assert_eq!(db.state(kept[0].id).await, "running");
    // What the dead runner still has in the air is fenced.
    let late: Vec<_> = lost
        .iter()
        .map(|job| finish(job, Verdict::Done(None)))
        .collect();
    assert_eq!(db.store.round(&late, None).await.unwrap().stale.len(), 2);
    // And so is its progress.
    assert_eq!(
        db.store
            .progress(&[(lost[1].id, lost[1].claim, 50, "half".into())])
            .await
            .unwrap(),
        [lost[1].id]
    );
    assert!(
        db.store
            .progress(&[(kept[0].id, kept[0].claim, 50, "half".into())])
            .await
            .unwrap()
            .is_empty()
    );
    db.drop().await;
}

#[tokio::test]
async fn a_job_past_its_deadline_is_taken_back_from_a_living_runner() {
    let db = Db::new().await;
    let runner = runner(&db).await;
    let id = db.enqueue("a", "{}").await;
    db.store
        .claim(&demand(runner, &[("a", 1)], 1))
        .await
        .unwrap();
    sqlx::query("update piecework.job set deadline_at = now() - interval '1 second'")
        .execute(&db.pool)
        .await
        .unwrap();
    assert_eq!(db.store.reap(100).await.unwrap().len(), 1);
    assert_eq!(db.state(id).await, "pending");
    assert!(
        db.text("select last_error from piecework.jobs where id = $1", id)
            .await
            .unwrap()
            .contains("deadline")
    );
    db.drop().await;
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_released_unless_it_is_known() {
    let db = Db::new().await;
    let runner = runner(&db).await;
    db.enqueue("a", "{}").await;
    db.enqueue("a", "{}").await;
    let first = claim_one(&db, runner).await;
    let second = claim_one(&db, runner).await;
    assert_eq!(
        db.store
            .release_strays(runner, &[first.claim.0], Duration::from_secs(3600))
            .await
            .unwrap(),
        0,
        "too young to tell"
    );
    assert_eq!(
        db.store
            .release_strays(runner, &[first.claim.0], Duration::ZERO)
            .await
            .unwrap(),
        1
    );
    assert_eq!(
        (db.state(first.id).await, db.state(second.id).await),
        ("running".into(), "pending".into())
    );
    assert_eq!(
        db.number("select attempt::bigint from piecework.job where state = 'pending'")
            .await,
        0
    );
    db.drop().await;
}

#[tokio::test]
async fn history_goes_into_day_partitions_and_never_for_want_of_one_astray() {
    let db = Db::new().await;
    let partitions =
        "select count(*) from pg_inherits where inhparent = 'piecework.job_history'::regclass";
    assert_eq!(
        db.number(partitions).await,
        9,
        "today, seven days ahead, and the default"
    );
    assert_eq!(db.store.make_history_partitions().await.unwrap(), 0);
    let runner = runner(&db).await;
    db.enqueue("a", "{}").await;
    let job = claim_one(&db, runner).await;
    db.store
        .round(&[finish(&job, Verdict::Done(None))], None)
        .await
        .unwrap();
    assert_eq!(
        db.number("select count(*) from piecework.job_history_default")
            .await,
        0
    );
    // A day without a partition: the row is kept all the same, and the partition is not made around it.
    sqlx::query("insert into piecework.job_history (id, job_type, state, priority, due_at, attempt, max_attempts, enqueued_at, finished_at, payload)
                 values (99, 'a', 'done', 2, now(), 1, 1, now(), now() + interval '8 days', '{}')").execute(&db.pool).await.unwrap();
    assert_eq!(
        db.number("select piecework.make_history_partitions(9)::bigint")
            .await,
        1
    );
    assert_eq!(
        db.number("select count(*) from piecework.job_history")
            .await,
        2
    );
    db.drop().await;
}

#[tokio::test]
async fn a_claim_that_is_refused_spoils_no_result() {
    let db = Db::new().await;
    let runner = runner(&db).await;
    db.enqueue_times(2, "a", "{}").await;
    let job = claim_one(&db, runner).await;
    let mut demand = demand(runner, &[("a", 1)], 1);
    // A deadline beyond what the database can reckon with.
    for limit in demand.deadlines.values_mut() {
        *limit = Duration::from_secs(1 << 50);
    }
    let done = finish(&job, Verdict::Done(Some("1".into())));
    let cycle = db.store.round(&[done], Some(&demand)).await.unwrap();
    assert!(cycle.stale.is_empty() && cycle.claimed.is_empty());
    assert!(
        matches!(&cycle.claim_failed, Some(error) if error.to_string().contains("out of range")),
        "{cycle:?}"
    );
    assert_eq!(db.state(job.id).await, "done");
    db.drop().await;
}
