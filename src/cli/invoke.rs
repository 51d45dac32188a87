//! `piecework invoke`: one handler, once, without a database.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use serde_json::value::RawValue;

use super::enqueue::read_payload;
use super::{Ending, Misuse, block_on, print};
use crate::config::Config;
use crate::engine::{Engine, NoLedger, Progress, Stop, Ties};
use crate::job::{ClaimToken, Claimed, FollowUp, JobId, JobType, Priority, Timestamp};

/// Call one handler once, without a database, and print what it came to
#[derive(Debug, Args)]
pub(super) struct Invoke {
    /// The .wasm file
    file: PathBuf,
    /// The payload, JSON; `-` reads it from standard input, `@FILE` from a file
    #[arg(long, default_value = "{}", allow_hyphen_values = true)]
    payload: String,
    /// Which attempt the handler is told that this is
    #[arg(long, default_value_t = 1)]
    attempt: u32,
    /// How many attempts the handler is told that there are
    #[arg(long, default_value_t = 5)]
    max_attempts: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Invoke {
    pub(super) fn run(self, config: &Config) -> anyhow::Result<Ending> {
        let payload = read_payload(&self.payload)?;
        let bytes = std::fs::read(&self.file)
            .map_err(|error| Misuse(format!("cannot read `{}`: {error}", self.file.display())))?;
        let name = self
            .file
            .file_stem()
            .and_then(|name| name.to_str())
            .unwrap_or("handler")
            .to_owned();
        let mut config = config.clone();
        config.open_secrets()?;
        let rules = config.plugin(&name);
        let engine = Engine::new(&config, 1)?;
        let grants = engine.grants(&name, &rules);
        let handler = engine
            .compile(&bytes, rules.limits.fuel.is_some())
            .with_context(|| format!("`{}` is refused", self.file.display()))?;
        let job = Claimed {
            id: JobId(1),
            claim: ClaimToken(1),
            job_type: JobType::from(
                rules
                    .job_types
                    .first()
                    .map_or(name.as_str(), String::as_str),
            ),
            priority: Priority(2),
            due_at: now(),
            attempt: self.attempt,
            max_attempts: self.max_attempts,
            payload,
            oversized: false,
            ordering_key: None,
            group_key: None,
            batch: None,
            enqueued_at: now(),
            parent: None,
            root: JobId(1),
            checkpoint: None,
        };
        let ties = Ties {
            stop: Arc::new(Stop::default()),
            progress: Arc::new(Progress::default()),
            ledger: Arc::new(NoLedger),
        };
        let outcome = block_on(async { Ok(engine.call(&handler, &grants, &job, &ties).await) })?;
        let done = outcome.verdict.is_ok();
        let usage = outcome.usage;
        let failure = outcome.verdict.as_ref().err();
        if self.json {
            let raw = |text: &String| RawValue::from_string(text.clone());
            print::json(&Answer {
                outcome: failure.map_or("done", |failure| failure.class.as_str()),
                result: outcome
                    .verdict
                    .as_ref()
                    .ok()
                    .and_then(Option::as_ref)
                    .map(raw)
                    .transpose()?,
                error: failure.map(|failure| failure.message.as_str()),
                follow_ups: &outcome.follow_ups,
                progress: outcome.progress.clone(),
                output: outcome.output.as_deref(),
                run_us: usage.run.as_micros(),
                cpu_us: usage.cpu.as_micros(),
                fuel: usage.fuel,
                peak_memory: usage.peak_memory,
                http_calls: usage.http.map(|http| http.calls),
                http_bytes: usage.http.map(|http| http.bytes),
                http_us: usage.http.map(|http| http.time.as_micros()),
            })?;
        } else {
            match &outcome.verdict {
                Ok(result) => print::line(&format!(
                    "outcome    done\nresult     {}",
                    print::plain(result.as_deref().unwrap_or("null"))
                ))?,
                Err(failure) => print::line(&format!(
                    "outcome    {} ({:?})\nerror      {}",
                    failure.class.as_str(),
                    failure.disposition,
                    print::plain(&failure.message)
                ))?,
            }
            for job in &outcome.follow_ups {
                print::line(&format!(
                    "follow-up  {} {}",
                    print::plain(&job.job_type),
                    print::plain(job.payload.get())
                ))?;
            }
            if let Some((percent, message)) = &outcome.progress {
                print::line(&format!("progress   {percent}% {}", print::plain(message)))?;
            }
            for text in outcome.output.iter().flat_map(|output| output.lines()) {
                print::line(&format!("output     {}", print::plain(text)))?;
            }
            print::line(&format!(
                "used       {:?} wall clock, {:?} computing, {} KiB memory{}{}",
                usage.run,
                usage.cpu,
                usage.peak_memory / 1024,
                usage
                    .fuel
                    .map_or_else(String::new, |fuel| format!(", {fuel} fuel")),
                usage.http.map_or_else(String::new, |http| format!(
                    ", {} HTTP calls of {} bytes in {:?}",
                    http.calls, http.bytes, http.time
                ))
            ))?;
        }
        Ok(if done { Ending::Done } else { Ending::Failed })
    }
}

/// What `--json` prints. JSON from the handler stays as it is: its numbers keep their digits.
#[derive(serde::Serialize)]
struct Answer<'a> {
    outcome: &'static str,
    result: Option<Box<RawValue>>,
    error: Option<&'a str>,
    follow_ups: &'a [FollowUp],
    progress: Option<(u8, String)>,
    output: Option<&'a str>,
    run_us: u128,
    cpu_us: u128,
    fuel: Option<u64>,
    peak_memory: u64,
    http_calls: Option<u32>,
    http_bytes: Option<u64>,
    http_us: Option<u128>,
}

fn now() -> Timestamp {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp::from_unix_micros(i64::try_from(since.as_micros()).unwrap_or(0))
}
