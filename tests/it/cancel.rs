//! O-25, cancel wins: a cancel that was acknowledged stands, whatever the handler returns later, and the handler is stopped
//! wherever it is.

use std::time::{Duration, Instant};

use piecework::config::Config;
use piecework::job::{FailureClass, JobId};
use piecework::runner::Runner;
use piecework::store::NewJob;
use piecework::telemetry::Event;
use tokio::net::TcpListener;

use super::support::db::Db;
use super::support::guests::Folder;
use super::support::{LONGEST, until};

struct Bed {
    db: Db,
    folder: Folder,
}

impl Bed {
    async fn new() -> Self {
        Self {
            db: Db::new().await,
            folder: Folder::with(&[("probe", "probe")]),
        }
    }

    async fn start(&self, settings: &str) -> Runner {
        let mut config = Config::parse(settings, "runner.toml".as_ref()).unwrap();
        config.database.url = self.db.url().to_owned();
        config.runner.plugins_folder = self.folder.path().into();
        Runner::start(config, self.db.store.clone()).await.unwrap()
    }

    async fn cancel(&self, id: JobId) -> Option<String> {
        self.db.store.cancel(id).await.unwrap()
    }

    async fn end(self, runner: Runner) {
        runner.halt();
        runner.join().await;
        self.db.drop().await;
    }
}

