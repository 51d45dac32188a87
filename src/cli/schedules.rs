//! `piecework schedules`: lists and changes schedules, and shows when one would tick.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};

use super::enqueue::read_payload;
use super::queue::with_store;
use super::{Ending, Misuse, print};
use crate::config::Config;
use crate::schedule::{self, Spec};
use crate::store::{NewSchedule, ScheduleLine};

/// List schedules, make, change and remove them, pause and resume them, show when one would tick
#[derive(Debug, Args)]
pub(super) struct Schedules {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List all schedules, with their last and next ticks
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make a schedule, or change it as a whole
    Set(Box<Set>),
    /// Remove a schedule; jobs that it has enqueued stay
    Remove {
        /// Its name
        name: String,
    },
    /// No ticks until it is resumed
    Pause {
        /// Its name
        name: String,
    },
    /// Tick again, from now on
    Resume {
        /// Its name
        name: String,
    },
    /// Show when a schedule would tick; needs no database
    Next(Next),
}

#[derive(Debug, Args)]
struct Set {
    /// Its name
    name: String,
    /// The type of its jobs [default: its name]
    #[arg(long = "type", value_name = "JOB_TYPE")]
    job_type: Option<String>,
    /// Minute, hour, day of month, month, day of week: "30 2 * * MON-FRI"; or six fields, the second first
    #[arg(long, value_name = "SPEC", conflicts_with = "every")]
    cron: Option<String>,
    /// The time zone of the cron expression: "Europe/Berlin" [default: UTC]
    #[arg(long, requires = "cron")]
    zone: Option<String>,
    /// A fixed interval of whole seconds: "90s", "1h"
    #[arg(long, value_name = "INTERVAL", value_parser = humantime::parse_duration)]
    every: Option<Duration>,
    /// The payload of its jobs, JSON; `-` reads it from standard input, `@FILE` from a file
    #[arg(long, default_value = "{}", allow_hyphen_values = true)]
    payload: String,
    /// 1 first to 4 last [default: 2]
    #[arg(long)]
    priority: Option<i32>,
    /// How often a job may be tried [default: 5]
    #[arg(long)]
    max_attempts: Option<i32>,
    /// Its jobs run one after another, and after all others with the same key
    #[arg(long, value_name = "KEY")]
    ordering_key: Option<String>,
    /// What follows when no runner was there at a tick: `skip`, or `once` (one job for all that were missed) [default: skip]
    #[arg(long)]
    missed: Option<String>,
    /// `allow`, or `skip`: no job while that of the tick before has not ended [default: allow]
    #[arg(long)]
    overlap: Option<String>,
    /// Under this name the payload of each job has the time of its tick
    #[arg(long, value_name = "NAME")]
    tick_as: Option<String>,
}

