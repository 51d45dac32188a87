//! The engine alone, without a database: what one call costs, and how late a handler that does not end is ended.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use serde_json::json;
use tokio::task::JoinSet;

use super::{quantile, round3};
use crate::cli::{Misuse, block_on, print};
use crate::config::Config;
use crate::engine::{Engine, Grants, Handler, NoLedger, Progress, Stop, Ties};
use crate::job::{ClaimToken, Claimed, FailureClass, JobId, Outcome, Priority, Timestamp};

#[derive(Debug, Args)]
pub(super) struct Call {
    /// The plugin: its file's name without .wasm
    #[arg(long = "type", default_value = "noop", value_name = "PLUGIN")]
    plugin: String,
    /// The payload, JSON
    #[arg(long, default_value = "{}")]
    payload: String,
    /// Calls to time, after 300 to warm up
    #[arg(long, default_value_t = 4000)]
    calls: u32,
    /// The folder with the plugins [runner.plugins_folder]
    #[arg(long, value_name = "FOLDER")]
    plugins: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Kill {
    /// Handlers to end, of each kind
    #[arg(long, default_value_t = 200)]
    kills: u32,
    /// How many run at once
    #[arg(long, default_value_t = 4)]
    at_once: u32,
    /// Their limit, in milliseconds
    #[arg(long, default_value_t = 100)]
    limit: u64,
    /// The folder with the plugins, `spin` among them [runner.plugins_folder]
    #[arg(long, value_name = "FOLDER")]
    plugins: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A plugin in an engine of its own.
struct Bed {
    engine: Engine,
    handler: Handler,
    grants: Grants,
}

impl Bed {
    fn new(config: &Config, folder: Option<&PathBuf>, plugin: &str) -> anyhow::Result<Self> {
        let folder = folder.unwrap_or(&config.runner.plugins_folder);
        let file = folder.join(plugin).with_extension("wasm");
        let bytes = std::fs::read(&file).map_err(|error| {
            Misuse(format!(
                "cannot read `{}`: {error}; build the handlers with scripts/guests.sh",
                file.display()
            ))
        })?;
        let rules = config.plugin(plugin);
        let engine = Engine::new(config, config.runner.slots)?;
        let handler = engine
            .compile(&bytes, rules.limits.fuel.is_some())
            .with_context(|| format!("`{}` is refused", file.display()))?;
        let grants = engine.grants(plugin, &rules);
        Ok(Self {
            engine,
            handler,
            grants,
        })
    }

    async fn call(&self, payload: &str) -> Outcome {
        let ties = Ties {
            stop: Arc::new(Stop::default()),
            progress: Arc::new(Progress::default()),
            ledger: Arc::new(NoLedger),
        };
        let job = job(payload);
        self.engine
            .call(&self.handler, &self.grants, &job, &ties)
            .await
    }
}

impl Call {
    pub(super) fn measure(&self, config: &Config) -> anyhow::Result<()> {
        let bed = Bed::new(config, self.plugins.as_ref(), &self.plugin)?;
        let mut times = block_on(async {
            let mut times = Vec::new();
            for n in 0..self.calls + 300 {
                let begun = Instant::now();
                let outcome = bed.call(&self.payload).await;
                let took = begun.elapsed().as_secs_f64() * 1e6;
                if let Err(failure) = &outcome.verdict {
                    anyhow::bail!(
                        "the handler failed: {}: {}",
                        failure.class.as_str(),
                        failure.message
                    );
                }
                if n >= 300 {
                    times.push(took);
                }
            }
            Ok(times)
        })?;
        times.sort_by(f64::total_cmp);
        let (p10, p50, p99) = (
            quantile(&times, 10),
            quantile(&times, 50),
            quantile(&times, 99),
        );
        if self.json {
            return print::json(&json!({
                "plugin": self.plugin, "calls": self.calls,
                "call_us": { "p10": round3(p10), "p50": round3(p50), "p99": round3(p99) },
            }));
        }
        print::line(&format!(
            "one call of `{}` with all limits on: store, instance, run, result, drop ({} calls)\n\
             p10  {p10:.1} us\n\
             p50  {p50:.1} us\n\
             p99  {p99:.1} us",
            self.plugin, self.calls
        ))
    }
}

impl Kill {
    pub(super) fn measure(&self, config: &Config) -> anyhow::Result<()> {
        // Never accepts: the kernel does, and nobody ever says anything.
        let silent = TcpListener::bind("127.0.0.1:0").context("open a silent server")?;
        let url = format!("http://{}", silent.local_addr()?);
        let mut config = config.clone();
        let rule = toml::from_str(&format!(
            "allow = [{{ to = \"{url}\", private = true }}]\nconnect_timeout = \"1h\"\nfirst_byte_timeout = \"1h\"\ntimeout = \"1h\""
        ))
        .context("allow the silent server")?;
        config.plugins.entry("spin".into()).or_default().http = rule;
        let mut bed = Bed::new(&config, self.plugins.as_ref(), "spin")?;
        bed.grants.limits.timeout = Duration::from_millis(self.limit);
        let bed = Arc::new(bed);
        let kinds = [
            ("computing", "{}".to_owned()),
            ("sleeping", json!({ "how": "sleep" }).to_string()),
            (
                "waiting for HTTP",
                json!({ "how": "http", "url": url }).to_string(),
            ),
        ];
        let mut lines = Vec::new();
        for (kind, payload) in kinds {
            let mut late = self.lateness(&bed, &payload)?;
            late.sort_by(f64::total_cmp);
            lines.push((
                kind,
                quantile(&late, 50),
                quantile(&late, 99),
                quantile(&late, 100),
            ));
        }
        if self.json {
            let lines: Vec<_> = lines
                .iter()
                .map(|(kind, p50, p99, max)| {
                    json!({ "guest": kind, "late_ms": { "p50": round3(*p50), "p99": round3(*p99), "max": round3(*max) } })
                })
                .collect();
            return print::json(&json!({
                "kills": self.kills, "at_once": self.at_once, "limit_ms": self.limit, "guests": lines,
            }));
        }
        print::line(&format!(
            "how long after its limit of {} ms a handler is gone, {} at once, {} of each kind",
            self.limit, self.at_once, self.kills
        ))?;
        for (kind, p50, p99, max) in lines {
            print::line(&format!(
                "{kind:18} p50 {p50:.2} ms  p99 {p99:.2} ms  max {max:.2} ms"
            ))?;
        }
        Ok(())
    }

    /// By how many milliseconds each call went over its limit, until everything of it was gone.
    fn lateness(&self, bed: &Arc<Bed>, payload: &str) -> anyhow::Result<Vec<f64>> {
        let limit = bed.grants.limits.timeout;
        let mut late = Vec::new();
        block_on(async {
            while late.len() < self.kills as usize {
                let mut batch = JoinSet::new();
                for _ in 0..self.at_once.max(1) {
                    let (bed, payload) = (bed.clone(), payload.to_owned());
                    batch.spawn(async move {
                        let begun = Instant::now();
                        let outcome = bed.call(&payload).await;
                        (outcome.verdict, begun.elapsed())
                    });
                }
                while let Some(ended) = batch.join_next().await {
                    let (verdict, took) = ended?;
                    let class = verdict.as_ref().err().map(|failure| failure.class);
                    anyhow::ensure!(
                        class == Some(FailureClass::Timeout),
                        "the handler ended otherwise: {verdict:?}; is this the `spin` of this release?"
                    );
                    late.push(took.saturating_sub(limit).as_secs_f64() * 1000.0);
                }
            }
            Ok(())
        })?;
        Ok(late)
    }
}

fn job(payload: &str) -> Claimed {
    Claimed {
        id: JobId(1),
        claim: ClaimToken(1),
        job_type: "bench".into(),
        priority: Priority(2),
        due_at: Timestamp(0),
        attempt: 1,
        max_attempts: 1,
        payload: payload.to_owned(),
        oversized: false,
        ordering_key: None,
        group_key: None,
        batch: None,
        enqueued_at: Timestamp(0),
        parent: None,
        root: JobId(1),
        checkpoint: None,
    }
}
