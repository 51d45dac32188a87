//! How long ended jobs are kept: what is dropped, what is not, and who waits for it.

use std::time::Duration;

use piecework::job::{FailureClass, JobId, RunnerId};
use piecework::runner::Runner;
use piecework::store::{Dropped, Error, NewJob, Verdict};
use piecework::telemetry::Event;
use rustix::process::Signal;
use sqlx::{Connection, PgConnection};

use super::fence::{demand, finish, runner};
use super::support::LONGEST;
use super::support::db::Db;
use super::support::guests::Folder;
use super::support::process::Host;

/// The day that lies so many days back as it was when it was made, with a job of each state: a table for each of them, or with
/// `plain` one table as version 2 made it.
async fn old_day(db: &Db, days: i32, plain: bool) {
    sqlx::raw_sql(
        "create or replace function old_day(days int, plain boolean) returns void language plpgsql as $$
         declare
           day date := (now() at time zone 'utc')::date - days;
           name text := 'job_history_' || to_char(day, 'YYYYMMDD');
           state text;
         begin
           execute format('create table piecework.%I (like piecework.job_history including defaults including constraints) %s',
                          name, case when plain then '' else 'partition by list (state)' end);
           foreach state in array array['done', 'failed', 'cancelled'] loop
             if not plain then
               execute format('create table piecework.%I partition of piecework.%I for values in (%L)', name || '_' || state, name, state);
             end if;
           end loop;
           execute format('alter table piecework.job_history attach partition piecework.%I for values from (%L) to (%L)',
                          name, day::timestamp at time zone 'utc', (day + 1)::timestamp at time zone 'utc');
           perform ended(days);
         end $$;
         create or replace function ended(days int) returns void language sql as $$
           insert into piecework.job_history (id, job_type, state, priority, due_at, attempt, max_attempts, enqueued_at, finished_at, payload)
           select -days * 10 - n, 'a', (array['done', 'failed', 'cancelled'])[n]::piecework.job_state, 2, now(), 1, 5, now(),
                  ((now() at time zone 'utc')::date - days + time '12:00') at time zone 'utc', '{}'
           from generate_series(1, 3) n
         $$;",
    )
    .execute(&db.pool)
    .await
    .unwrap();
    sqlx::query("select old_day($1, $2)")
        .bind(days)
        .bind(plain)
        .execute(&db.pool)
        .await
        .unwrap();
}

/// The days back and states that the history has jobs of.
async fn kept(db: &Db) -> Vec<String> {
    sqlx::query_scalar(
        "select concat(-id / 10, ' ', state) from piecework.job_history where id < 0 order by id desc",
    )
    .fetch_all(&db.pool)
    .await
    .unwrap()
}

/// Drops until nothing is left to drop; how many tables that were, and how many jobs one by one.
async fn drop_all(db: &Db) -> (usize, i64) {
    let (mut tables, mut jobs) = (0, 0);
    loop {
        let dropped = db.store.drop_old_history().await.unwrap();
        if dropped.is_empty() {
            return (tables, jobs);
        }
        for step in dropped {
            assert!(!step.put_off, "{step:?}");
            tables += usize::from(step.jobs.is_none());
            jobs += step.jobs.unwrap_or(0);
        }
    }
}

const DAY: Duration = Duration::from_secs(86_400);

