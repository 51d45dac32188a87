//! Schedules in the table: who may change them, what a tick gives, what becomes of ticks that nobody was there for.

use std::time::Duration;

use piecework::config::Config;
use piecework::runner::Runner;
use piecework::store::{DueSchedule, Fired, NewSchedule, ScheduleLine};

use super::support::db::Db;
use super::support::guests::Folder;
use super::support::until;

const COUNT: &str = "select count(*) from piecework.jobs";

pub(crate) async fn start(db: &Db, folder: &Folder, change: impl FnOnce(&mut Config)) -> Runner {
    let mut config = db.config(folder.path());
    change(&mut config);
    Runner::start(config, db.store.clone()).await.unwrap()
}

pub(crate) async fn stop(runner: Runner) {
    runner.halt();
    runner.join().await;
}

pub(crate) fn cron(name: &str, cron: &str) -> NewSchedule {
    NewSchedule {
        name: name.into(),
        job_type: "noop".into(),
        payload: "{}".into(),
        cron: Some(cron.into()),
        ..NewSchedule::default()
    }
}

fn every(seconds: u64) -> NewSchedule {
    NewSchedule {
        cron: None,
        every: Some(Duration::from_secs(seconds)),
        ..cron("s", "")
    }
}

pub(crate) async fn line(db: &Db, name: &str) -> ScheduleLine {
    let lines = db.store.schedules_list().await.unwrap();
    lines.into_iter().find(|line| line.name == name).unwrap()
}

/// Waits until a runner has computed the next tick.
pub(crate) async fn planned(db: &Db) {
    db.until(0, "select count(*) from piecework.schedule where next_tick is null and problem is null and paused_at is null")
        .await;
}

