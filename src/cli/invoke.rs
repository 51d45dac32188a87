//! `piecework invoke`: one handler, once, without a database.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use serde_json::value::RawValue;

use super::componentize::write_whole;
use super::enqueue::read_payload;
use super::{Ending, Misuse, block_on, print};
use crate::config::Config;
use crate::engine::{Engine, Ledger, Progress, Saving, Stop, Ties};
use crate::http::Tape;
use crate::job::{
    ClaimToken, Claimed, Disposition, Failure, FollowUp, JobId, JobType, Outcome, Priority,
    Timestamp,
};

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
    /// What becomes of its HTTP calls: allow (where runner.toml does), deny, record:FILE (allow, and write calls and answers
    /// to a file, without secrets), replay:FILE (answer from such a file, without a network)
    #[arg(long, default_value = "allow", value_name = "MODE")]
    http: Http,
    /// What an earlier attempt saved; may be given often
    #[arg(long = "checkpoint", value_name = "NAME=JSON")]
    checkpoints: Vec<Checkpoint>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug)]
enum Http {
    Allow,
    Deny,
    Record(PathBuf),
    Replay(PathBuf),
}

impl std::str::FromStr for Http {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text.split_once(':') {
            None if text == "allow" => Self::Allow,
            None if text == "deny" => Self::Deny,
            Some(("record", file)) if !file.is_empty() => Self::Record(file.into()),
            Some(("replay", file)) if !file.is_empty() => Self::Replay(file.into()),
            _ => {
                return Err("it must be allow, deny, record:FILE or replay:FILE".to_owned());
            }
        })
    }
}

impl Http {
    fn tape(&self) -> anyhow::Result<Option<Arc<Tape>>> {
        let tape = match self {
            Self::Allow => return Ok(None),
            Self::Deny => Tape::denying(),
            Self::Record(file) => {
                // Before calls are made that cannot be made again.
                write_whole(file, Tape::recording().text().as_bytes())?;
                Tape::recording()
            }
            Self::Replay(file) => {
                let shown = file.display();
                let text = std::fs::read_to_string(file).map_err(|error| {
                    Misuse(format!(
                        "cannot read the recording `{shown}`: {error}; make one with `--http record:{shown}`"
                    ))
                })?;
                Tape::replaying(&text)
                    .map_err(|error| Misuse(format!("`{shown}` is no recording: {error}")))?
            }
        };
        Ok(Some(Arc::new(tape)))
    }
}

#[derive(Clone, Debug)]
struct Checkpoint {
    name: String,
    json: Box<RawValue>,
}

impl std::str::FromStr for Checkpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, json) = text
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or("it must be NAME=JSON, such as seen={\"status\":200}")?;
        let json =
            serde_json::from_str(json).map_err(|error| format!("`{json}` is no JSON: {error}"))?;
        Ok(Self {
            name: name.to_owned(),
            json,
        })
    }
}

/// Keeps checkpoints until the end of the call.
#[derive(Debug, Default)]
struct Memory(Mutex<BTreeMap<String, Box<RawValue>>>);

impl Ledger for Memory {
    fn save(&self, name: &str, json: &str) -> Saving {
        let saved = RawValue::from_string(json.to_owned()).map_err(|error| error.to_string());
        let saved = saved.map(|json| {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert(name.to_owned(), json);
        });
        Box::pin(std::future::ready(saved))
    }
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
        let tape = self.http.tape()?;
        let mut config = config.clone();
        match self.http {
            Http::Allow | Http::Record(_) => config.open_secrets()?,
            Http::Deny | Http::Replay(_) => config.open_secrets_for_trial()?,
        }
        let rules = config.plugin(&name);
        let engine = Engine::new(&config, 1)?;
        let grants = match &tape {
            Some(tape) => engine.grants_taped(&name, &rules, tape.clone()),
            None => engine.grants(&name, &rules),
        };
        let begun = Instant::now();
        let handler = engine
            .compile(&bytes, rules.limits.fuel.is_some())
            .with_context(|| format!("`{}` is refused", self.file.display()))?;
        let compile = begun.elapsed();
        let job_type = rules.job_types.first();
        let job = self.job(payload, job_type.map_or(name.as_str(), String::as_str))?;
        let memory = Arc::new(Memory::default());
        let ties = Ties {
            stop: Arc::new(Stop::default()),
            progress: Arc::new(Progress::default()),
            ledger: memory.clone(),
        };
        let outcome = block_on(async { Ok(engine.call(&handler, &grants, &job, &ties).await) })?;
        if let (Http::Record(file), Some(tape)) = (&self.http, &tape) {
            write_whole(file, tape.text().as_bytes())?;
        }
        let saved = std::mem::take(&mut *memory.0.lock().unwrap_or_else(PoisonError::into_inner));
        let call = Call {
            outcome: &outcome,
            saved: &saved,
            unused: tape.map_or_else(Vec::new, |tape| tape.unused()),
            compile,
            size: bytes.len(),
        };
        if self.json {
            call.print_json()?;
        } else {
            call.print()?;
        }
        Ok(if outcome.verdict.is_ok() {
            Ending::Done
        } else {
            Ending::Failed
        })
    }

    fn job(&self, payload: String, job_type: &str) -> anyhow::Result<Claimed> {
        let checkpoints: BTreeMap<_, _> = self
            .checkpoints
            .iter()
            .map(|checkpoint| (&checkpoint.name, &checkpoint.json))
            .collect();
        Ok(Claimed {
            id: JobId(1),
            claim: ClaimToken(1),
            job_type: JobType::from(job_type),
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
            checkpoint: Some(serde_json::to_string(&checkpoints)?)
                .filter(|_| !checkpoints.is_empty()),
        })
    }
}