#[tokio::test]
async fn each_state_is_kept_as_long_as_is_set() {
    let db = Db::new().await;
    for days in [1, 7, 8, 30, 31, 90, 91] {
        old_day(&db, days, false).await;
    }
    // Nothing a full week old of what is kept for a week: day 7 is over since less than that.
    assert_eq!(drop_all(&db).await, (5 + 3 + 1 + 1, 0));
    let expected = [
        "1 done",
        "1 failed",
        "1 cancelled",
        "7 done",
        "7 failed",
        "7 cancelled",
        "8 failed",
        "8 cancelled",
        "30 failed",
        "30 cancelled",
        "31 failed",
        "90 failed",
    ];
    assert_eq!(kept(&db).await, expected);
    // Day 91 is gone with its last table, and no other.
    let days = "select count(*) from pg_inherits i join pg_class c on c.oid = i.inhrelid
                where i.inhparent = 'piecework.job_history'::regclass and c.relname ~ '\\d$'";
    assert_eq!(db.number(days).await, 6 + 8);
    assert!(db.store.keep("failed", 8 * DAY).await.unwrap());
    assert!(
        !db.store.keep("failed", 8 * DAY).await.unwrap(),
        "it was so"
    );
    assert_eq!(drop_all(&db).await, (3 + 2, 0), "three states, two days");
    assert_eq!(kept(&db).await.last().unwrap(), "30 cancelled");
    // Less than a day: until the day is over, and then that long. Today stays.
    for state in ["done", "failed", "cancelled"] {
        db.store.keep(state, Duration::from_secs(60)).await.unwrap();
    }
    // Just after midnight the rule of an hour keeps yesterday.
    if db
        .number("select extract(hour from now() at time zone 'utc')::bigint")
        .await
        > 0
    {
        drop_all(&db).await;
        assert!(kept(&db).await.is_empty());
    }
    assert_eq!(db.number(days).await.min(8), 8, "today and a week ahead");
    db.drop().await;
}

#[tokio::test]
async fn days_of_version_2_go_when_no_state_of_them_is_kept() {
    let db = Db::new().await;
    old_day(&db, 89, true).await;
    old_day(&db, 91, true).await;
    assert_eq!(drop_all(&db).await, (1, 0));
    assert_eq!(kept(&db).await, ["89 done", "89 failed", "89 cancelled"]);
    db.store.keep("failed", 7 * DAY).await.unwrap();
    assert_eq!(drop_all(&db).await, (1, 0));
    // A state without a setting is kept for ever.
    old_day(&db, 200, true).await;
    sqlx::query("delete from piecework.retention where state = 'done'")
        .execute(&db.pool)
        .await
        .unwrap();
    assert_eq!(drop_all(&db).await, (0, 0));
    db.drop().await;
}

#[tokio::test]
async fn what_no_day_took_is_deleted_by_whole_days() {
    let db = Db::new().await;
    old_day(&db, 200, false).await;
    sqlx::raw_sql("select ended(n) from generate_series(1, 100) n")
        .execute(&db.pool)
        .await
        .unwrap();
    // The three tables of the 200th day, and the day; of 100 days each state beyond its own.
    assert_eq!(drop_all(&db).await, (4, 93 + 10 + 70));
    assert_eq!(
        db.number("select count(*) from piecework.job_history_default where state = 'done'")
            .await,
        7
    );
    // In steps of a thousand.
    sqlx::raw_sql("select ended(91) from generate_series(1, 700) n")
        .execute(&db.pool)
        .await
        .unwrap();
    let step = db.store.drop_old_history().await.unwrap();
    let expected = Dropped {
        table: "job_history_default".into(),
        jobs: Some(1000),
        put_off: false,
    };
    assert_eq!(step, [expected]);
    assert_eq!(drop_all(&db).await, (0, 1100));
    db.drop().await;
}

#[tokio::test]
async fn nonsense_is_refused() {
    let db = Db::new().await;
    for (call, says) in [
        (
            "piecework.keep('pending', '1 day')",
            "jobs do not end as pending",
        ),
        ("piecework.keep(null, '1 day')", "jobs do not end as null"),
        (
            "piecework.keep('done', '-1 day')",
            "jobs cannot be kept for -1 days",
        ),
        (
            "piecework.keep('done', '101 years')",
            "jobs cannot be kept for 101 years",
        ),
        (
            "piecework.keep('done', null)",
            "jobs cannot be kept for null",
        ),
    ] {
        let refusal = db.refusal(call).await;
        assert!(refusal.contains(says), "{call}: {refusal}");
    }
    assert!(matches!(
        db.store.keep("running", DAY).await,
        Err(Error::Refused { .. })
    ));
    db.drop().await;
}

