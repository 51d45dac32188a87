//! One tick gives one job over the whole fleet, whoever is in it.

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::db::Db;
use crate::support::guests::Folder;
use crate::support::process::Host;

/// All hosts have the same name and the same settings.
const SETTINGS: &str = "
[database]
call_timeout = '1500ms'
[runner]
name = 'twin'
slots = 4
lease = '3s'
beat = '500ms'
reap_interval = '500ms'
stop_grace = '300ms'
[engine]
pooling = false
[schedules.pulse]
job_type = 'noop'
cron = '* * * * * *'
";

/// Shorter than the case, and denser: a tick each second in place of one in ten, a restart about each second in place of one in seven.
/// Clocks of hosts cannot be apart: none is asked for a time.
#[tokio::test]
async fn process_o_21_one_tick_gives_one_job_whoever_is_restarted() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("noop", "noop")]);
    let start = || Host::start(&db, plugins.path(), SETTINGS);
    let mut hosts = [start(), start(), start(), start(), start()];
    for host in &hosts {
        host.ready().await;
    }
    let seed = fastrand::get_seed();
    eprintln!("seed {seed}");
    let begun = Instant::now();
    let first = db.number("select extract(epoch from now())::bigint").await;
    while begun.elapsed() < Duration::from_secs(14) {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(300..1200))).await;
        let host = &mut hosts[fastrand::usize(..5)];
        if fastrand::bool() {
            host.kill();
        } else {
            host.signal(Signal::TERM);
            let status = host.ended().await;
            // One that was started a moment ago may not have come to listening for signals.
            let unborn = status.signal() == Some(Signal::TERM.as_raw()) && host.log().is_empty();
            assert!(
                status.success() || unborn,
                "{status}: {}",
                host.log().join("\n")
            );
        }
        *host = start();
    }
    let last = db.number("select extract(epoch from now())::bigint").await;
    // No more ticks while they are counted.
    for host in &mut hosts {
        host.ready().await;
        host.signal(Signal::TERM);
        assert!(host.ended().await.success(), "{}", host.log().join("\n"));
    }
    db.until(0, "select count(*) from piecework.job").await;
    let jobs = db
        .number("select count(*) from piecework.job_history")
        .await;
    let ticks = db
        .number("select count(*) from piecework.schedule_tick")
        .await;
    assert_eq!(jobs, ticks, "one job for each tick");
    assert_eq!(
        db.number("select count(distinct job) from piecework.schedule_tick where job is not null")
            .await,
        db.number("select count(*) from piecework.schedule_tick")
            .await
    );
    // None is missing either, from the first to the last.
    let span = db
        .number("select (extract(epoch from max(tick) - min(tick)) + 1)::bigint from piecework.schedule_tick")
        .await;
    assert_eq!(
        span,
        db.number("select count(*) from piecework.schedule_tick")
            .await
    );
    assert!(
        ticks >= last - first - 6,
        "{ticks} ticks in {} s",
        last - first
    );
    let late = db
        .number("select (1000 * max(extract(epoch from fired_at - tick)))::bigint from piecework.schedule_tick")
        .await;
    eprintln!("{ticks} ticks, the latest was fired after {late} ms");
    drop(hosts);
    db.drop().await;
}
