//! Everything at once: a small fleet whose hosts are killed, frozen and told to stop at random while jobs run, fail and
//! enqueue others. Nothing is lost, nothing is committed twice, and every attempt that came to nothing has a reason.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::db::Db;
use crate::support::guests::Folder;
use crate::support::process::Host;

const SETTINGS: &str = "
[database]
call_timeout = '1500ms'
[runner]
slots = 8
lease = '3s'
beat = '500ms'
reap_interval = '500ms'
stop_grace = '300ms'
[defaults]
retry_base = '100ms'
";

#[tokio::test]
async fn process_a_fleet_under_random_kills_freezes_and_stops_loses_nothing_and_doubles_nothing() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("probe", "probe")]);
    let start = || Host::start(&db, plugins.path(), SETTINGS);
    let mut hosts = [start(), start(), start()];
    let payloads = [
        r#"{"do":"nap","ms":150}"#,
        r#"{"do":"follow","job_type":"probe","payload":{"do":"ok"},"then":"ok"}"#,
        r#"{"do":"fail","text":"not yet","disposition":"retry","until":1}"#,
        r#"{"do":"nap","ms":700}"#,
    ];
    let seed = fastrand::get_seed();
    eprintln!("seed {seed}");
    let begun = Instant::now();
    let mut enqueued = 0_i64;
    let mut parents = 0_i64;
    while begun.elapsed() < Duration::from_secs(12) {
        let jobs: Vec<_> = (0..25)
            .map(|n| {
                serde_json::json!({
                    "job_type": "probe", "max_attempts": 1000, "priority": 1 + n % 4,
                    "payload": serde_json::from_str::<serde_json::Value>(payloads[n % 4]).unwrap(),
                })
            })
            .collect();
        db.store
            .enqueue_many(&serde_json::to_string(&jobs).unwrap())
            .await
            .unwrap();
        enqueued += 25;
        parents += i64::try_from((0..25).filter(|n| n % 4 == 1).count()).unwrap();
        tokio::time::sleep(Duration::from_millis(fastrand::u64(300..900))).await;
        let host = &mut hosts[fastrand::usize(..3)];
        match fastrand::u32(..3) {
            0 => {
                host.kill();
                *host = start();
            }
            1 => {
                // Longer than a lease: it comes back as somebody who was declared dead.
                host.signal(Signal::STOP);
                tokio::time::sleep(Duration::from_millis(fastrand::u64(500..4000))).await;
                host.signal(Signal::CONT);
            }
            _ => {
                host.signal(Signal::TERM);
                assert_eq!(
                    host.ended().await.code(),
                    Some(0),
                    "{}",
                    host.log().join("\n")
                );
                *host = start();
            }
        }
    }
    db.until(0, "select count(*) from piecework.job").await;
    // Each parent's follow-up came with its one success, whatever became of its other attempts.
    assert_eq!(
        db.number("select count(*) from piecework.job_history where parent is not null")
            .await,
        parents
    );
    assert_eq!(
        db.number("select count(distinct parent) from piecework.job_history")
            .await,
        parents
    );
    assert_eq!(
        db.number("select count(*) from piecework.job_history where state = 'done'")
            .await,
        enqueued + parents
    );
    assert_eq!(
        db.number("select count(distinct id) from piecework.job_history")
            .await,
        enqueued + parents
    );
    // No attempt came to nothing but for a host that was lost or stopped, or because its handler wanted it.
    let reasons = "select count(*) from piecework.job_history h, jsonb_array_elements(h.attempts) a
                   where a ->> 'failure' not in ('host_lost', 'handed_back', 'guest_retry')";
    assert_eq!(db.number(reasons).await, 0);
    let counted = "select count(*) from piecework.job_history h where attempt <> 1 + (
                     select count(*) from jsonb_array_elements(coalesce(h.attempts, '[]')) a where a ->> 'failure' <> 'handed_back')";
    assert_eq!(
        db.number(counted).await,
        0,
        "an attempt without a record, or a record without an attempt"
    );
    drop(hosts);
    db.drop().await;
}
