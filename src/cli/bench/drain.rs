//! `piecework bench drain`: how fast a runner works off a backlog.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::Args;

use super::{Common, float, print, require_type, round, settle_counters};
use crate::config::Config;
use crate::runner::Runner;
use crate::store::Store;

#[derive(Debug, Args)]
pub(super) struct Drain {
    /// How many jobs
    #[arg(long, default_value_t = 20_000)]
    jobs: u32,
    /// Give each job one of so many ordering keys; 0 for none
    #[arg(long, default_value_t = 0)]
    ordering_keys: u32,
    /// Give each job one of so many group keys; 0 for none
    #[arg(long, default_value_t = 0)]
    group_keys: u32,
    /// Hold a snapshot open meanwhile, as a forgotten transaction does: vacuum removes nothing
    #[arg(long)]
    pin: bool,
    #[command(flatten)]
    pub(super) common: Common,
}

impl Drain {
    pub(super) async fn measure(&self, config: Config, store: &Store) -> anyhow::Result<()> {
        let slots = config.runner.slots;
        let begun = Instant::now();
        let keys = Keys {
            ordering: self.ordering_keys,
            group: self.group_keys,
        };
        fill(store, &self.common.job_type, self.jobs, keys).await?;
        let enqueued = begun.elapsed();
        store.bench_vacuum().await?;
        settle_counters().await;
        let before = store.bench_counters().await?;
        let pin = if self.pin {
            Some(store.bench_pin().await?)
        } else {
            None
        };
        let runner = Runner::start(config, store.clone()).await?;
        let begun = Instant::now();
        require_type(&runner, &self.common.job_type)?;
        let events = runner.events();
        let ended = || events.done.load(Ordering::Relaxed) + events.failed.load(Ordering::Relaxed);
        // How long each tenth took: a claim that slows down with what was claimed before shows here.
        let mut tenths = Vec::new();
        while ended() < u64::from(self.jobs) {
            tokio::time::sleep(Duration::from_millis(1)).await;
            if ended() * 10 >= u64::from(self.jobs) * (tenths.len() as u64 + 1) {
                tenths.push((begun.elapsed(), ended()));
            }
            anyhow::ensure!(
                begun.elapsed() < Duration::from_secs(600),
                "{} of {} jobs were done after 10 minutes",
                ended(),
                self.jobs
            );
        }
        let took = begun.elapsed();
        drop(pin);
        let rate = |from: Option<&(Duration, u64)>, to: Option<&(Duration, u64)>| {
            let (from, to) = (
                from.copied().unwrap_or_default(),
                to.copied().unwrap_or_default(),
            );
            float(i64::try_from(to.1 - from.1).unwrap_or(0)) / (to.0 - from.0).as_secs_f64()
        };
        let first = rate(None, tenths.first());
        let last = rate(tenths.iter().rev().nth(1), tenths.last());
        let after = store.bench_counters().await?;
        let failed = events.failed.load(Ordering::Relaxed);
        settle_counters().await;
        let commits = store.bench_counters().await?.commits - before.commits;
        runner.drain();
        runner.join().await;

        let jobs = f64::from(self.jobs);
        let jobs_per_second = jobs / took.as_secs_f64();
        let commits_per_job = float(commits) / jobs;
        let wal_bytes_per_job = float(after.wal_bytes - before.wal_bytes) / jobs;
        if self.common.json {
            return print::json(&serde_json::json!({
                "jobs": self.jobs, "failed": failed, "job_type": self.common.job_type, "slots": slots, "pinned": self.pin,
                "ordering_keys": self.ordering_keys, "group_keys": self.group_keys,
                "jobs_per_second_first_tenth": round(first), "jobs_per_second_last_tenth": round(last),
                "jobs_per_second": round(jobs_per_second), "commits_per_job": commits_per_job, "wal_bytes_per_job": round(wal_bytes_per_job),
                "enqueued_per_second": round(jobs / enqueued.as_secs_f64()), "postgres": after.version, "settings": after.settings,
            }));
        }
        print::line(&format!(
            "{} jobs of type {} drained in {:.2} s on {slots} slots, {failed} failed\n\
             jobs/s          {jobs_per_second:.0} (first tenth {first:.0}, last tenth {last:.0})\n\
             commits a job   {commits_per_job:.4}\n\
             WAL a job       {wal_bytes_per_job:.0} bytes\n\
             enqueued/s      {:.0} (in arrays of 1,000)\n\
             PostgreSQL      {}, {}",
            self.jobs,
            self.common.job_type,
            took.as_secs_f64(),
            jobs / enqueued.as_secs_f64(),
            after.version,
            after.settings,
        ))
    }
}

/// How many different keys the jobs have; 0 for none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Keys {
    pub(super) ordering: u32,
    pub(super) group: u32,
}

/// Enqueues `jobs` jobs in arrays of 1,000.
pub(super) async fn fill(
    store: &Store,
    job_type: &str,
    jobs: u32,
    keys: Keys,
) -> anyhow::Result<()> {
    let mut left = jobs;
    while left > 0 {
        let some = left.min(1000);
        let array: Vec<_> = (0..some)
            .map(|n| {
                let key = |of: u32| (of > 0).then(|| format!("k{}", (left - n) % of));
                serde_json::json!({
                    "job_type": job_type, "payload": { "i": left - n },
                    "ordering_key": key(keys.ordering), "group_key": key(keys.group),
                })
            })
            .collect();
        store.enqueue_many(&serde_json::to_string(&array)?).await?;
        left -= some;
    }
    Ok(())
}

/// Drains `jobs` jobs that were enqueued, and returns how many ended a second.
pub(super) async fn drain(
    config: Config,
    store: &Store,
    job_type: &str,
    jobs: u32,
) -> anyhow::Result<f64> {
    let runner = Runner::start(config, store.clone()).await?;
    require_type(&runner, job_type)?;
    let begun = Instant::now();
    let events = runner.events();
    while events.done.load(Ordering::Relaxed) < u64::from(jobs) {
        tokio::time::sleep(Duration::from_millis(1)).await;
        anyhow::ensure!(
            begun.elapsed() < Duration::from_secs(600),
            "{} of {jobs} jobs were done after 10 minutes",
            events.done.load(Ordering::Relaxed)
        );
    }
    let took = begun.elapsed();
    runner.drain();
    runner.join().await;
    Ok(f64::from(jobs) / took.as_secs_f64())
}