#[derive(Debug, Args)]
struct Next {
    /// A cron expression ("30 2 * * *") or an interval ("90s")
    spec: String,
    /// The time zone of the cron expression
    #[arg(long)]
    zone: Option<String>,
    /// How many ticks
    #[arg(short = 'n', long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: u32,
    /// The first ones after this time: 2030-01-31T08:00:00Z [default: now]
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Schedules {
    pub(super) fn run(self, config: &Config) -> anyhow::Result<Ending> {
        match self.command {
            Command::List { json } => list(config, json),
            Command::Set(set) => set.run(config),
            Command::Next(next) => next.run(),
            Command::Remove { name } => with_store(config, async |store| {
                let changed = store.unschedule(&name).await?;
                found(&name, changed, "is removed")
            }),
            Command::Pause { name } => with_store(config, async |store| {
                if store.pause_schedule(&name, true).await? {
                    return say(&name, "is paused");
                }
                let known = store.schedules_list().await?;
                let known = known.iter().any(|line| line.name == name);
                found(&name, known, "was paused already")
            }),
            Command::Resume { name } => with_store(config, async |store| {
                if store.pause_schedule(&name, false).await? {
                    return say(&name, "is resumed");
                }
                let known = store.schedules_list().await?;
                let known = known.iter().any(|line| line.name == name);
                found(&name, known, "was not paused")
            }),
        }
    }
}

fn say(name: &str, what: &str) -> anyhow::Result<Ending> {
    print::line(&format!("`{}` {what}", print::plain(name)))?;
    Ok(Ending::Done)
}

/// Says it of a schedule that is there.
fn found(name: &str, there: bool, what: &str) -> anyhow::Result<Ending> {
    if there {
        return say(name, what);
    }
    Err(Misuse(format!(
        "there is no schedule `{name}`: `piecework schedules list` shows all"
    ))
    .into())
}

impl Set {
    fn run(self, config: &Config) -> anyhow::Result<Ending> {
        // Refused here, where somebody sees it; what comes by SQL is refused by the next runner.
        let spec = match (&self.cron, self.every) {
            (Some(cron), None) => Spec::cron(cron, self.zone.as_deref().unwrap_or("UTC")),
            (None, Some(every)) => Spec::every(every),
            _ => return Err(Misuse("a schedule needs one of --cron and --every".into()).into()),
        };
        spec.map_err(|error| Misuse(error.to_string()))?;
        let new = NewSchedule {
            job_type: self.job_type.unwrap_or_else(|| self.name.clone()),
            name: self.name,
            payload: read_payload(&self.payload)?,
            priority: self.priority,
            max_attempts: self.max_attempts,
            ordering_key: self.ordering_key,
            cron: self.cron,
            zone: self.zone,
            every: self.every,
            missed: self.missed,
            overlap: self.overlap,
            tick_as: self.tick_as,
        };
        with_store(config, async |store| {
            let changed = store.schedule(&new).await?;
            say(
                &new.name,
                if changed {
                    "is set"
                } else {
                    "is like that already"
                },
            )
        })
    }
}

fn list(config: &Config, json: bool) -> anyhow::Result<Ending> {
    with_store(config, async |store| {
        let lines = store.schedules_list().await?;
        if json {
            print::json(&lines)?;
            return Ok(Ending::Done);
        }
        let mut rows = vec![
            [
                "SCHEDULE",
                "JOB TYPE",
                "TIMES",
                "SOURCE",
                "STATE",
                "NEXT TICK",
                "LAST TICK",
                "LAST JOB",
                "",
            ]
            .map(str::to_owned)
            .to_vec(),
        ];
        rows.extend(lines.iter().map(row));
        print::table(&rows)?;
        Ok(Ending::Done)
    })
}

fn row(line: &ScheduleLine) -> Vec<String> {
    // Ticks are whole seconds.
    let time = |time: &Option<String>| {
        time.as_deref()
            .map_or_else(String::new, |time| time.replace(".000000Z", "Z"))
    };
    let times = match (&line.cron, line.every_seconds) {
        (Some(cron), _) => format!("{cron} {}", line.zone.as_deref().unwrap_or_default()),
        (None, every) => {
            let every = Duration::try_from_secs_f64(every.unwrap_or_default());
            format!(
                "every {}",
                humantime::format_duration(every.unwrap_or_default())
            )
        }
    };
    let note = match (&line.problem, line.state.as_str()) {
        (Some(problem), _) => print::short(problem, 200),
        (None, "undeclared") => "no live runner has it in its settings".to_owned(),
        (None, "active") if line.next_tick.is_none() => "waits for a runner".to_owned(),
        (None, _) => String::new(),
    };
    // What does not tick has no next tick, whatever stands in the table.
    let next = if line.state == "active" {
        time(&line.next_tick)
    } else {
        String::new()
    };
    vec![
        print::short(&line.name, 40),
        print::short(&line.job_type, 40),
        print::short(&times, 60),
        line.source.clone(),
        line.state.clone(),
        next,
        time(&line.last_tick),
        line.last_job
            .map_or_else(String::new, |job| job.to_string()),
        note,
    ]
}

impl Next {
    fn run(self) -> anyhow::Result<Ending> {
        let spec = match humantime::parse_duration(&self.spec) {
            Ok(_) if self.zone.is_some() => {
                return Err(Misuse("a fixed interval has no time zone".into()).into());
            }
            Ok(every) => Spec::every(every),
            Err(_) => Spec::cron(&self.spec, self.zone.as_deref().unwrap_or("UTC")),
        }
        .map_err(|error| Misuse(error.to_string()))?;
        let from = match &self.from {
            None => SystemTime::now(),
            Some(text) => humantime::parse_rfc3339_weak(text).map_err(|error| {
                Misuse(format!(
                    "`{text}` is not a time such as 2030-01-31T08:00:00Z: {error}"
                ))
            })?,
        };
        let from = from
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs().cast_signed());
        let ticks: Vec<(String, String)> =
            std::iter::successors(spec.next(from), |tick| spec.next(*tick))
                .take(self.count as usize)
                .map(|tick| (schedule::utc(tick), spec.local(tick)))
                .collect();
        if self.json {
            let lines: Vec<_> = ticks
                .iter()
                .map(|(utc, local)| serde_json::json!({ "tick": utc, "local": local }))
                .collect();
            print::json(&lines)?;
            return Ok(Ending::Done);
        }
        for (utc, local) in ticks {
            if self.zone.is_some() {
                print::line(&format!("{utc}  {local}"))?;
            } else {
                print::line(&utc)?;
            }
        }
        Ok(Ending::Done)
    }
}
