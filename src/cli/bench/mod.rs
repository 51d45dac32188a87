//! `piecework bench`: this machine's figures. What needs a database gets one of its own, which is dropped afterwards.

mod claim;
mod drain;
mod engine;
mod limits;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, Subcommand};

use super::run::require_folder;
use super::{Ending, Misuse, block_on, database_or_private, print};
use crate::config::{self, Config};
use crate::job::JobId;
use crate::runner::Runner;
use crate::store::{NewJob, Scratch, Store};
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
    Drain(drain::Drain),
    /// Drain with ordering keys, limits of the fleet, start rates and groups, each against a plain drain in the same run
    Limits(limits::Limits),
    /// Enqueue single jobs while a runner waits, and see how soon it starts them
    Latency(Latency),
    /// Time the claim with and without millions of finished and future jobs beside, and show its plan
    Claim(claim::Claim),
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

impl Bench {
    pub(super) fn run(self, mut config: Config) -> anyhow::Result<Ending> {
        let common = match &self.command {
            Command::Drain(drain) => Some(&drain.common),
            Command::Latency(latency) => Some(&latency.common),
            Command::Limits(limits) => Some(&limits.common),
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
                    Command::Limits(limits) => limits.measure(&config, &settings.url).await?,
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
