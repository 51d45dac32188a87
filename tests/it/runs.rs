//! Jobs from the enqueue to the end, with a runner in this process.

use std::time::Duration;

use piecework::config::{Config, PluginSettings, Span};
use piecework::job::JobId;
use piecework::runner::Runner;
use piecework::store::NewJob;

use super::support::db::Db;
use super::support::guests::Folder;

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

    /// Quick retries; everything else by default.
    fn config(&self) -> Config {
        let mut config = self.db.config(self.folder.path());
        config.defaults.retry_base = Span::millis(20);
        config.defaults.retry_max = Span::millis(50);
        config
    }

    async fn start(&self) -> Runner {
        Runner::start(self.config(), self.db.store.clone())
            .await
            .unwrap()
    }

    async fn ended(&self, id: JobId) -> String {
        super::support::until("the job's end", || async {
            let state = self.db.state(id).await;
            (state != "pending" && state != "running").then_some(state)
        })
        .await
    }

    async fn column(&self, id: JobId, column: &'static str) -> String {
        self.db.text(column, id).await.unwrap_or_default()
    }

    async fn end(self, runner: Runner) {
        runner.halt();
        runner.join().await;
        assert_eq!(
            self.db
                .number("select count(*) from piecework.job where state = 'running'")
                .await,
            0
        );
        self.db.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_ends_with_its_result_and_a_record_of_what_it_used() {
    let bed = Bed::new().await;
    let runner = bed.start().await;
    let id = bed.db.enqueue("probe", r#"{"do":"echo","n":[9007199254740993,18446744073709551616,1.10,0.1000000000000000055511151231257827]}"#).await;
    assert_eq!(bed.ended(id).await, "done");
    // O-18: numbers arrive, and come back, digit for digit.
    let result = bed
        .column(
            id,
            "select result ->> 'n' from piecework.jobs where id = $1",
        )
        .await;
    assert_eq!(
        result,
        "[9007199254740993, 18446744073709551616, 1.10, 0.1000000000000000055511151231257827]"
    );
    let used = "select concat_ws(' ', attempt, run_us > 0, peak_memory > 0, length(encode(plugin, 'hex')), runner is not null, started_at is not null)
                from piecework.job_history where id = $1";
    assert_eq!(bed.column(id, used).await, "1 t t 64 t t");
    bed.end(runner).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_comes_back_and_the_last_attempt_fails_for_good() {
    let bed = Bed::new().await;
    let runner = bed.start().await;
    let again = bed
        .db
        .enqueue(
            "probe",
            r#"{"do":"fail","text":"not yet","disposition":"retry","until":2}"#,
        )
        .await;
    let never = NewJob {
        job_type: "probe".into(),
        payload: r#"{"do":"boom","text":"order 4711"}"#.into(),
        max_attempts: Some(3),
        ..NewJob::default()
    };
    let never = bed.db.store.enqueue(&never).await.unwrap();
    let discarded = bed
        .db
        .enqueue(
            "probe",
            r#"{"do":"fail","text":"no such customer","disposition":"discard"}"#,
        )
        .await;
    assert_eq!(
        (
            bed.ended(again).await.as_str(),
            bed.ended(never).await.as_str(),
            bed.ended(discarded).await.as_str()
        ),
        ("done", "failed", "failed")
    );
    let attempts = "select concat_ws(' ', attempt, jsonb_array_length(attempts), attempts -> 0 ->> 'failure', attempts -> 0 ->> 'error') from piecework.jobs where id = $1";
    assert_eq!(bed.column(again, attempts).await, "3 2 guest_retry not yet");
    assert_eq!(bed.column(never, "select concat_ws(' ', attempt, jsonb_array_length(attempts), failure) from piecework.jobs where id = $1").await, "3 2 trap");
    assert!(
        bed.column(never, "select last_error from piecework.jobs where id = $1")
            .await
            .contains("order 4711")
    );
    assert_eq!(
        bed.column(
            discarded,
            "select concat_ws(' ', attempt, failure, last_error) from piecework.jobs where id = $1"
        )
        .await,
        "1 guest_discard no such customer"
    );
    bed.end(runner).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snooze_uses_no_attempt() {
    let bed = Bed::new().await;
    let runner = bed.start().await;
    let id = bed
        .db
        .enqueue(
            "probe",
            r#"{"do":"fail","text":"office hours","disposition":"snooze","seconds":3600}"#,
        )
        .await;
    let snoozed = "select count(*) from piecework.job where state = 'pending' and attempt = 0 and due_at > now() + interval '50 minutes' and attempts -> 0 ->> 'failure' = 'snoozed'";
    bed.db.until(1, snoozed).await;
    assert_eq!(
        bed.column(id, "select last_error from piecework.jobs where id = $1")
            .await,
        "office hours"
    );
    bed.end(runner).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follow_up_runs_after_its_parent_and_names_it() {
    let bed = Bed::new().await;
    let runner = bed.start().await;
    let parent = bed
        .db
        .enqueue(
            "probe",
            r#"{"do":"follow","job_type":"probe","payload":{"do":"ok"},"count":2,"then":"ok"}"#,
        )
        .await;
    assert_eq!(bed.ended(parent).await, "done");
    bed.db
        .until(
            3,
            "select count(*) from piecework.job_history where state = 'done'",
        )
        .await;
    assert_eq!(
        bed.column(
            parent,
            "select count(*)::text from piecework.job_history where parent = $1"
        )
        .await,
        "2"
    );
    bed.end(runner).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_seen_while_the_job_runs() {
    let bed = Bed::new().await;
    let runner = bed.start().await;
    let id = bed
        .db
        .enqueue("probe", r#"{"do":"progress","steps":200,"ms":20}"#)
        .await;
    bed.db.until(1, "select count(*) from piecework.job where state = 'running' and (progress ->> 'percent')::int > 0 and progress ->> 'message' like 'step % of 200'").await;
    assert_eq!(bed.ended(id).await, "done");
    bed.end(runner).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_job_type_leaves_the_slots_to_others() {
    let bed = Bed::new().await;
    bed.folder
        .put("other", &super::support::guests::bytes("probe"));
    let mut config = bed.config();
    config.runner.slots = 4;
    config.plugins.insert(
        "probe".into(),
        PluginSettings {
            concurrency: Some(2),
            ..PluginSettings::default()
        },
    );
    for _ in 0..6 {
        bed.db.enqueue("probe", r#"{"do":"nap","ms":300}"#).await;
    }
    let others: Vec<_> = futures_of(&bed, 6).await;
    let runner = Runner::start(config, bed.db.store.clone()).await.unwrap();
    let most = std::sync::atomic::AtomicI64::new(0);
    super::support::until("all to end", || async {
        let running = bed
            .db
            .number(
                "select count(*) from piecework.job where state = 'running' and job_type = 'probe'",
            )
            .await;
        most.fetch_max(running, std::sync::atomic::Ordering::Relaxed);
        (bed.db.number("select count(*) from piecework.job").await == 0).then_some(())
    })
    .await;
    assert_eq!(most.into_inner(), 2);
    for id in others {
        assert_eq!(bed.db.state(id).await, "done");
    }
    // The others did not wait for the full type.
    let behind = "select count(*) from piecework.job_history o where job_type = 'other' and finished_at > (select max(finished_at) from piecework.job_history where job_type = 'probe')";
    assert_eq!(bed.db.number(behind).await, 0);
    bed.end(runner).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_job_type_keeps_nobody_busy() {
    let bed = Bed::new().await;
    bed.folder
        .put("other", &super::support::guests::bytes("probe"));
    let mut config = bed.config();
    let one = PluginSettings {
        concurrency: Some(1),
        ..PluginSettings::default()
    };
    config.plugins.insert("probe".into(), one);
    for _ in 0..4 {
        bed.db.enqueue("probe", r#"{"do":"nap","ms":500}"#).await;
    }
    let runner = Runner::start(config, bed.db.store.clone()).await.unwrap();
    bed.db.until(0, "select count(*) from piecework.job").await;
    // Two a job, and the polls of two seconds.
    let rounds = runner
        .events()
        .rounds
        .load(std::sync::atomic::Ordering::Relaxed);
    assert!(rounds < 60, "{rounds} round trips for 4 jobs");
    bed.end(runner).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_retry_is_not_left_to_a_long_poll() {
    let bed = Bed::new().await;
    let runner = bed.start().await;
    // Idle until its polls are seconds apart: 0.1 s, 0.2 s, 0.4 s, ...
    super::support::until("the polls to become rare", || async {
        let rounds = &runner.events().rounds;
        (rounds.load(std::sync::atomic::Ordering::Relaxed) > 7).then_some(())
    })
    .await;
    let id = bed
        .db
        .enqueue(
            "probe",
            r#"{"do":"fail","text":"not yet","disposition":"retry","until":3}"#,
        )
        .await;
    assert_eq!(bed.ended(id).await, "done");
    // Three retries of 20 to 60 ms.
    let late = "select count(*) from piecework.job_history where finished_at > enqueued_at + interval '1 second'";
    assert_eq!(bed.db.number(late).await, 0);
    bed.end(runner).await;
}

async fn futures_of(bed: &Bed, jobs: usize) -> Vec<JobId> {
    let mut ids = Vec::new();
    for _ in 0..jobs {
        ids.push(bed.db.enqueue("other", r#"{"do":"ok"}"#).await);
    }
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_start_when_they_are_due_and_not_before() {
    let bed = Bed::new().await;
    let runner = bed.start().await;
    for millis in [300, 600, 900] {
        let job = NewJob {
            job_type: "probe".into(),
            payload: r#"{"do":"ok"}"#.into(),
            delay: Some(Duration::from_millis(millis)),
            ..NewJob::default()
        };
        bed.db.store.enqueue(&job).await.unwrap();
    }
    bed.db
        .until(
            3,
            "select count(*) from piecework.job_history where state = 'done'",
        )
        .await;
    // Judged by the database alone: O-14 allows two seconds.
    assert_eq!(bed.db.number("select count(*) from piecework.job_history where started_at < due_at or started_at > due_at + interval '2 seconds'").await, 0);
    bed.end(runner).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_listen_polling_does_it() {
    let bed = Bed::new().await;
    let mut config = bed.config();
    config.runner.listen = false;
    config.runner.poll_without_listen = Span::millis(100);
    let runner = Runner::start(config, bed.db.store.clone()).await.unwrap();
    for _ in 0..5 {
        let id = bed.db.enqueue("probe", r#"{"do":"ok"}"#).await;
        assert_eq!(bed.ended(id).await, "done");
    }
    bed.end(runner).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_jobs_of_two_runners_run_once_each() {
    let bed = Bed::new().await;
    let jobs: Vec<_> = (0..1000).map(|n| serde_json::json!({ "job_type": "probe", "payload": { "do": "ok", "n": n }, "priority": 1 + n % 4 })).collect();
    bed.db
        .store
        .enqueue_many(&serde_json::to_string(&jobs).unwrap())
        .await
        .unwrap();
    let (one, two) = (bed.start().await, bed.start().await);
    bed.db
        .until(
            1000,
            "select count(*) from piecework.job_history where state = 'done' and attempt = 1",
        )
        .await;
    assert_eq!(
        bed.db
            .number("select count(distinct id) from piecework.job_history")
            .await,
        1000
    );
    two.drain();
    two.join().await;
    bed.end(one).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_that_was_declared_dead_stops_its_guests_and_registers_anew() {
    let bed = Bed::new().await;
    let mut config = bed.config();
    config.runner.beat = Span::millis(200);
    let runner = Runner::start(config, bed.db.store.clone()).await.unwrap();
    let before = runner.identity().unwrap();
    let id = bed.db.enqueue("probe", r#"{"do":"nap","ms":60000}"#).await;
    bed.db
        .until(
            1,
            "select count(*) from piecework.job where state = 'running'",
        )
        .await;
    sqlx::query("update piecework.runner set state = 'dead'")
        .execute(&bed.db.pool)
        .await
        .unwrap();
    // Taken back once, and claimed again by the same process under its new name.
    bed.db
        .until(
            1,
            "select count(*) from piecework.job where state = 'running' and attempt = 2",
        )
        .await;
    assert!(runner.identity().is_some_and(|now| now != before));
    assert_eq!(
        bed.column(
            id,
            "select attempts -> 0 ->> 'failure' from piecework.jobs where id = $1"
        )
        .await,
        "host_lost"
    );
    // And it stops as it should.
    runner.halt();
    runner.join().await;
    assert_eq!(
        bed.db
            .number("select count(*) from piecework.job where state = 'pending' and attempt = 1")
            .await,
        1,
        "handed back, the attempt refunded"
    );
    bed.db.drop().await;
}

/// O-17, result side: what the database cannot keep ends the job in one step, with its cause.
#[tokio::test(flavor = "multi_thread")]
async fn o_17_a_result_that_jsonb_cannot_keep_ends_the_job_after_one_attempt() {
    let bed = Bed::new().await;
    let runner = bed.start().await;
    for (result, cause) in [
        (r#"{"r":"\u0000"}"#, "U+0000"),
        (r#""\ud800""#, "half a surrogate pair"),
        ("{", "not JSON"),
        ("1e1000000", "more digits than PostgreSQL can keep"),
        (
            "[1e100000,1e100000,1e100000,1e100000,1e100000,1e100000,1e100000,1e100000,1e100000,1e100000,1e100000]",
            "written out",
        ),
    ] {
        let payload = serde_json::json!({ "do": "result", "text": result });
        let id = bed.db.enqueue("probe", &payload.to_string()).await;
        assert_eq!(bed.ended(id).await, "failed", "{result}");
        let how =
            "select concat_ws(' ', attempt, failure, last_error) from piecework.jobs where id = $1";
        let how = bed.column(id, how).await;
        assert!(
            how.starts_with("1 bad_result ") && how.contains(cause),
            "{result}: {how}"
        );
    }
    bed.end(runner).await;
}

/// O-39: what a handler said when it died is in the job, with the kind of the trap and the plugin's version; and each kind
/// of end can be told by a field.
#[tokio::test(flavor = "multi_thread")]
async fn o_39_a_panics_message_reaches_the_operator() {
    let bed = Bed::new().await;
    let runner = bed.start().await;
    let how =
        "select concat_ws(' ', attempt, failure, last_error) from piecework.jobs where id = $1";
    for (payload, begin, words) in [
        (
            r#"{"do":"boom","text":"order 4711 has no lines"}"#,
            "2 trap ",
            &["order 4711 has no lines", "unreachable", "(plugin "][..],
        ),
        (
            r#"{"do":"exit","code":3}"#,
            "2 trap ",
            &["exited with code", "(plugin "],
        ),
        (
            r#"{"do":"exit","code":0}"#,
            "2 trap ",
            &["exited with code 0"],
        ),
        (
            r#"{"do":"fail","text":"try again","disposition":"retry"}"#,
            "2 guest_retry ",
            &["try again"],
        ),
        // For good: not tried again.
        (
            r#"{"do":"fail","text":"no such customer","disposition":"discard"}"#,
            "1 guest_discard ",
            &["no such customer"],
        ),
        (
            r#"{"do":"grow","mib":4000}"#,
            "2 out_of_memory ",
            &["the limit is 67108864"],
        ),
    ] {
        let job = NewJob {
            job_type: "probe".into(),
            payload: payload.into(),
            max_attempts: Some(2),
            ..NewJob::default()
        };
        let id = bed.db.store.enqueue(&job).await.unwrap();
        assert_eq!(bed.ended(id).await, "failed", "{payload}");
        let how = bed.column(id, how).await;
        assert!(how.starts_with(begin), "{payload}: {how}");
        for word in words {
            assert!(how.contains(word), "{payload}: {how}");
        }
    }
    bed.end(runner).await;
}