/// Dropping the table of an old day, while somebody reads it, holds up no finish of today; and it does not wait long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drop_that_waits_holds_up_no_finish() {
    let db = Db::new().await;
    old_day(&db, 20, false).await;
    old_day(&db, 95, true).await;
    let mut reader = PgConnection::connect(db.url()).await.unwrap();
    let mut transaction = reader.begin().await.unwrap();
    let read = "select count(*) from piecework.job_history where state = 'done'";
    sqlx::query(read).execute(&mut *transaction).await.unwrap();
    // The day of version 2 first, by itself; then what else can be dropped.
    let dropped = db.store.drop_old_history().await.unwrap();
    assert!(dropped.iter().all(|step| step.put_off), "{dropped:?}");
    assert_eq!(dropped.len(), 2, "{dropped:?}");
    // The same statement as the function's, without its limit on waiting.
    let leaf: String = sqlx::query_scalar(
        "select 'piecework.' || relname from pg_class where relname ~ '_done$' and relname < 'job_history_'
           || to_char((now() - interval '1 day') at time zone 'utc', 'YYYYMMDD') and relkind = 'r'",
    )
    .fetch_one(&db.pool)
    .await
    .unwrap();
    let (pool, statement) = (db.pool.clone(), format!("drop table {leaf}"));
    let waits = tokio::spawn(async move {
        #[expect(
            clippy::disallowed_methods,
            reason = "a name that the database has given"
        )]
        let drop = sqlx::AssertSqlSafe(statement);
        sqlx::raw_sql(drop).execute(&pool).await.unwrap();
    });
    db.until(
        1,
        "select count(*) from pg_locks l join pg_database d on d.oid = l.database
         where d.datname = current_database() and not l.granted and l.mode = 'AccessExclusiveLock'",
    )
    .await;
    let me = runner(&db).await;
    ended_as(&db, me, Verdict::Done(None)).await;
    // Our connections wait for half a second at most, so this did not. (A look at the history would have to wait.)
    assert_eq!(db.number("select count(*) from piecework.job").await, 0);
    transaction.rollback().await.unwrap();
    waits.await.unwrap();
    drop_all(&db).await;
    assert_eq!(kept(&db).await, ["20 failed", "20 cancelled"]);
    reader.close().await.unwrap();
    db.drop().await;
}

/// Enqueues a job of type `a`, claims it, and ends it so.
async fn ended_as(db: &Db, me: RunnerId, verdict: Verdict) -> JobId {
    let id = db.enqueue("a", "{}").await;
    let job = db
        .store
        .claim(&demand(me, &[("a", 1)], 1))
        .await
        .unwrap()
        .remove(0);
    let cycle = db
        .store
        .round(&[finish(&job, verdict)], None)
        .await
        .unwrap();
    assert!(cycle.stale.is_empty());
    id
}