/// What a call came to.
struct Call<'a> {
    outcome: &'a Outcome,
    saved: &'a BTreeMap<String, Box<RawValue>>,
    /// Recorded HTTP calls that the handler did not make.
    unused: Vec<String>,
    compile: Duration,
    size: usize,
}

impl Call<'_> {
    fn failure(&self) -> Option<&Failure> {
        self.outcome.verdict.as_ref().err()
    }

    fn print_json(&self) -> anyhow::Result<()> {
        let Self { outcome, .. } = self;
        let (failure, usage) = (self.failure(), outcome.usage);
        let result = outcome.verdict.as_ref().ok().and_then(Option::as_ref);
        print::json(&Answer {
            outcome: failure.map_or("done", |failure| failure.class.as_str()),
            result: result
                .map(|text| RawValue::from_string(text.clone()))
                .transpose()?,
            error: failure.map(|failure| failure.message.as_str()),
            disposition: failure.map(|failure| wish(failure.disposition)),
            follow_ups: &outcome.follow_ups,
            checkpoints: self.saved,
            progress: outcome.progress.clone(),
            output: outcome.output.as_deref(),
            run_us: usage.run.as_micros(),
            cpu_us: usage.cpu.as_micros(),
            fuel: usage.fuel,
            peak_memory: usage.peak_memory,
            http_calls: usage.http.map(|http| http.calls),
            http_bytes: usage.http.map(|http| http.bytes),
            http_us: usage.http.map(|http| http.time.as_micros()),
            http_unused: &self.unused,
            compile_us: self.compile.as_micros(),
            size: self.size,
        })
    }

    fn print(&self) -> anyhow::Result<()> {
        let Self { outcome, .. } = self;
        match &outcome.verdict {
            Ok(result) => print::line(&format!(
                "outcome    done\nresult     {}",
                print::plain(result.as_deref().unwrap_or("null"))
            ))?,
            Err(failure) => print::line(&format!(
                "outcome    {} ({})\nerror      {}",
                failure.class.as_str(),
                wish(failure.disposition),
                print::plain(&failure.message)
            ))?,
        }
        for job in &outcome.follow_ups {
            print::line(&format!("follow-up  {}", print::plain(&told(job)?)))?;
        }
        for (name, json) in self.saved {
            print::line(&format!(
                "checkpoint {} {}",
                print::plain(name),
                print::plain(json.get())
            ))?;
        }
        if let Some((percent, message)) = &outcome.progress {
            print::line(&format!("progress   {percent}% {}", print::plain(message)))?;
        }
        for text in outcome.output.iter().flat_map(|output| output.lines()) {
            print::line(&format!("output     {}", print::plain(text)))?;
        }
        for call in &self.unused {
            print::line(&format!("not called {}", print::plain(call)))?;
        }
        let usage = outcome.usage;
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
        print::line(&format!(
            "component  {} bytes, ready after {:?}",
            self.size, self.compile
        ))
    }
}

/// A disposition in the world's words.
fn wish(disposition: Disposition) -> String {
    match disposition {
        Disposition::Backoff => "retry".to_owned(),
        Disposition::After(wait) => format!("retry-after {}", wait.as_secs()),
        Disposition::Refund(wait) => format!("snooze {}", wait.as_secs()),
        Disposition::Discard => "discard".to_owned(),
    }
}

/// A follow-up in a line: type, payload, and the options that were given.
fn told(job: &FollowUp) -> anyhow::Result<String> {
    let mut line = format!("{} {}", job.job_type, job.payload.get());
    let options: BTreeMap<String, serde_json::Value> =
        serde_json::from_value(serde_json::to_value(job)?)?;
    for (name, value) in options {
        if !["job_type", "payload", "parent", "root"].contains(&name.as_str()) {
            line += &format!(" {name}={value}");
        }
    }
    Ok(line)
}

/// What `--json` prints. JSON from the handler stays as it is: its numbers keep their digits.
#[derive(serde::Serialize)]
struct Answer<'a> {
    outcome: &'static str,
    result: Option<Box<RawValue>>,
    error: Option<&'a str>,
    disposition: Option<String>,
    follow_ups: &'a [FollowUp],
    checkpoints: &'a BTreeMap<String, Box<RawValue>>,
    progress: Option<(u8, String)>,
    output: Option<&'a str>,
    run_us: u128,
    cpu_us: u128,
    fuel: Option<u64>,
    peak_memory: u64,
    http_calls: Option<u32>,
    http_bytes: Option<u64>,
    http_us: Option<u128>,
    http_unused: &'a [String],
    compile_us: u128,
    size: usize,
}

fn now() -> Timestamp {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp::from_unix_micros(i64::try_from(since.as_micros()).unwrap_or(0))
}
