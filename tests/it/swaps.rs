//! Under load, plugins are swapped, broken, deleted and added again: no job fails for it and none is lost. `PIECEWORK_SWAPS=50` runs the
//! full dose and prints the latencies, of the swaps and without.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use piecework::engine::digest;

use super::support::copies::{Place, copy_slowly, version};
use super::support::db::Db;
use super::support::process::{Host, SHORT};
use super::support::{guests, until};

/// State, attempt, version, when it was due and when it started, and the time between.
type Row = (String, i32, Option<Vec<u8>>, f64, f64, f64);

/// Jobs of each tenth of a second.
const JOBS: usize = 20;

/// In seconds. The database is on this machine, so its clock is the same.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_secs_f64()
}

struct Load {
    host: Host,
    place: Place,
    noop: Vec<u8>,
    /// What was put in: version, and when its last byte was written.
    versions: Vec<(Vec<u8>, f64)>,
    /// From the begin of a swap until the new version served.
    swaps: Vec<(f64, f64)>,
    /// When the type was not served.
    gaps: Vec<(f64, f64)>,
}

impl Load {
    fn next(&self) -> Vec<u8> {
        let number = self.versions.len();
        version(&self.noop, &format!("v{number}"), 20_000 + number)
    }

    /// Puts a new version in, whole or byte by byte, and waits until it serves.
    async fn swap(&mut self, slowly: bool) -> (f64, f64) {
        let (bytes, file) = (self.next(), self.place.file("mail"));
        let begun = now();
        if slowly {
            let copy = bytes.clone();
            let pause = Duration::from_millis(50);
            tokio::task::spawn_blocking(move || copy_slowly(&copy, &file, 6, pause, pause))
                .await
                .unwrap();
        } else {
            self.place.put("mail", &bytes);
        }
        self.versions.push((digest(&bytes).to_vec(), now()));
        let loaded = self.versions.len();
        until("the new version to be loaded", || async {
            (self.host.count("plugin loaded") >= loaded).then_some(())
        })
        .await;
        (begun, now())
    }

    async fn breaks(&self, refused: usize) {
        self.place.put("mail", &self.next()[..1000 + refused]);
        self.host.reaches("plugin refused", refused).await;
    }

    async fn delete_and_add(&mut self) {
        let begun = now();
        fs::remove_file(self.place.file("mail")).unwrap();
        tokio::time::sleep(Duration::from_millis(700)).await;
        let (_, served) = self.swap(false).await;
        // What has waited is worked off.
        self.gaps.push((begun, served + 1.0));
        pause(1000).await;
    }
}

async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

fn within(spans: &[(f64, f64)], at: f64) -> bool {
    spans
        .iter()
        .any(|(begun, ended)| (*begun..*ended).contains(&at))
}

fn percentiles(mut latencies: Vec<f64>) -> String {
    latencies.sort_by(f64::total_cmp);
    let at = |percent: usize| {
        let index = (latencies.len() * percent / 100).min(latencies.len().saturating_sub(1));
        latencies
            .get(index)
            .map_or(f64::NAN, |seconds| seconds * 1000.0)
    };
    format!(
        "p50 {:.1} ms, p99 {:.1} ms, {} jobs",
        at(50),
        at(99),
        latencies.len()
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_swaps_under_load_lose_and_fail_nothing() {
    let full = std::env::var("PIECEWORK_SWAPS").ok();
    let swaps: usize = full.as_ref().map_or(10, |swaps| swaps.parse().unwrap());
    let (broken, deletions) = if full.is_some() { (10, 5) } else { (3, 2) };
    let db = Arc::new(Db::new().await);
    let place = Place::all().remove(0);
    let noop = guests::bytes("noop");
    place.put("mail", &noop);
    let host = Host::start_logging(db.url(), place.path(), SHORT, &[], "info");
    host.ready().await;
    let mut load = Load {
        host,
        place,
        versions: vec![(digest(&noop).to_vec(), now())],
        noop,
        swaps: Vec::new(),
        gaps: Vec::new(),
    };
    let (done, producer) = (Arc::new(AtomicBool::new(false)), db.clone());
    let until_done = done.clone();
    let jobs = tokio::spawn(async move {
        let mut ids = Vec::new();
        while !until_done.load(Ordering::Relaxed) {
            ids.extend(producer.enqueue_times(JOBS, "mail", "{}").await);
            pause(100).await;
        }
        ids
    });
    pause(if full.is_some() { 15_000 } else { 1000 }).await;
    let (mut refused, mut deleted) = (0, 0);
    for swap in 1..=swaps {
        let span = load.swap(swap % 2 == 0).await;
        load.swaps.push(span);
        if full.is_some() {
            pause(500).await;
        }
        while refused * swaps < swap * broken {
            refused += 1;
            load.breaks(refused).await;
        }
        while deleted * swaps < swap * deletions {
            deleted += 1;
            load.delete_and_add().await;
        }
    }
    done.store(true, Ordering::Relaxed);
    let ids = jobs.await.unwrap();
    db.until(0, "select count(*) from piecework.job").await;
    let rows: Vec<Row> = sqlx::query_as(
        "select state::text, attempt, plugin, extract(epoch from due_at)::float8, extract(epoch from started_at)::float8,
                extract(epoch from started_at - due_at)::float8
           from piecework.job_history",
    )
    .fetch_all(&db.pool)
    .await
    .unwrap();
    assert_eq!(rows.len(), ids.len(), "none is lost");
    for (state, attempt, plugin, ..) in &rows {
        assert_eq!((state.as_str(), *attempt), ("done", 1));
        let known = load
            .versions
            .iter()
            .any(|(digest, _)| Some(digest) == plugin.as_ref());
        assert!(known, "it ran one of the versions");
    }
    let mut slowest = 0f64;
    let mut served = 0;
    for (digest, put) in &load.versions[1..] {
        let ran = rows.iter().filter(|row| row.2.as_ref() == Some(digest));
        let first = ran.map(|row| row.4).min_by(f64::total_cmp);
        // One may be replaced between two jobs.
        if let Some(first) = first {
            slowest = slowest.max(first - put);
            served += 1;
        }
    }
    assert!(
        served * 10 >= (load.versions.len() - 1) * 8,
        "{served} versions served"
    );
    let begun = load.swaps[0].0 - 10.0;
    let (during, without): (Vec<_>, Vec<_>) = rows
        .iter()
        .filter(|row| !within(&load.gaps, row.3) && row.3 > begun)
        .partition(|row| within(&load.swaps, row.3));
    let latencies = |rows: Vec<&Row>| percentiles(rows.into_iter().map(|row| row.5).collect());
    println!(
        "{swaps} swaps, {broken} broken files, {deletions} deletions, {} jobs",
        ids.len()
    );
    println!("pick-up during a swap: {}", latencies(during));
    println!("pick-up without: {}", latencies(without));
    println!("slowest new version: {slowest:.2} s after its last byte");
    // The promise is 3 s; the rest is for machines that are busy with other tests.
    assert!(slowest < 5.0, "{slowest}");
    drop(load);
    Arc::into_inner(db).unwrap().drop().await;
}
