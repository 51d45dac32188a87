//! `piecework status`

use std::time::Duration;

use clap::Args;

use super::{Ending, block_on, database, open, print};
use crate::config::Config;

/// What counts as lately for jobs that ended.
const DAY: Duration = Duration::from_secs(86_400);

/// Show the runners, the pending and running jobs by type, and those that ended in the last day
#[derive(Debug, Args)]
pub(super) struct Status {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(super) fn run(self, config: &Config) -> anyhow::Result<Ending> {
        let settings = database(config)?;
        block_on(async {
            let store = open(&settings).await?;
            let runners = store.status_runners().await?;
            let jobs = store.status_jobs().await?;
            let finished = store.status_finished(DAY).await?;
            if self.json {
                print::json(&serde_json::json!({
                    "runners": runners,
                    "job_types": jobs,
                    "finished": finished,
                    "finished_seconds": DAY.as_secs(),
                }))?;
                return Ok(Ending::Done);
            }
            let mut rows = vec![
                [
                    "RUNNER",
                    "NAME",
                    "VERSION",
                    "STATE",
                    "RUNNING",
                    "LEASE",
                    "JOB TYPES",
                ]
                .map(str::to_owned)
                .to_vec(),
            ];
            rows.extend(runners.iter().map(|runner| {
                vec![
                    runner.id.to_string(),
                    print::short(&runner.name, 40),
                    runner.version.clone(),
                    runner.state.clone(),
                    format!("{}/{}", runner.running, runner.slots),
                    format!("{:.1} s", runner.lease_seconds),
                    print::short(&runner.job_types.join(","), 60),
                ]
            }));
            print::table(&rows)?;
            print::line("")?;
            let mut rows = vec![
                [
                    "JOB TYPE",
                    "DUE",
                    "BLOCKED",
                    "LATER",
                    "RUNNING",
                    "OLDEST DUE",
                    "",
                ]
                .map(str::to_owned)
                .to_vec(),
            ];
            rows.extend(jobs.iter().map(|line| {
                vec![
                    print::short(&line.job_type, 40),
                    number(line.due, "due", &line.estimated),
                    number(line.blocked, "blocked", &line.estimated),
                    number(line.later, "later", &line.estimated),
                    line.running.to_string(),
                    line.oldest_due_seconds
                        .map_or_else(String::new, |seconds| format!("{seconds:.1} s")),
                    if line.paused {
                        "paused: see `piecework resume`".to_owned()
                    } else if line.served {
                        String::new()
                    } else {
                        "waiting for a plugin: no live runner serves it".to_owned()
                    },
                ]
            }));
            print::table(&rows)?;
            if finished.is_empty() {
                return Ok(Ending::Done);
            }
            print::line("")?;
            let mut rows = vec![
                ["ENDED IN 24 H", "DONE", "FAILED", "CANCELLED"]
                    .map(str::to_owned)
                    .to_vec(),
            ];
            rows.extend(finished.iter().map(|line| {
                vec![
                    print::short(&line.job_type, 40),
                    number(line.done, "done", &line.estimated),
                    number(line.failed, "failed", &line.estimated),
                    number(line.cancelled, "cancelled", &line.estimated),
                ]
            }));
            print::table(&rows)?;
            Ok(Ending::Done)
        })
    }
}

/// An estimate is marked, and shown with two digits, which is what it is good for.
fn number(value: i64, name: &str, estimated: &[String]) -> String {
    if !estimated.iter().any(|estimate| estimate == name) {
        return value.to_string();
    }
    let mut unit = 1;
    while value / unit >= 100 {
        unit *= 10;
    }
    format!("~{}", (value + unit / 2) / unit * unit)
}
