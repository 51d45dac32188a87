//! `piecework status`

use clap::Args;

use super::{Ending, block_on, database, open, print};
use crate::config::Config;

/// Show the runners, and the pending and running jobs by type
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
            if self.json {
                print::json(&serde_json::json!({ "runners": runners, "job_types": jobs }))?;
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
                    line.due.to_string(),
                    line.blocked.to_string(),
                    line.later.to_string(),
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
            Ok(Ending::Done)
        })
    }
}
