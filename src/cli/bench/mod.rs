//! `piecework bench`: this machine's figures. What needs a database gets one of its own, which is dropped afterwards.

mod engine;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, Subcommand};

use super::run::require_folder;
use super::{Ending, Misuse, block_on, database_or_private, print};
use crate::config::{self, Config};
use crate::job::{JobId, JobType, Priority, Timestamp};
use crate::runner::Runner;
use crate::store::{Demand, NewJob, Pick, Scratch, Store};
use crate::telemetry::Event;

/// Measure this machine; what needs a database gets one of its own, which is dropped afterwards
#[derive(Debug, Args)]
pub(super) struct Bench {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Enqueue jobs, then start a runner and see how fast it drains them
    Drain(Drain),
    /// Enqueue single jobs while a runner waits, and see how soon it starts them
    Latency(Latency),
    /// Time the claim with and without millions of finished and future jobs beside, and show its plan
    Claim(Claim),
    /// Time one call of a handler with all limits on, without a database
    Call(engine::Call),
    /// See how late handlers that do not end are ended: computing, sleeping, waiting for HTTP
    Kill(engine::Kill),
}

#[derive(Debug, Args)]
struct Common {
    /// The job type
    #[arg(long = "type", default_value = "noop", value_name = "JOB_TYPE")]
    job_type: String,
    /// Most jobs at once [runner.slots]
    #[arg(long)]
    slots: Option<u32>,
    /// The folder with the plugins [runner.plugins_folder]
    #[arg(long, value_name = "FOLDER")]
    plugins: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Drain {
    /// How many jobs
    #[arg(long, default_value_t = 20_000)]
    jobs: u32,
    /// Give each job one of so many ordering keys; 0 for none
    #[arg(long, default_value_t = 0)]
    ordering_keys: u32,
    /// Hold a snapshot open meanwhile, as a forgotten transaction does: vacuum removes nothing
    #[arg(long)]
    pin: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Latency {
    /// How many jobs
    #[arg(long, default_value_t = 300)]
    jobs: u32,
    /// Jobs a second
    #[arg(long, default_value_t = 20.0)]
    rate: f64,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Claim {
    /// Finished jobs beside
    #[arg(long, default_value_t = 3_000_000)]
    finished: u32,
    /// Future jobs beside
    #[arg(long, default_value_t = 1_000_000)]
    future: u32,
    /// Claims to time in each of the two states
    #[arg(long, default_value_t = 400)]
    claims: u32,
    /// Jobs a claim
    #[arg(long, default_value_t = 25)]
    batch: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Bench {
    pub(super) fn run(self, mut config: Config) -> anyhow::Result<Ending> {
        let common = match &self.command {
            Command::Drain(drain) => Some(&drain.common),
            Command::Latency(latency) => Some(&latency.common),
            Command::Claim(_) => None,
            Command::Call(call) => return call.measure(&config).map(|()| Ending::Done),
            Command::Kill(kill) => return kill.measure(&config).map(|()| Ending::Done),
        };
        if let Some(common) = common {
            if let Some(slots) = common.slots {
                config.runner.slots = slots.clamp(1, 10_000);
            }
            if let Some(plugins) = &common.plugins {
                config.runner.plugins_folder = plugins.clone();
            }
            require_folder(&config)?;
        }
        let (settings, cluster) = database_or_private(&config)?;
        let measured = block_on(async {
            let scratch = Scratch::create(&settings.url).await?;
            let settings = config::Database {
                url: scratch.url().to_owned(),
                ..settings
            };
            let measured = async {
                let store = Store::open(&settings)?;
                store.migrate().await?;
                match &self.command {
                    Command::Drain(drain) => drain.measure(config, &store).await?,
                    Command::Latency(latency) => latency.measure(config, &store).await?,
                    Command::Claim(claim) => claim.measure(&store).await?,
                    Command::Call(_) | Command::Kill(_) => {}
                }
                store.close().await;
                anyhow::Ok(())
            }
            .await;
            scratch
                .drop()
                .await
                .context("drop the benchmark's database")?;
            measured
        });
        if let Some(cluster) = cluster {
            cluster.stop()?;
        }
        measured.map(|()| Ending::Done)
    }
}

impl Drain {
    async fn measure(&self, config: Config, store: &Store) -> anyhow::Result<()> {
        let slots = config.runner.slots;
        let begun = Instant::now();
        fill(store, &self.common.job_type, self.jobs, self.ordering_keys).await?;
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
                "ordering_keys": self.ordering_keys,
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

impl Latency {
    async fn measure(&self, config: Config, store: &Store) -> anyhow::Result<()> {
        anyhow::ensure!(self.rate > 0.0, Misuse("--rate must be more than 0".into()));
        let runner = Runner::start(config, store.clone()).await?;
        require_type(&runner, &self.common.job_type)?;
        let mut events = runner.events().subscribe();
        let mut committed: BTreeMap<JobId, Instant> = BTreeMap::new();
        let mut started: BTreeMap<JobId, Instant> = BTreeMap::new();
        // The first jobs warm up connections and plans on both sides.
        let warm_up = 20;
        let job = NewJob {
            job_type: self.common.job_type.clone(),
            payload: "{}".into(),
            ..NewJob::default()
        };
        let mut warm = std::collections::BTreeSet::new();
        for n in 0..self.jobs + warm_up {
            // Not in step with any poll.
            tokio::time::sleep(Duration::from_secs_f64((0.5 + fastrand::f64()) / self.rate)).await;
            let id = store.enqueue(&job).await?;
            committed.insert(id, Instant::now());
            if n < warm_up {
                warm.insert(id);
            }
        }
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        while started.len() < committed.len() {
            if let Event::Started { id, at, .. } = tokio::time::timeout_at(deadline, events.recv())
                .await
                .context("some jobs were not started within 30 s")??
            {
                started.insert(id, at);
            }
        }
        runner.drain();
        runner.join().await;
        let mut waits: Vec<f64> = committed
            .iter()
            .filter(|(id, _)| !warm.contains(id))
            .filter_map(|(id, at)| {
                Some(
                    started
                        .get(id)?
                        .saturating_duration_since(*at)
                        .as_secs_f64()
                        * 1000.0,
                )
            })
            .collect();
        waits.sort_by(f64::total_cmp);
        let (p50, p99, max) = (
            quantile(&waits, 50),
            quantile(&waits, 99),
            quantile(&waits, 100),
        );
        if self.common.json {
            return print::json(&serde_json::json!({
                "jobs": self.jobs, "rate": self.rate, "job_type": self.common.job_type,
                "pickup_ms": { "p50": round3(p50), "p99": round3(p99), "max": round3(max) },
            }));
        }
        print::line(&format!(
            "{} jobs of type {} at {} jobs/s, from the commit of the enqueue to the start of the handler\n\
             p50  {p50:.2} ms\n\
             p99  {p99:.2} ms\n\
             max  {max:.2} ms",
            self.jobs, self.common.job_type, self.rate
        ))
    }
}

impl Claim {
    async fn measure(&self, store: &Store) -> anyhow::Result<()> {
        let runner = store
            .register("bench", self.batch, &[], Duration::from_secs(3600), &[])
            .await?;
        let empty = self.time(store, runner).await?;
        store
            .bench_fill(i64::from(self.finished), i64::from(self.future), "bench")
            .await?;
        let beside = self.time(store, runner).await?;
        let demand = demand(runner, self.batch);
        let mut plans = BTreeMap::new();
        for (name, generic) in [("custom", false), ("generic", true)] {
            plans.insert(name, store.bench_claim_plan(&demand, generic).await?);
        }
        let bad: Vec<_> = plans
            .values()
            .flat_map(|plan| scans_and_sorts(plan))
            .collect();
        let ratio = beside / empty;
        if self.json {
            print::json(&serde_json::json!({
                "claims": self.claims, "batch": self.batch, "finished": self.finished, "future": self.future,
                "mean_ms_empty": round3(empty), "mean_ms_beside": round3(beside), "ratio": round3(ratio), "plans": plans, "sorts_and_seq_scans": bad,
            }))?;
        } else {
            for line in &plans["generic"] {
                print::line(&format!("    {line}"))?;
            }
            print::line(&format!(
                "sorts and sequential scans in the plans (custom and generic)  {}\n\
                 mean of {} claims of {} jobs, nothing beside                   {empty:.3} ms\n\
                 the same with {} finished and {} future jobs beside  {beside:.3} ms\n\
                 ratio                                                         {ratio:.2}",
                bad.len(),
                self.claims,
                self.batch,
                self.finished,
                self.future
            ))?;
        }
        Ok(())
    }

    /// Mean time of a claim in milliseconds, on jobs that are enqueued and vacuumed for it.
    async fn time(&self, store: &Store, runner: crate::job::RunnerId) -> anyhow::Result<f64> {
        // Two claims of each job type and priority beforehand.
        fill(store, "bench", (self.claims + 10) * self.batch, 0).await?;
        store.bench_vacuum().await?;
        let demand = demand(runner, self.batch);
        for _ in 0..10 {
            store.claim(&demand).await?;
        }
        let mut total = Duration::ZERO;
        for _ in 0..self.claims {
            let begun = Instant::now();
            let claimed = store.claim(&demand).await?;
            total += begun.elapsed();
            anyhow::ensure!(
                claimed.len() == self.batch as usize,
                "a claim of {} jobs returned {}",
                self.batch,
                claimed.len()
            );
        }
        Ok(total.as_secs_f64() * 1000.0 / f64::from(self.claims))
    }
}

/// The nodes of a plan that read the whole table or sort it. The rows that were picked already, a batch at most, are numbered
/// in their order: that sort is not one of them.
fn scans_and_sorts(plan: &[String]) -> Vec<String> {
    let node = |line: &str| {
        line.trim_start()
            .trim_start_matches("->")
            .trim_start()
            .to_owned()
    };
    // Tables of a handful of rows, read once a round.
    let is_small = |node: &str| {
        ["paused", "key_todo"]
            .iter()
            .any(|table| node.starts_with(&format!("Seq Scan on {table}")))
    };
    let of_the_picked = |at: usize| {
        plan[at + 1..]
            .iter()
            .map(|line| node(line))
            .find(|line| !line.starts_with("Sort Key"))
            .is_some_and(|child| child.starts_with("CTE Scan on picked"))
    };
    plan.iter()
        .enumerate()
        .filter(|(at, line)| {
            (node(line).starts_with("Seq Scan") && !is_small(&node(line)))
                || (node(line).starts_with("Sort")
                    && !node(line).starts_with("Sort Key")
                    && !of_the_picked(*at))
        })
        .map(|(_, line)| node(line))
        .collect()
}

fn demand(runner: crate::job::RunnerId, batch: u32) -> Demand {
    let job_type = JobType::from("bench");
    Demand {
        runner,
        picks: Priority::ALL
            .map(|priority| Pick {
                job_type: job_type.clone(),
                priority,
                want: batch,
                mark: (Timestamp::MIN, 0),
            })
            .to_vec(),
        total: batch,
        deadlines: BTreeMap::from([(job_type, Duration::from_secs(3600))]),
    }
}

/// Enqueues `jobs` jobs in arrays of 1,000, each with one of so many ordering keys, or none.
pub(super) async fn fill(
    store: &Store,
    job_type: &str,
    jobs: u32,
    ordering_keys: u32,
) -> anyhow::Result<()> {
    let mut left = jobs;
    while left > 0 {
        let some = left.min(1000);
        let array: Vec<_> = (0..some)
            .map(|n| {
                let key = (ordering_keys > 0).then(|| format!("k{}", (left - n) % ordering_keys));
                serde_json::json!({ "job_type": job_type, "payload": { "i": left - n }, "ordering_key": key })
            })
            .collect();
        store.enqueue_many(&serde_json::to_string(&array)?).await?;
        left -= some;
    }
    Ok(())
}

fn require_type(runner: &Runner, job_type: &str) -> anyhow::Result<()> {
    let serves = runner.plugins().iter().any(|file| {
        file.state == "serving" && file.job_types.iter().any(|served| served == job_type)
    });
    if serves {
        return Ok(());
    }
    Err(Misuse(format!("no plugin in `{}` serves the job type `{job_type}`: build the handlers with scripts/guests.sh, or see `piecework plugins list`", runner.plugins_folder().display())).into())
}

/// The server counts commits up to a second late.
async fn settle_counters() {
    tokio::time::sleep(Duration::from_millis(1500)).await;
}

fn quantile(sorted: &[f64], percent: usize) -> f64 {
    sorted
        .get((sorted.len().saturating_sub(1)) * percent / 100)
        .copied()
        .unwrap_or(f64::NAN)
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn float(number: i64) -> f64 {
    number as f64
}

fn round(number: f64) -> f64 {
    number.round()
}

fn round3(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}
