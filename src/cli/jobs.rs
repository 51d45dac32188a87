//! `piecework jobs`

use clap::{Args, Subcommand};

use super::{Ending, Misuse, block_on, database, open_narrow, print};
use crate::config::Config;
use crate::job::JobId;
use crate::store::{Error, Store};

/// List, show, cancel and retry jobs
#[derive(Debug, Args)]
pub(super) struct Jobs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List jobs, newest first
    List(List),
    /// Show everything about one job
    Show(Show),
    /// Cancel jobs, pending or running, for good
    Cancel(Cancel),
    /// Start failed or cancelled jobs anew, with all their attempts before them
    Retry(Retry),
}

#[derive(Debug, Args)]
struct List {
    /// Only jobs in this state
    #[arg(long, value_parser = ["pending", "running", "done", "failed", "cancelled"])]
    state: Option<String>,
    /// Only jobs of this type
    #[arg(long = "type", value_name = "JOB_TYPE")]
    job_type: Option<String>,
    /// At most this many
    #[arg(long, default_value_t = 50)]
    limit: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Show {
    /// The job's id
    id: i64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Cancel {
    /// The jobs' ids
    #[arg(required_unless_present = "key", conflicts_with = "key")]
    ids: Vec<i64>,
    /// Cancel the job that has this unique key, and every job of its chain
    #[arg(long, requires = "job_type")]
    key: Option<String>,
    /// The type of the job with the key
    #[arg(long = "type", value_name = "JOB_TYPE", requires = "key")]
    job_type: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Retry {
    /// The jobs' ids
    #[arg(required_unless_present = "state", conflicts_with_all = ["state", "job_type"])]
    ids: Vec<i64>,
    /// All jobs in this state
    #[arg(long, value_parser = ["failed", "cancelled"])]
    state: Option<String>,
    /// Of these, only those of this type
    #[arg(long = "type", value_name = "JOB_TYPE", requires = "state")]
    job_type: Option<String>,
    /// At most this many, the oldest first
    #[arg(long, default_value_t = 10_000, requires = "state")]
    limit: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What became of a job that was to be cancelled or started anew.
#[derive(serde::Serialize)]
struct Now {
    id: JobId,
    /// The state that it has now; null when there is no such job.
    state: Option<String>,
}

fn no_job(id: JobId) -> String {
    format!("there is no job {id}: it never was, or the history has dropped it")
}

impl Retry {
    async fn retry(&self, store: &Store) -> anyhow::Result<Ending> {
        if let Some(state) = &self.state {
            let started = store
                .retry_all(self.job_type.as_deref(), state, self.limit)
                .await?;
            if self.json {
                print::json(&serde_json::json!({ "started": started }))?;
            } else {
                print::line(&format!("{started} jobs are started anew"))?;
            }
            return Ok(Ending::Done);
        }
        let mut jobs = Vec::new();
        for id in self.ids.iter().copied().map(JobId) {
            let state = store.retry(id).await?;
            jobs.push(Now { id, state });
        }
        tell(&jobs, "pending", self.json)
    }
}

/// Says how the jobs stand; not all as they were to be is a no.
fn tell(jobs: &[Now], wanted: &str, json: bool) -> anyhow::Result<Ending> {
    if json {
        print::json(&jobs)?;
    } else {
        for Now { id, state } in jobs {
            print::line(&match state.as_deref() {
                Some(state) if state == wanted => format!("job {id} is {state}"),
                Some(state @ ("done" | "failed" | "cancelled")) => {
                    format!("job {id} had ended before: it is {state}, nothing was changed")
                }
                Some(state) => format!("job {id} is {state}, nothing was changed"),
                None => no_job(*id),
            })?;
        }
    }
    let all = jobs.iter().all(|job| job.state.as_deref() == Some(wanted));
    Ok(if all { Ending::Done } else { Ending::Failed })
}

impl Cancel {
    /// All of them, whatever becomes of each.
    async fn cancel(&self, store: &Store) -> anyhow::Result<Ending> {
        if let (Some(job_type), Some(key)) = (&self.job_type, &self.key) {
            let cancelled = store.cancel_by_key(job_type, key).await?;
            if self.json {
                print::json(&serde_json::json!({ "cancelled": cancelled }))?;
            } else if cancelled == 0 {
                print::line(&format!(
                    "no pending or running job of type `{}` has the key `{}`",
                    print::plain(job_type),
                    print::plain(key)
                ))?;
            } else {
                print::line(&format!("{cancelled} jobs are cancelled"))?;
            }
            return Ok(if cancelled > 0 {
                Ending::Done
            } else {
                Ending::Failed
            });
        }
        let mut jobs = Vec::new();
        for id in self.ids.iter().copied().map(JobId) {
            let state = store.cancel(id).await?;
            jobs.push(Now { id, state });
        }
        tell(&jobs, "cancelled", self.json)
    }
}

impl Jobs {
    pub(super) fn run(self, config: &Config) -> anyhow::Result<Ending> {
        let settings = database(config)?;
        block_on(async {
            let store = open_narrow(&settings).await?;
            match self.command {
                Command::List(list) => {
                    let jobs = store
                        .jobs_list(list.state.as_deref(), list.job_type.as_deref(), list.limit)
                        .await?;
                    if list.json {
                        print::json(&jobs)?;
                        return Ok(Ending::Done);
                    }
                    let mut rows = vec![
                        ["ID", "TYPE", "STATE", "ATTEMPT", "DUE", "ERROR"]
                            .map(str::to_owned)
                            .to_vec(),
                    ];
                    rows.extend(jobs.iter().map(|job| {
                        vec![
                            job.id.to_string(),
                            print::short(&job.job_type, 30),
                            job.state.clone(),
                            format!("{}/{}", job.attempt, job.max_attempts),
                            job.due_at.clone(),
                            print::short(job.last_error.as_deref().unwrap_or_default(), 70),
                        ]
                    }));
                    print::table(&rows)?;
                }
                Command::Show(show) => {
                    let Some(job) = store.job_show(JobId(show.id)).await? else {
                        return Err(Misuse(no_job(JobId(show.id))).into());
                    };
                    if show.json {
                        print::line(&job)?;
                    } else {
                        print_job(&job)?;
                    }
                }
                Command::Cancel(cancel) => return cancel.cancel(&store).await,
                Command::Retry(retry) => return retry.retry(&store).await,
            }
            Ok(Ending::Done)
        })
        .map_err(|error: anyhow::Error| match error.downcast::<Error>() {
            Ok(Error::Refused { message }) => Misuse(message).into(),
            Ok(error) => error.into(),
            Err(error) => error,
        })
    }
}

/// One member a line, in the order of the table; the text of each value is the database's own.
fn print_job(job: &str) -> anyhow::Result<()> {
    let members: std::collections::BTreeMap<String, Box<serde_json::value::RawValue>> =
        serde_json::from_str(job)?;
    let first = [
        "id",
        "job_type",
        "state",
        "attempt",
        "max_attempts",
        "priority",
        "due_at",
        "enqueued_at",
        "started_at",
        "finished_at",
        "payload",
        "result",
        "failure",
        "last_error",
        "plugin",
        "runner",
        "run_us",
        "cpu_us",
        "fuel",
        "peak_memory",
        "http_calls",
        "http_bytes",
        "http_us",
        "attempts",
        "progress",
        "checkpoint",
    ];
    let rest = members
        .keys()
        .map(String::as_str)
        .filter(|name| !first.contains(name));
    for name in first.into_iter().chain(rest) {
        let Some(value) = members
            .get(name)
            .map(|value| value.get())
            .filter(|value| *value != "null")
        else {
            continue;
        };
        if name == "attempts" {
            let attempts: Vec<Box<serde_json::value::RawValue>> = serde_json::from_str(value)?;
            for attempt in attempts {
                print::line(&format!(
                    "{:13} {}",
                    "attempts",
                    print::plain(attempt.get())
                ))?;
            }
            continue;
        }
        let text = match serde_json::from_str::<String>(value) {
            Ok(text) => text
                .lines()
                .map(print::plain)
                .collect::<Vec<_>>()
                .join("\n              "),
            Err(_) => print::plain(value),
        };
        print::line(&format!("{name:13} {text}"))?;
    }
    Ok(())
}
