//! `piecework schedules` as people call it.

use super::cli::{refused, run, text};
use super::support::db::Db;
use super::support::guests::Folder;
use super::support::process::Host;

/// What a command prints that succeeds.
#[track_caller]
fn says(db: Option<&Db>, folder: &Folder, arguments: &[&str]) -> String {
    let output = run(db, folder.path(), arguments);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{arguments:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

#[tokio::test]
async fn schedules_are_set_listed_paused_resumed_and_removed() {
    let folder = Folder::new();
    let db = Db::new().await;
    let call = |arguments: &[&str]| {
        let mut all = vec!["schedules"];
        all.extend(arguments);
        says(Some(&db), &folder, &all)
    };
    let set = [
        "set",
        "report",
        "--type",
        "mail",
        "--cron",
        "30 2 * * MON-FRI",
        "--zone",
        "Europe/Berlin",
        "--payload",
        r#"{"kind": "daily"}"#,
        "--priority",
        "3",
        "--max-attempts",
        "2",
        "--ordering-key",
        "k",
        "--missed",
        "once",
        "--tick-as",
        "at",
    ];
    assert_eq!(call(&set), "`report` is set");
    assert_eq!(call(&set), "`report` is like that already");
    assert_eq!(
        call(&["set", "pulse", "--every", "90s", "--overlap", "skip"]),
        "`pulse` is set"
    );
    sqlx::query("select piecework.schedule('bad', 'a', cron => 'x')")
        .execute(&db.pool)
        .await
        .unwrap();
    sqlx::raw_sql(
        "update piecework.schedule set problem = E'no\\x1b[2J' where name = 'bad';
         update piecework.schedule set next_tick = '2030-01-31T01:30:00Z', last_tick = '2030-01-30T01:30:00Z', last_job = 7
         where name = 'report'",
    )
    .execute(&db.pool)
    .await
    .unwrap();
    assert_eq!(call(&["pause", "pulse"]), "`pulse` is paused");
    assert_eq!(call(&["pause", "pulse"]), "`pulse` was paused already");
    assert_eq!(
        call(&["list"]),
        "\
SCHEDULE  JOB TYPE  TIMES                           SOURCE  STATE    NEXT TICK             LAST TICK             LAST JOB
bad       a         x UTC                           sql     refused                                                        no\\u{1b}[2J
pulse     pulse     every 1m 30s                    sql     paused
report    mail      30 2 * * MON-FRI Europe/Berlin  sql     active   2030-01-31T01:30:00Z  2030-01-30T01:30:00Z  7"
    );
    assert_eq!(call(&["resume", "pulse"]), "`pulse` is resumed");
    assert_eq!(call(&["resume", "pulse"]), "`pulse` was not paused");
    assert_eq!(call(&["remove", "pulse"]), "`pulse` is removed");
    assert_eq!(call(&["remove", "bad"]), "`bad` is removed");
    let listed: serde_json::Value = serde_json::from_str(&call(&["list", "--json"])).unwrap();
    assert_eq!(
        listed,
        serde_json::json!([{
            "name": "report", "state": "active", "source": "sql", "job_type": "mail",
            "cron": "30 2 * * MON-FRI", "zone": "Europe/Berlin", "every_seconds": null,
            "next_tick": "2030-01-31T01:30:00.000000Z", "last_tick": "2030-01-30T01:30:00.000000Z", "last_job": 7,
            "problem": null, "missed": "once", "overlap": "allow", "payload": {"kind": "daily"}, "priority": 3,
            "max_attempts": 2, "ordering_key": "k", "tick_as": "at",
        }])
    );
    db.drop().await;
}

#[tokio::test]
async fn o_22_bad_schedules_are_refused_before_anything_is_written() {
    let folder = Folder::new();
    let db = Db::new().await;
    for (arguments, says) in [
        (
            &["set", "s", "--cron", "0 0 30 2 *"][..],
            "the cron expression `0 0 30 2 *` can never tick: no month that it names has a day 30",
        ),
        (
            &["set", "s", "--cron", "0 0 * *"],
            "the cron expression `0 0 * *` is not understood: it has 4 fields",
        ),
        (
            &["set", "s", "--cron", "@daily", "--zone", "Berlin"],
            "the time zone `Berlin` is not known",
        ),
        (
            &["set", "s", "--every", "100ms"],
            "not one of whole seconds",
        ),
        (&["set", "s"], "a schedule needs one of --cron and --every"),
        (
            &["set", "s", "--every", "1s", "--missed", "all"],
            "missed is skip or once, not all",
        ),
        (
            &["set", "s", "--every", "1s", "--payload", "{"],
            "it is not JSON",
        ),
        (&["remove", "s"], "there is no schedule `s`"),
        (&["pause", "s"], "there is no schedule `s`"),
        (&["resume", "s"], "there is no schedule `s`"),
        (&["next", "0 0 31 2,4,6 *"], "`0 0 31 2,4,6 *` can never"),
        (
            &["next", "90s", "--zone", "UTC"],
            "a fixed interval has no time zone",
        ),
        (
            &["next", "@daily", "--from", "soon"],
            "`soon` is not a time such as",
        ),
    ] {
        let mut all = vec!["schedules"];
        all.extend(arguments);
        refused(&run(Some(&db), folder.path(), &all), 2, says);
    }
    assert_eq!(
        db.number("select count(*) from piecework.schedule").await,
        0
    );
    db.drop().await;
}

#[test]
fn ticks_are_shown_without_a_database() {
    let folder = Folder::new();
    let next = |arguments: &[&str]| {
        let mut all = vec!["schedules", "next"];
        all.extend(arguments);
        says(None, &folder, &all)
    };
    assert_eq!(
        next(&[
            "30 2 * * *",
            "--zone",
            "Europe/Berlin",
            "--from",
            "2026-03-28T00:00:00Z",
            "-n",
            "3",
        ]),
        "\
2026-03-28T01:30:00Z  2026-03-28T02:30:00+01:00
2026-03-29T01:00:00Z  2026-03-29T03:00:00+02:00
2026-03-30T00:30:00Z  2026-03-30T02:30:00+02:00"
    );
    assert_eq!(
        next(&["90s", "--from", "2026-03-28T00:00:00Z", "-n", "2"]),
        "2026-03-28T00:01:30Z\n2026-03-28T00:03:00Z"
    );
    assert_eq!(next(&["@hourly"]).lines().count(), 5);
    let json: serde_json::Value = serde_json::from_str(&next(&[
        "0 9 29 2 1",
        "--from",
        "2028-02-28T12:00:00Z",
        "-n",
        "1",
        "--json",
    ]))
    .unwrap();
    assert_eq!(
        json,
        serde_json::json!([{ "tick": "2028-02-29T09:00:00Z", "local": "2028-02-29T09:00:00+00:00" }])
    );
}

/// A name in two places: the log names both, and what was made by SQL stays.
#[tokio::test]
async fn process_a_runner_says_that_its_schedule_is_not_its_own() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("noop", "noop")]);
    sqlx::query("select piecework.schedule('pulse', 'noop', cron => '@daily')")
        .execute(&db.pool)
        .await
        .unwrap();
    let settings = "[schedules.pulse]\nevery = '1h'\n";
    let host = Host::start(&db, plugins.path(), settings);
    let warning = host
        .says("whose name belongs to one that was made by SQL")
        .await;
    assert!(warning.contains(r#""schedule":"pulse""#), "{warning}");
    drop(host);
    // A file that is wrong starts nothing.
    let file = plugins.path().join("runner.toml");
    std::fs::write(&file, "[schedules.s]\ncron = '0 0 30 2 *'\n").unwrap();
    refused(
        &run(Some(&db), plugins.path(), &["run"]),
        2,
        "`runner.toml` line 2: `schedules.s.cron`: the cron expression `0 0 30 2 *` can never tick",
    );
    db.drop().await;
}
