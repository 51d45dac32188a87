//! Handlers that compute for ever, as many as there are slots for and more than cores: everything else goes on.

use std::time::{Duration, Instant};

use super::support::db::Db;
use super::support::guests::Folder;
use super::support::process::{Host, SHORT, command};
use super::support::until;

/// Each spinner's limit.
const LIMIT: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_o_04_four_spinning_handlers_delay_neither_leases_nor_others() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("spin", "spin"), ("noop", "noop")]);
    let settings = SHORT.replace("slots = 4", "slots = 8")
        + &format!("[engine]\nthreads = 2\n[plugins.spin]\ntimeout = '{LIMIT:?}'\n");
    let host = Host::start(&db, plugins.path(), &settings);
    host.ready().await;
    let one = piecework::store::NewJob {
        job_type: "spin".into(),
        payload: "{}".into(),
        max_attempts: Some(1),
        ..Default::default()
    };
    for _ in 0..4 {
        db.store.enqueue(&one).await.unwrap();
    }
    db.until(
        4,
        "select count(*) from piecework.job where state = 'running'",
    )
    .await;

    // While they spin: jobs of another type, the lease, and somebody who looks.
    let spinning =
        "select count(*) from piecework.job where state = 'running' and job_type = 'spin'";
    let (mut renewals, mut gap) = (Vec::new(), Duration::ZERO);
    let (mut noops, mut looks) = (0, 0);
    let mut seen = String::new();
    while db.number(spinning).await == 4 {
        let lease: String = sqlx::query_scalar("select lease_until::text from piecework.runner")
            .fetch_one(&db.pool)
            .await
            .unwrap();
        if lease != seen {
            seen = lease;
            renewals.push(Instant::now());
        }
        db.enqueue("noop", "{}").await;
        noops += 1;
        if noops % 5 == 0 {
            let begun = Instant::now();
            let url = db.url().to_owned();
            let status = tokio::task::spawn_blocking(move || {
                command()
                    .args(["status", "--json"])
                    .env("DATABASE_URL", url)
                    .output()
            });
            assert!(status.await.unwrap().unwrap().status.success());
            // The bound that is promised for it.
            assert!(
                begun.elapsed() < Duration::from_secs(1),
                "status took {:?}",
                begun.elapsed()
            );
            looks += 1;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for pair in renewals.windows(2) {
        gap = gap.max(pair[1] - pair[0]);
    }
    // Half of the lease of 5 s; the first is not seen from its beginning.
    assert!(
        renewals.len() >= 2 && gap < Duration::from_millis(2500),
        "{} renewals, {gap:?} between two",
        renewals.len()
    );
    assert!(noops > 10 && looks > 1, "{noops} jobs, {looks} looks");
    let done = format!(
        "the {noops} jobs that were enqueued meanwhile, which {} of were done",
        db.number("select count(*) from piecework.job_history where job_type = 'noop'")
            .await
    );
    until(&done, || async {
        let count = db
            .number("select count(*) from piecework.job_history where job_type = 'noop' and state = 'done'")
            .await;
        (count == i64::from(noops)).then_some(())
    })
    .await;
    // Most of them ran while the spinners did, not after them.
    let meanwhile = db
        .number(
            "select count(*) from piecework.job_history n where n.job_type = 'noop' and n.finished_at <
             (select min(s.finished_at) from piecework.job_history s where s.job_type = 'spin')",
        )
        .await;
    assert!(
        meanwhile * 10 >= i64::from(noops) * 9,
        "{meanwhile} of {noops} ran beside the spinners"
    );
    db.until(
        4,
        "select count(*) from piecework.job_history where job_type = 'spin' and failure = 'timeout'",
    )
    .await;
    let limit = i64::try_from(LIMIT.as_micros()).unwrap();
    let (shortest, longest) = (
        db.number("select min(run_us) from piecework.job_history where job_type = 'spin'")
            .await,
        db.number("select max(run_us) from piecework.job_history where job_type = 'spin'")
            .await,
    );
    // The bound that is promised: the limit, and 200 ms.
    assert!(
        shortest >= limit && longest < limit + 200_000,
        "{shortest} to {longest} us of {limit}"
    );
    drop(host);
    db.drop().await;
}