#[tokio::test]
async fn nothing_is_kept_for_no_time() {
    let db = Db::new().await;
    let me = runner(&db).await;
    db.store.keep("done", Duration::ZERO).await.unwrap();
    let done = ended_as(&db, me, Verdict::Done(Some("1".into()))).await;
    let failed = ended_as(&db, me, Verdict::Failed).await;
    assert_eq!(db.state(done).await, "");
    assert_eq!(db.state(failed).await, "failed");
    // A key is free when its job has ended, and taken to the end of its window, as ever.
    let keyed = NewJob {
        job_type: "a".into(),
        payload: "{}".into(),
        unique_key: Some("k".into()),
        unique_for: Some(DAY),
        ..NewJob::default()
    };
    let first = db.store.enqueue(&keyed).await.unwrap();
    let job = db
        .store
        .claim(&demand(me, &[("a", 1)], 1))
        .await
        .unwrap()
        .remove(0);
    assert_eq!(job.id, first);
    let end = finish(&job, Verdict::Done(None));
    db.store
        .round(std::slice::from_ref(&end), None)
        .await
        .unwrap();
    assert_eq!(db.store.enqueue(&keyed).await.unwrap(), first);
    // What cannot be known any more: that the round had been written.
    let again = db.store.round(&[end], None).await.unwrap();
    assert_eq!(again.stale.len(), 1);
    assert!(db.store.ends(&again.stale).await.unwrap().is_empty());
    // Cancelled, and lost with its last attempt.
    for state in ["failed", "cancelled"] {
        db.store.keep(state, Duration::ZERO).await.unwrap();
    }
    let id = db.enqueue("b", "{}").await;
    assert_eq!(
        db.store.cancel(id).await.unwrap().as_deref(),
        Some("cancelled")
    );
    assert_eq!(db.store.cancel(id).await.unwrap(), None);
    assert_eq!(db.store.retry(id).await.unwrap(), None);
    sqlx::query("insert into piecework.job (job_type, state, attempt, max_attempts, claim, runner, started_at) values ('a', 'running', 1, 1, 1, 0, now())")
        .execute(&db.pool)
        .await
        .unwrap();
    let reaped = db.store.reap(10).await.unwrap();
    assert!(reaped.len() == 1 && reaped[0].failed);
    assert_eq!(
        db.number("select count(*) from piecework.jobs").await,
        1,
        "the one that failed before"
    );
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_handler_is_stopped_also_when_nothing_of_it_is_kept() {
    let db = Db::new().await;
    let folder = Folder::with(&[("probe", "probe")]);
    db.store.keep("cancelled", Duration::ZERO).await.unwrap();
    let config = db.config(folder.path());
    let runner = Runner::start(config, db.store.clone()).await.unwrap();
    let mut events = runner.events().subscribe();
    let id = db.enqueue("probe", r#"{"do":"nap_forever"}"#).await;
    db.becomes(id, "running").await;
    db.store.cancel(id).await.unwrap();
    let stopped = async {
        loop {
            if let Event::Finished {
                id: ended, failure, ..
            } = events.recv().await.unwrap()
                && ended == id
            {
                return failure;
            }
        }
    };
    let failure = tokio::time::timeout(LONGEST, stopped).await.unwrap();
    assert_eq!(failure, Some(FailureClass::Cancelled));
    assert_eq!(db.number("select count(*) from piecework.jobs").await, 0);
    runner.halt();
    runner.join().await;
    db.drop().await;
}

#[tokio::test]
async fn process_a_runner_drops_what_is_old_and_says_so() {
    let db = Db::new().await;
    old_day(&db, 100, false).await;
    let plugins = Folder::with(&[("noop", "noop")]);
    let mut host = Host::start(&db, plugins.path(), "");
    // Three states, and the day.
    host.reaches("old history dropped", 4).await;
    assert!(kept(&db).await.is_empty());
    host.signal(Signal::TERM);
    assert!(host.ended().await.success());
    db.drop().await;
}

/// What the lists and retries look into: of 300 tables those of the state, or one.
#[tokio::test]
async fn lists_and_retries_leave_the_tables_of_other_states_alone() {
    let db = Db::new().await;
    old_day(&db, 3, false).await;
    old_day(&db, 5, false).await;
    let failed = db.store.jobs_list(Some("failed"), None, 50).await.unwrap();
    let ids: Vec<_> = failed.iter().map(|job| job.id.0).collect();
    assert_eq!(ids, [-32, -52]);
    assert_eq!(
        db.store
            .jobs_list(Some("done"), Some("b"), 50)
            .await
            .unwrap()
            .len(),
        0
    );
    assert_eq!(
        db.store.jobs_list(None, Some("a"), 50).await.unwrap().len(),
        6
    );
    db.enqueue("a", "{}").await;
    assert_eq!(
        db.store
            .jobs_list(Some("pending"), Some("a"), 50)
            .await
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        db.store
            .jobs_list(Some("running"), None, 50)
            .await
            .unwrap()
            .len(),
        0
    );
    // Locks say what a statement has looked into.
    let mut connection = PgConnection::connect(db.url()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    let tables = "select count(*) from pg_locks l join pg_class c on c.oid = l.relation
                  where l.pid = pg_backend_pid() and c.relname ~ '^job_history_2\\d+_' and c.relkind = 'r'";
    let started: bool = sqlx::query_scalar(
        "select piecework.start_anew(-32, 'failed', finished_at) from (values (((now() at time zone 'utc')::date - 3 + time '12:00') at time zone 'utc')) v (finished_at)",
    )
    .fetch_one(&mut *transaction)
    .await
    .unwrap();
    assert!(started);
    let locked: i64 = sqlx::query_scalar(tables)
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    assert_eq!(locked, 1);
    transaction.rollback().await.unwrap();
    sqlx::raw_sql("set plan_cache_mode = force_generic_plan; prepare listed (text, text, int) as select h.id from piecework.job_history h
                   where h.state = $1::text::piecework.job_state and ($2::text is null or h.job_type = $2::text) order by h.id desc limit $3::int")
        .execute(&mut connection)
        .await
        .unwrap();
    let plan: Vec<String> =
        sqlx::query_scalar("explain (analyze, costs off) execute listed('failed', null, 50)")
            .fetch_all(&mut connection)
            .await
            .unwrap();
    let plan = plan.join("\n");
    assert!(plan.contains("Subplans Removed: "), "{plan}");
    assert!(
        !plan.contains("_done") && !plan.contains("_cancelled"),
        "{plan}"
    );
    connection.close().await.unwrap();
    assert_eq!(db.store.retry_all(None, "cancelled", 1).await.unwrap(), 1);
    assert_eq!(
        db.store.retry_all(Some("a"), "failed", 10).await.unwrap(),
        2
    );
    assert_eq!(
        db.store.retry(JobId(-33)).await.unwrap().as_deref(),
        Some("pending")
    );
    assert_eq!(kept(&db).await, ["3 done", "5 done"]);
    db.drop().await;
}

/// The chain of a parent is found wherever it ended; without a trace of it, it is the first.
#[tokio::test]
async fn the_chain_of_an_ended_job_is_found_on_any_day() {
    let db = Db::new().await;
    let me = runner(&db).await;
    old_day(&db, 5, false).await;
    sqlx::raw_sql("update piecework.job_history set root = 7 where id = -51")
        .execute(&db.pool)
        .await
        .unwrap();
    assert_eq!(db.number("select piecework.root_of(-51)").await, 7);
    assert_eq!(db.number("select piecework.root_of(-52)").await, -52);
    assert_eq!(db.number("select piecework.root_of(4711)").await, 4711);
    let id = ended_as(&db, me, Verdict::Done(None)).await;
    sqlx::query("update piecework.job_history set root = 8 where id = $1")
        .bind(id.0)
        .execute(&db.pool)
        .await
        .unwrap();
    let root = db.text("select piecework.root_of($1)::text", id).await;
    assert_eq!(root.as_deref(), Some("8"));
    db.drop().await;
}

#[tokio::test]
async fn one_host_at_a_time_drops() {
    let db = Db::new().await;
    old_day(&db, 100, false).await;
    let mut other = PgConnection::connect(db.url()).await.unwrap();
    let mut transaction = other.begin().await.unwrap();
    let first: Vec<String> =
        sqlx::query_scalar("select dropped from piecework.drop_old_history(1)")
            .fetch_all(&mut *transaction)
            .await
            .unwrap();
    assert_eq!(first.len(), 1);
    assert!(db.store.drop_old_history().await.unwrap().is_empty());
    transaction.rollback().await.unwrap();
    other.close().await.unwrap();
    assert_eq!(drop_all(&db).await, (4, 0));
    db.drop().await;
}