/// As if the time had come: the next tick is moved into the past, or the future.
pub(crate) async fn set_next(db: &Db, expression: &'static str) {
    let text = format!("update piecework.schedule set next_tick = {expression}");
    #[expect(
        clippy::disallowed_methods,
        reason = "the text is a constant of a test"
    )]
    sqlx::raw_sql(sqlx::AssertSqlSafe(text))
        .execute(&db.pool)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_tick_gives_one_job_that_carries_its_time() {
    let db = Db::new().await;
    let folder = Folder::with(&[("noop", "noop")]);
    let new = NewSchedule {
        payload: r#"{"n": 1.10}"#.into(),
        priority: Some(3),
        max_attempts: Some(7),
        ordering_key: Some("k".into()),
        tick_as: Some("at".into()),
        ..cron("s", "* * * * * *")
    };
    assert!(db.store.schedule(&new).await.unwrap());
    assert!(!db.store.schedule(&new).await.unwrap(), "just like that");
    let runner = start(&db, &folder, |_| ()).await;
    until("three jobs", || async {
        (db.number("select count(*) from piecework.job_history where state = 'done'")
            .await
            >= 3)
            .then_some(())
    })
    .await;
    stop(runner).await;
    let as_given = "select count(*) from piecework.jobs where job_type <> 'noop' or (payload - 'at')::text <> '{\"n\": 1.10}'
                    or priority <> 3 or max_attempts <> 7 or ordering_key is distinct from 'k'";
    assert_eq!(db.number(as_given).await, 0);
    // Every tick has one job, whose time is the tick; no second is left out.
    let ticks =
        "select count(*) from piecework.schedule_tick t join piecework.jobs j on j.id = t.job";
    assert_eq!(db.number(ticks).await, db.number(COUNT).await);
    let apart = "select count(*) from (select tick - lag(tick) over (order by tick) as apart from piecework.schedule_tick) t
                 where apart <> interval '1 second'";
    assert_eq!(db.number(apart).await, 0);
    // An ordering key moves `due_at`, the payload says it all the same.
    let unlike = "select count(*) from piecework.schedule_tick t join piecework.job_history j on j.id = t.job
                  where (j.payload ->> 'at')::timestamptz <> t.tick or j.payload ->> 'at' not like '____-__-__T__:__:__Z' or t.fired_at < t.tick";
    assert_eq!(db.number(unlike).await, 0);
    let last = "select count(*) from piecework.schedule s join piecework.schedule_tick t on t.schedule = s.name and t.tick = s.last_tick
                where t.job = s.last_job and s.next_tick > s.last_tick";
    assert_eq!(db.number(last).await, 1);
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_is_not_made_up_for() {
    let db = Db::new().await;
    let folder = Folder::with(&[("noop", "noop")]);
    db.store.schedule(&cron("s", "0 * * * *")).await.unwrap();
    let runner = start(&db, &folder, |_| ()).await;
    planned(&db).await;
    assert!(db.store.pause_schedule("s", true).await.unwrap());
    assert!(!db.store.pause_schedule("s", true).await.unwrap());
    assert!(!db.store.pause_schedule("t", true).await.unwrap(), "none");
    set_next(&db, "date_trunc('hour', now()) - interval '3 hours'").await;
    assert_eq!(line(&db, "s").await.state, "paused");
    // A paused one is not looked at, while another goes on.
    let other = NewSchedule {
        name: "t".into(),
        ..every(1)
    };
    db.store.schedule(&other).await.unwrap();
    until("the other's ticks", || async {
        (db.number("select count(*) from piecework.schedule_tick where schedule = 't'")
            .await
            >= 2)
            .then_some(())
    })
    .await;
    let of_s = "select count(*) from piecework.schedule_tick where schedule = 's'";
    assert_eq!(db.number(of_s).await, 0);
    // A change keeps the pause.
    db.store.schedule(&cron("s", "5 * * * *")).await.unwrap();
    assert_eq!(line(&db, "s").await.state, "paused");
    assert!(db.store.pause_schedule("s", false).await.unwrap());
    assert!(!db.store.pause_schedule("s", false).await.unwrap());
    planned(&db).await;
    assert_eq!(line(&db, "s").await.state, "active");
    let later = "select count(*) from piecework.schedule where name = 's' and next_tick > now()";
    assert_eq!(db.number(later).await, 1);
    assert_eq!(db.number(of_s).await, 0);
    stop(runner).await;
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missed_ticks_give_no_job_or_one() {
    for (missed, jobs) in [("skip", 0), ("once", 1)] {
        let db = Db::new().await;
        let folder = Folder::with(&[("noop", "noop")]);
        let new = NewSchedule {
            missed: Some(missed.into()),
            ..every(3600)
        };
        db.store.schedule(&new).await.unwrap();
        set_next(
            &db,
            "date_trunc('hour', now() - interval '5 minutes') - interval '3 hours'",
        )
        .await;
        let runner = start(&db, &folder, |_| ()).await;
        db.until(
            1,
            "select count(*) from piecework.schedule where next_tick > now() and next_tick <= now() + interval '1 hour'",
        )
        .await;
        assert_eq!(db.number(COUNT).await, jobs, "{missed}");
        // It is the newest of those that were missed.
        let newest = "select count(*) from piecework.schedule_tick t join piecework.jobs j on j.id = t.job
                      where j.due_at = t.tick and t.tick > now() - interval '1 hour' and t.tick <= now()";
        assert_eq!(db.number(newest).await, jobs);
        stop(runner).await;
        db.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_that_is_up_to_a_minute_late_is_fired() {
    let db = Db::new().await;
    let folder = Folder::with(&[("noop", "noop")]);
    db.store.schedule(&every(3600)).await.unwrap();
    set_next(&db, "date_trunc('second', now()) - interval '20 seconds'").await;
    let runner = start(&db, &folder, |_| ()).await;
    db.until(1, "select count(*) from piecework.schedule_tick t where t.job is not null and t.tick < now() - interval '19 seconds'")
        .await;
    db.until(
        1,
        "select count(*) from piecework.schedule where next_tick > now()",
    )
    .await;
    stop(runner).await;
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_jobs_are_allowed_or_skipped() {
    let db = Db::new().await;
    // Nobody serves the type, so that jobs stay.
    let folder = Folder::new();
    for (name, overlap) in [("a", None), ("b", Some("skip"))] {
        let new = NewSchedule {
            name: name.into(),
            overlap: overlap.map(str::to_owned),
            ..every(1)
        };
        db.store.schedule(&new).await.unwrap();
    }
    let runner = start(&db, &folder, |_| ()).await;
    let many = "select count(*) from piecework.schedule_tick where schedule = 'b'";
    until("three ticks", || async {
        (db.number(many).await >= 3).then_some(())
    })
    .await;
    let jobs_of_b =
        "select count(*) from piecework.schedule_tick where schedule = 'b' and job is not null";
    assert_eq!(db.number(jobs_of_b).await, 1);
    let without_of_a =
        "select count(*) from piecework.schedule_tick where schedule = 'a' and job is null";
    assert_eq!(db.number(without_of_a).await, 0);
    // The end of the job frees the next tick, whatever end it is.
    sqlx::query("select piecework.cancel(last_job) from piecework.schedule where name = 'b'")
        .execute(&db.pool)
        .await
        .unwrap();
    db.until(2, jobs_of_b).await;
    stop(runner).await;
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_schedules_than_are_read_at_once_all_tick() {
    let db = Db::new().await;
    let folder = Folder::new();
    sqlx::raw_sql(
        "select piecework.schedule('s' || n, 'noop', every => '1 hour') from generate_series(1, 1200) n;
         update piecework.schedule set next_tick = date_trunc('second', now())",
    )
    .execute(&db.pool)
    .await
    .unwrap();
    let one = start(&db, &folder, |_| ()).await;
    let other = start(&db, &folder, |_| ()).await;
    db.until(
        1200,
        "select count(*) from piecework.schedule_tick where job is not null",
    )
    .await;
    assert_eq!(db.number(COUNT).await, 1200);
    stop(one).await;
    stop(other).await;
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o_22_what_sql_cannot_judge_is_refused_by_a_runner_and_shown() {
    let db = Db::new().await;
    let folder = Folder::with(&[("noop", "noop")]);
    for (name, text, zone) in [
        ("never", "0 0 30 2 *", "UTC"),
        ("nonsense", "often", "UTC"),
        ("nowhere", "@daily", "Europe/Berln"),
    ] {
        let new = NewSchedule {
            zone: Some(zone.into()),
            ..cron(name, text)
        };
        db.store.schedule(&new).await.unwrap();
    }
    db.store.schedule(&cron("good", "@daily")).await.unwrap();
    let runner = start(&db, &folder, |_| ()).await;
    db.until(
        3,
        "select count(*) from piecework.schedules where state = 'refused' and next_tick is null",
    )
    .await;
    for (name, says) in [
        ("never", "the cron expression `0 0 30 2 *` can never tick"),
        ("nonsense", "the cron expression `often` is not understood"),
        ("nowhere", "the time zone `Europe/Berln` is not known"),
    ] {
        let problem = line(&db, name).await.problem.unwrap();
        assert!(problem.starts_with(says), "{problem}");
    }
    planned(&db).await;
    // The same again is looked at again, by a newer runner perhaps.
    assert!(db.store.schedule(&cron("nonsense", "often")).await.unwrap());
    db.until(
        3,
        "select count(*) from piecework.schedules where state = 'refused'",
    )
    .await;
    // A better one is taken.
    db.store
        .schedule(&cron("never", "0 0 29 2 *"))
        .await
        .unwrap();
    db.until(
        1,
        "select count(*) from piecework.schedules where name = 'never' and state = 'active' and next_tick > now()",
    )
    .await;
    stop(runner).await;
    db.drop().await;
}

#[tokio::test]
async fn bad_arguments_are_refused_with_the_reason() {
    let db = Db::new().await;
    for (call, says) in [
        (
            "piecework.schedule('', 'a', cron => '@daily')",
            "a schedule needs a name of 1 to 200 characters",
        ),
        (
            "piecework.schedule('s', null, cron => '@daily')",
            "a schedule needs a job type",
        ),
        (
            "piecework.schedule('s', 'a')",
            "a schedule needs one of `cron` and `every`",
        ),
        (
            "piecework.schedule('s', 'a', cron => '@daily', every => '1 hour')",
            "a schedule needs one of",
        ),
        (
            "piecework.schedule('s', 'a', cron => '')",
            "a cron expression has 1 to 500 characters",
        ),
        (
            "piecework.schedule('s', 'a', cron => '@daily', zone => '')",
            "a time zone is a name",
        ),
        (
            "piecework.schedule('s', 'a', every => '1 hour', zone => 'Europe/Berlin')",
            "a fixed interval has no time zone",
        ),
        (
            "piecework.schedule('s', 'a', every => '1 month')",
            "the interval 1 mon is not one of whole seconds",
        ),
        (
            "piecework.schedule('s', 'a', every => '1.5 seconds')",
            "is not one of whole seconds",
        ),
        (
            "piecework.schedule('s', 'a', every => '0')",
            "is not one of whole seconds",
        ),
        (
            "piecework.schedule('s', 'a', every => '366 days')",
            "is not one of whole seconds",
        ),
        (
            "piecework.schedule('s', 'a', every => '1 hour', payload => null)",
            "the payload is null",
        ),
        (
            "piecework.schedule('s', 'a', every => '1 hour', payload => to_jsonb(repeat('x', 1048576)))",
            "the limit is 1048576",
        ),
        (
            "piecework.schedule('s', 'a', every => '1 hour', priority => 5)",
            "priority 5 is not one of",
        ),
        (
            "piecework.schedule('s', 'a', every => '1 hour', max_attempts => null)",
            "max_attempts null is not one of",
        ),
        (
            "piecework.schedule('s', 'a', every => '1 hour', ordering_key => '')",
            "an ordering key has 1 to 500",
        ),
        (
            "piecework.schedule('s', 'a', every => '1 hour', missed => 'all')",
            "missed is skip or once, not all",
        ),
        (
            "piecework.schedule('s', 'a', every => '1 hour', overlap => 'no')",
            "overlap is allow or skip, not no",
        ),
    ] {
        let text = format!("select {call}");
        #[expect(
            clippy::disallowed_methods,
            reason = "the text is a constant of a test"
        )]
        let error = sqlx::raw_sql(sqlx::AssertSqlSafe(text))
            .execute(&db.pool)
            .await
            .unwrap_err();
        let code = error.as_database_error().unwrap().code().unwrap();
        assert_eq!(code, "22023", "{call}: {error}");
        assert!(error.to_string().contains(says), "{call}: {error}");
    }
    assert_eq!(
        db.number("select count(*) from piecework.schedule").await,
        0
    );
    db.drop().await;
}

/// One row of what a runner reads.
async fn read(db: &Db) -> DueSchedule {
    let due = db.store.schedules_due(Duration::from_secs(5), 10).await;
    due.unwrap().remove(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o_21_of_many_that_fire_one_tick_at_once_one_does() {
    let db = Db::new().await;
    db.store.schedule(&every(3600)).await.unwrap();
    set_next(&db, "date_trunc('second', now())").await;
    let due = read(&db).await;
    let (tick, next) = (due.next_tick.unwrap(), due.now);
    let mut tries = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let (store, due) = (db.store.clone(), due.clone());
        tries.spawn(async move { store.schedule_fire(&due, Some(tick), next).await.unwrap() });
    }
    let fired = tries.join_all().await;
    let jobs = fired.iter().filter(|fired| matches!(fired, Fired::Job(_)));
    assert_eq!(jobs.count(), 1, "{fired:?}");
    assert_eq!(db.number(COUNT).await, 1);
    // The first job has ended before the last runner looks, with what it had read before.
    sqlx::query("select piecework.cancel(id) from piecework.job")
        .execute(&db.pool)
        .await
        .unwrap();
    let late = db.store.schedule_fire(&due, Some(tick), next).await;
    assert_eq!(late.unwrap(), Fired::NotOurs);
    // Even where the row says again that the tick is to come: it has had its job.
    db.store.unschedule("s").await.unwrap();
    db.store.schedule(&every(3600)).await.unwrap();
    sqlx::query(
        "update piecework.schedule s set next_tick = t.tick from piecework.schedule_tick t",
    )
    .execute(&db.pool)
    .await
    .unwrap();
    let again = read(&db).await;
    let fired = db.store.schedule_fire(&again, Some(tick), next).await;
    assert_eq!(fired.unwrap(), Fired::Moved);
    assert_eq!(db.number(COUNT).await, 1);
    // And never before its time by the database's clock, whoever asks.
    set_next(&db, "now() + interval '3 seconds'").await;
    let early = read(&db).await;
    let fired = db.store.schedule_fire(&early, early.next_tick, next).await;
    assert_eq!(fired.unwrap(), Fired::NotOurs);
    db.drop().await;
}
