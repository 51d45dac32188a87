//! `piecework retention`

use std::time::Duration;

use clap::Args;

use super::queue::with_store;
use super::{Ending, Misuse, print};
use crate::config::Config;

/// Show how long ended jobs are kept, or set it for the whole fleet
#[derive(Debug, Args)]
pub(super) struct Retention {
    /// Keep done jobs this long: "7days", "12h"; "0s" keeps none
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    done: Option<Duration>,
    /// Keep failed jobs this long
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    failed: Option<Duration>,
    /// Keep cancelled jobs this long
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    cancelled: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The limit of `piecework.keep`. Said here as well, so that a call sets all that it names, or nothing.
const LONGEST: Duration = Duration::from_secs(36_525 * 86_400);

impl Retention {
    pub(super) fn run(self, config: &Config) -> anyhow::Result<Ending> {
        let wanted: Vec<(&str, Duration)> = [
            ("done", self.done),
            ("failed", self.failed),
            ("cancelled", self.cancelled),
        ]
        .into_iter()
        .filter_map(|(state, keep)| Some((state, keep?)))
        .collect();
        if let Some((state, _)) = wanted.iter().find(|(_, keep)| *keep > LONGEST) {
            return Err(Misuse(format!("--{state}: jobs are kept for 100 years at most")).into());
        }
        with_store(config, async |store| {
            for (state, keep) in &wanted {
                store.keep(state, *keep).await?;
            }
            let kept = store.retention().await?;
            if self.json {
                let lines: Vec<_> = kept
                    .iter()
                    .map(|line| {
                        serde_json::json!({ "state": line.state, "keep_seconds": line.keep.as_secs_f64() })
                    })
                    .collect();
                print::json(&lines)?;
                return Ok(Ending::Done);
            }
            let mut rows = vec![["STATE", "KEPT"].map(str::to_owned).to_vec()];
            rows.extend(kept.iter().map(|line| {
                vec![
                    line.state.clone(),
                    if line.keep.is_zero() {
                        "not at all".to_owned()
                    } else {
                        span(line.keep)
                    },
                ]
            }));
            print::table(&rows)?;
            if !wanted.is_empty() {
                print::line(
                    "runners drop what is older within an hour or so, in whole days (UTC)",
                )?;
            }
            Ok(Ending::Done)
        })
    }
}

/// In days where they are whole: "90days", and not "2months 29days 3h".
fn span(keep: Duration) -> String {
    let days = keep.as_secs() / 86_400;
    if days > 0 && keep == Duration::from_secs(days * 86_400) {
        return format!("{days} days");
    }
    humantime::format_duration(keep).to_string()
}
