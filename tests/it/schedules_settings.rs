//! Schedules of `runner.toml`: how they come into the table, what becomes of them, and who wins over whom.

use piecework::config::{Config, ScheduleSettings, Span};

use super::schedules::{cron, line, planned, set_next, start, stop};
use super::support::db::Db;
use super::support::guests::Folder;
use super::support::until;

fn declares(config: &mut Config, name: &str, seconds: u64) {
    config.schedules.insert(
        name.into(),
        ScheduleSettings {
            job_type: Some("noop".into()),
            every: Some(Span::secs(seconds)),
            ..ScheduleSettings::default()
        },
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_and_sql_do_not_take_turns_with_one_name() {
    let db = Db::new().await;
    let folder = Folder::with(&[("noop", "noop")]);
    db.store.schedule(&cron("by_sql", "@daily")).await.unwrap();
    let runner = start(&db, &folder, |config| {
        declares(config, "by_file", 3600);
        declares(config, "by_sql", 3600);
    })
    .await;
    db.until(
        2,
        "select count(*) from piecework.schedule where next_tick is not null",
    )
    .await;
    let lines = db.store.schedules_list().await.unwrap();
    let brief: Vec<_> = lines
        .iter()
        .map(|line| {
            (
                line.name.as_str(),
                line.source.as_str(),
                line.state.as_str(),
            )
        })
        .collect();
    assert_eq!(
        brief,
        [("by_file", "file", "active"), ("by_sql", "sql", "active")]
    );
    assert_eq!(lines[1].cron.as_deref(), Some("@daily"));
    // What a running runner declares is changed in its settings.
    for refusal in [
        db.store.schedule(&cron("by_file", "@daily")).await,
        db.store.unschedule("by_file").await,
    ] {
        let text = refusal.unwrap_err().to_string();
        assert!(
            text.starts_with("the schedule by_file stands in the settings of the runner "),
            "{text}"
        );
    }
    assert!(db.store.pause_schedule("by_file", true).await.unwrap());
    assert!(db.store.unschedule("by_sql").await.unwrap());
    assert!(!db.store.unschedule("by_sql").await.unwrap());
    stop(runner).await;
    // Without the runner it is anybody's.
    assert!(db.store.schedule(&cron("by_file", "@daily")).await.unwrap());
    assert_eq!(line(&db, "by_file").await.source, "sql");
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_of_settings_ticks_while_a_runner_declares_it_and_is_forgotten_later() {
    let db = Db::new().await;
    let folder = Folder::with(&[("noop", "noop")]);
    let runner = start(&db, &folder, |config| declares(config, "s", 1)).await;
    until("a tick", || async {
        (db.number("select count(*) from piecework.schedule_tick")
            .await
            > 0)
        .then_some(())
    })
    .await;
    stop(runner).await;
    assert_eq!(line(&db, "s").await.state, "undeclared");
    // A runner without the section fires nothing of it, but others.
    let runner = start(&db, &folder, |config| declares(config, "t", 1)).await;
    let of_s = "select count(*) from piecework.schedule_tick where schedule = 's'";
    let before = db.number(of_s).await;
    until("ticks of the other", || async {
        (db.number("select count(*) from piecework.schedule_tick where schedule = 't'")
            .await
            >= 2)
            .then_some(())
    })
    .await;
    assert_eq!(db.number(of_s).await, before);
    // For a day it is kept.
    assert!(db.store.schedules_prune().await.unwrap().is_empty());
    sqlx::query("update piecework.schedule set declared_at = now() - interval '25 hours'")
        .execute(&db.pool)
        .await
        .unwrap();
    sqlx::query("update piecework.schedule_tick set fired_at = now() - interval '49 hours' where schedule = 's'")
        .execute(&db.pool)
        .await
        .unwrap();
    assert_eq!(db.store.schedules_prune().await.unwrap(), ["s"]);
    assert_eq!(db.number(of_s).await, 0);
    assert_eq!(line(&db, "t").await.state, "active");
    stop(runner).await;
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runner_that_registers_anew_puts_back_only_what_was_forgotten() {
    let db = Db::new().await;
    let folder = Folder::with(&[("noop", "noop")]);
    let runner = start(&db, &folder, |config| {
        config.runner.beat = Span::millis(100);
        declares(config, "s", 3600);
        declares(config, "t", 3600);
    })
    .await;
    db.until(
        2,
        "select count(*) from piecework.schedule where next_tick is not null",
    )
    .await;
    // As if it had been away for days, and a newer runner had changed one of them.
    sqlx::raw_sql(
        "delete from piecework.schedule where name = 's';
         update piecework.schedule set every = '2 hours' where name = 't';
         update piecework.runner set state = 'dead'",
    )
    .execute(&db.pool)
    .await
    .unwrap();
    db.until(1, "select count(*) from piecework.schedules where name = 's' and state = 'active' and next_tick > now()")
        .await;
    let kept = "select count(*) from piecework.schedules where name = 't' and state = 'active' and every = '2 hours'";
    assert_eq!(db.number(kept).await, 1);
    stop(runner).await;
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_times_count_from_now_on_and_other_options_change_no_time() {
    let db = Db::new().await;
    let folder = Folder::with(&[("noop", "noop")]);
    let runner = start(&db, &folder, |config| declares(config, "s", 3600)).await;
    planned(&db).await;
    stop(runner).await;
    set_next(&db, "'2100-01-01Z'").await;
    let far = "select count(*) from piecework.schedule where next_tick = '2100-01-01Z'";
    // A new start with the same section, or with another job type, keeps the time.
    let runner = start(&db, &folder, |config| {
        declares(config, "s", 3600);
        let schedule = config.schedules.get_mut("s").unwrap();
        schedule.job_type = Some("other".into());
    })
    .await;
    db.until(
        1,
        "select count(*) from piecework.schedule where job_type = 'other'",
    )
    .await;
    assert_eq!(db.number(far).await, 1);
    stop(runner).await;
    let runner = start(&db, &folder, |config| declares(config, "s", 1800)).await;
    db.until(1, "select count(*) from piecework.schedule where next_tick > now() and next_tick <= now() + interval '30 minutes'")
        .await;
    stop(runner).await;
    db.drop().await;
}