/// Cancels a running job and says how long its handler went on.
async fn stopped_after(bed: &Bed, runner: &Runner, id: JobId) -> Duration {
    bed.db.becomes(id, "running").await;
    let mut events = runner.events().subscribe();
    let begun = Instant::now();
    assert_eq!(bed.cancel(id).await.as_deref(), Some("cancelled"));
    let ended = async {
        loop {
            let event = events.recv().await.unwrap();
            if let Event::Finished {
                id: ended, failure, ..
            } = event
                && ended == id
            {
                assert_eq!(failure, Some(FailureClass::Cancelled));
                return begun.elapsed();
            }
        }
    };
    tokio::time::timeout(LONGEST, ended).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o_25_a_cancelled_handler_is_stopped_wherever_it_is() {
    // Accepts by the kernel's own queue, and never says anything.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let bed = Bed::new().await;
    let rule = format!(
        "[plugins.probe.http]\nallow = [{{ to = \"{}\", private = true }}]\nfirst_byte_timeout = \"20s\"\ntimeout = \"20s\"\n",
        url.trim_end_matches('/')
    );
    for listen in [true, false] {
        let runner = bed
            .start(&format!("[runner]\nlisten = {listen}\n{rule}"))
            .await;
        for payload in [
            r#"{"do":"spin"}"#.to_owned(),
            r#"{"do":"nap_forever"}"#.to_owned(),
            format!(r#"{{"do":"http","url":"{url}"}}"#),
        ] {
            let id = bed.db.enqueue("probe", &payload).await;
            let took = stopped_after(&bed, &runner, id).await;
            // The promise is two seconds; without LISTEN half a second of it goes into noticing.
            assert!(took < Duration::from_secs(2), "{payload}: {took:?}");
            assert_eq!(bed.db.state(id).await, "cancelled");
            let record = "select concat_ws(' ', attempt, failure, run_us > 0, length(plugin)) from piecework.jobs where id = $1";
            until("the record of the attempt", || async {
                (bed.db.text(record, id).await.as_deref() == Some("1 cancelled t 32")).then_some(())
            })
            .await;
        }
        runner.halt();
        runner.join().await;
    }
    bed.db.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o_25_a_handler_is_told_and_may_end_by_itself() {
    let bed = Bed::new().await;
    let runner = bed.start("").await;
    let id = bed.db.enqueue("probe", r#"{"do":"wait_cancelled"}"#).await;
    let took = stopped_after(&bed, &runner, id).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    // What it returned then changes nothing.
    assert_eq!(bed.db.state(id).await, "cancelled");
    assert_eq!(
        bed.db
            .number("select count(*) from piecework.jobs where result is not null")
            .await,
        0
    );
    bed.end(runner).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o_25_whoever_comes_first_around_the_end_of_a_job_wins() {
    let bed = Bed::new().await;
    let runner = bed.start("").await;
    // Each wants a follow-up: one of a cancelled job must never be seen.
    let payload = r#"{"do":"follow","job_type":"next","payload":{},"ms":300}"#;
    let ids = bed.db.enqueue_times(120, "probe", payload).await;
    bed.db.becomes(ids[0], "running").await;
    let mut answers = Vec::new();
    for (n, id) in ids.iter().enumerate() {
        // In turn, over the whole of a job's life and a bit more.
        if n % 12 == 0 {
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
        answers.push((*id, bed.cancel(*id).await.unwrap()));
    }
    bed.db
        .until(
            0,
            "select count(*) from piecework.job where job_type = 'probe'",
        )
        .await;
    // The handlers of cancelled jobs end within a second or two; their results come to nothing.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let mut done = 0;
    for (id, answer) in &answers {
        assert_eq!(bed.db.state(*id).await, *answer, "job {id}");
        done += i64::from(answer == "done");
    }
    assert!(done > 0 && done < 120, "both sides won: {done} were done");
    assert_eq!(
        bed.db
            .number("select count(*) from piecework.job where job_type = 'next'")
            .await,
        done
    );
    assert_eq!(
        bed.db
            .number("select count(*) - count(distinct id) from piecework.job_history")
            .await,
        0
    );
    bed.end(runner).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o_25_jobs_that_wait_are_cancelled_and_those_that_ended_stay() {
    let bed = Bed::new().await;
    let runner = bed.start("[defaults]\nretry_base = \"1h\"\n").await;
    let done = bed.db.enqueue("probe", r#"{"do":"ok"}"#).await;
    let retrying = bed
        .db
        .enqueue("probe", r#"{"do":"fail","text":"x","disposition":"retry"}"#)
        .await;
    let later = NewJob {
        job_type: "probe".into(),
        payload: "{}".into(),
        delay: Some(Duration::from_secs(3600)),
        ..NewJob::default()
    };
    let later = bed.db.store.enqueue(&later).await.unwrap();
    bed.db.becomes(done, "done").await;
    until("the first attempt", || async {
        let attempts =
            "select jsonb_array_length(attempts)::text from piecework.jobs where id = $1";
        bed.db.text(attempts, retrying).await
    })
    .await;
    for id in [retrying, later] {
        assert_eq!(bed.cancel(id).await.as_deref(), Some("cancelled"));
        // Twice is the same as once.
        assert_eq!(bed.cancel(id).await.as_deref(), Some("cancelled"));
        assert_eq!(bed.db.state(id).await, "cancelled");
    }
    assert_eq!(bed.cancel(done).await.as_deref(), Some("done"));
    assert_eq!(bed.db.state(done).await, "done");
    assert_eq!(bed.cancel(JobId(-1)).await, None);
    // Why its attempts had failed is kept.
    let kept = "select concat_ws(' ', failure, last_error, attempts -> 0 ->> 'failure') from piecework.jobs where id = $1";
    assert_eq!(
        bed.db.text(kept, retrying).await.as_deref(),
        Some("cancelled x guest_retry")
    );
    bed.end(runner).await;
}

#[tokio::test]
async fn a_cancel_in_the_callers_transaction_is_taken_back_with_it() {
    let bed = Bed::new().await;
    let id = bed.db.enqueue("probe", "{}").await;
    let mut transaction = bed.db.pool.begin().await.unwrap();
    let said: Option<String> = sqlx::query_scalar("select piecework.cancel($1)")
        .bind(id.0)
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    assert_eq!(said.as_deref(), Some("cancelled"));
    transaction.rollback().await.unwrap();
    assert_eq!(bed.db.state(id).await, "pending");
    bed.db.drop().await;
}

/// Somebody cancels in a transaction and then thinks for a long time: the job waits for them, nobody else does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_that_is_not_committed_holds_up_no_other_job() {
    let bed = Bed::new().await;
    let runner = bed.start("").await;
    let ids = bed
        .db
        .enqueue_times(3, "probe", r#"{"do":"nap","ms":300}"#)
        .await;
    bed.db.becomes(ids[0], "running").await;
    let mut transaction = bed.db.pool.begin().await.unwrap();
    let said: Option<String> = sqlx::query_scalar("select piecework.cancel($1)")
        .bind(ids[0].0)
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    assert_eq!(said.as_deref(), Some("cancelled"));
    for id in &ids[1..] {
        bed.db.becomes(*id, "done").await;
    }
    let more = bed.db.enqueue("probe", r#"{"do":"ok"}"#).await;
    bed.db.becomes(more, "done").await;
    // Nothing waits at the server for the lock either, beyond half a second.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    assert!(bed.db.number(waiting).await <= 1);
    assert_eq!(bed.db.state(ids[0]).await, "running", "for all others");
    transaction.rollback().await.unwrap();
    bed.db.becomes(ids[0], "done").await;
    bed.end(runner).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_whose_job_was_taken_over_is_stopped_and_writes_nothing() {
    let bed = Bed::new().await;
    let runner = bed.start("").await;
    let id = bed
        .db
        .enqueue(
            "probe",
            r#"{"do":"steps","steps":900,"fail_at":null,"ms":5}"#,
        )
        .await;
    let saved = "select checkpoint ->> 'step' from piecework.jobs where id = $1";
    until("some steps", || async { bed.db.text(saved, id).await }).await;
    let mut events = runner.events().subscribe();
    // Another claim, as a reaper and another runner would make one.
    let moved = sqlx::query(
        "update piecework.job set claim = claim + 1000, checkpoint = '{\"step\": \"mine\"}' where id = $1",
    )
    .bind(id.0)
    .execute(&bed.db.pool)
    .await
    .unwrap();
    assert_eq!(moved.rows_affected(), 1);
    let stale = async {
        while !matches!(events.recv().await.unwrap(), Event::Stale { id: ended } if ended == id) {}
    };
    tokio::time::timeout(LONGEST, stale).await.unwrap();
    assert_eq!(bed.db.text(saved, id).await.as_deref(), Some("mine"));
    assert_eq!(bed.db.state(id).await, "running");
    bed.end(runner).await;
}
