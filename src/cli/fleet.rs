//! `piecework plugins push`, `promote`, `rollback`, `pin`, `unpin`, `withdraw`, `history` and `releases`: plugins of the fleet.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, Subcommand};
use serde::Serialize;

use super::queue::with_store;
use super::{Ending, Misuse, print};
use crate::config::Config;
use crate::engine::{Engine, hex};
use crate::job::RunnerId;
use crate::plugins::vet;
use crate::store::{
    AutoRollback, Change, Changed, Digest, LARGEST_COMPONENT, ReleaseLine, RunnerPlugins, Store,
};

/// The fewest digits that are taken for a version.
const FEWEST: usize = 6;
/// Between two looks at what the runners say.
const LOOK: Duration = Duration::from_millis(100);
/// The limit of `piecework.component`, in bytes.
const LONGEST_SIGNATURE: u64 = 8192;

#[derive(Debug, Subcommand)]
pub(super) enum Fleet {
    /// Store a component in the database and let it serve a job type on all runners; exit 1 when one of them refuses it
    Push(Push),
    /// Let the canary serve all of its job type
    Promote(Named),
    /// End the canary, if one runs, or else go back to the stable version before
    Rollback {
        /// The job type
        job_type: String,
        /// Go back to this version: its digest, or at least 6 digits of it
        #[arg(long, value_name = "VERSION")]
        to: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Refuse all changes of a job type until it is unpinned
    Pin(Named),
    /// Let a pinned job type be changed again
    Unpin(Plain),
    /// Let the fleet serve a job type no more; runners serve again what their folders have
    Withdraw(Plain),
    /// List what was changed, the newest first
    History {
        /// Of this job type [all]
        job_type: Option<String>,
        /// Most changes
        #[arg(long, default_value_t = 20)]
        limit: u32,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List what the fleet serves: versions, canaries and how they do, pins
    #[command(visible_alias = "fleet")]
    Releases {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(super) struct Plain {
    /// The job type
    job_type: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Named {
    /// The job type
    job_type: String,
    /// The version that is meant: its digest, or at least 6 digits of it
    version: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Push {
    /// The .wasm file
    file: PathBuf,
    /// The job type [what the file would serve in the plugins folder]
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Option<String>,
    /// Serve only this share of the jobs, beside the stable version: "10%"
    #[arg(long, value_name = "SHARE", value_parser = share)]
    canary: Option<u16>,
    /// Let the canary go on also when it is clearly worse than the stable version
    #[arg(long, requires = "canary")]
    no_auto_rollback: bool,
    /// Its minisign signature [FILE.minisig, when there is one]
    #[arg(long, value_name = "FILE")]
    signature: Option<PathBuf>,
    /// Store it also when it cannot serve here
    #[arg(long)]
    no_check: bool,
    /// How long to wait for the runners to serve it
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    wait: Duration,
    /// Do not wait for the runners
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Fleet {
    pub(super) fn run(self, config: &Config) -> anyhow::Result<Ending> {
        match self {
            Self::Push(push) => push.run(config),
            Self::Promote(to) => named(config, &to.job_type, to.version, to.json, Change::Promote),
            Self::Rollback { job_type, to, json } => {
                named(config, &job_type, to, json, Change::Rollback)
            }
            Self::Pin(to) => named(config, &to.job_type, to.version, to.json, Change::Pin),
            Self::Unpin(of) => named(config, &of.job_type, None, of.json, |_| Change::Unpin),
            Self::Withdraw(of) => named(config, &of.job_type, None, of.json, |_| Change::Withdraw),
            Self::History {
                job_type,
                limit,
                json,
            } => history(config, job_type.as_deref(), limit, json),
            Self::Releases { json } => releases(config, json),
        }
    }
}

/// A change of a job type that may name a version.
fn named(
    config: &Config,
    job_type: &str,
    version: Option<String>,
    json: bool,
    change: impl FnOnce(Option<Digest>) -> Change,
) -> anyhow::Result<Ending> {
    with_store(config, async |store| {
        let version = match version {
            Some(version) => Some(find(&store, job_type, &version).await?),
            None => None,
        };
        let changed = store.release(job_type, change(version)).await?;
        if json {
            print::json(&changed)?;
        } else {
            print::line(&print::plain(&changed.message))?;
        }
        Ok(Ending::Done)
    })
}

/// The version of a job type that begins with these digits.
async fn find(store: &Store, job_type: &str, version: &str) -> anyhow::Result<Digest> {
    let digits = version.to_ascii_lowercase();
    let hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !hexadecimal || !(FEWEST..=64).contains(&digits.len()) {
        return Err(Misuse(format!(
            "`{version}` is no version: give its digest, or the first {FEWEST} digits of it or more"
        ))
        .into());
    }
    let found = store.plugin_versions(job_type, &digits).await?;
    match found[..] {
        [digest] => Ok(digest),
        [] => Err(Misuse(format!(
            "`{job_type}` has had no version {version}: see `piecework plugins history {job_type}`"
        ))
        .into()),
        _ => {
            let all: Vec<String> = found.iter().map(|digest| hex(digest)).collect();
            Err(Misuse(format!(
                "{version} may be {}: give more digits",
                all.join(" or ")
            ))
            .into())
        }
    }
}

/// What a runner has to say about a version that was pushed.
#[derive(Debug, Serialize)]
struct Answer {
    id: RunnerId,
    name: String,
    /// As the runner reports it, or `none` (nothing yet), or `folder` (it takes no plugins from the fleet).
    state: String,
    reason: Option<String>,
}

impl Answer {
    fn of(runner: &RunnerPlugins, job_type: &str, digest: &str) -> Self {
        let plugin = runner.plugins.iter().find(|plugin| {
            let mut types = plugin.job_types.iter();
            plugin.source == "fleet" && plugin.digest == digest && types.any(|own| own == job_type)
        });
        let (state, reason) = match plugin {
            _ if runner.fleet != Some(true) => ("folder".to_owned(), None),
            Some(plugin) => (plugin.state.clone(), plugin.reason.clone()),
            None => ("none".to_owned(), None),
        };
        Self {
            id: runner.id,
            name: runner.name.clone(),
            state,
            reason,
        }
    }

    fn is_final(&self) -> bool {
        self.serves() || matches!(self.state.as_str(), "refused" | "folder")
    }

    fn serves(&self) -> bool {
        matches!(self.state.as_str(), "serving" | "canary")
    }
}

impl Push {
    fn run(self, config: &Config) -> anyhow::Result<Ending> {
        let file = self.file.display();
        let size = std::fs::metadata(&self.file)
            .map_err(|error| Misuse(format!("{file} cannot be read: {error}")))?
            .len();
        if size > LARGEST_COMPONENT as u64 {
            return Err(Misuse(format!(
                "{file} has {size} bytes; the fleet takes components of at most {LARGEST_COMPONENT}"
            ))
            .into());
        }
        let bytes = std::fs::read(&self.file)
            .map_err(|error| Misuse(format!("{file} cannot be read: {error}")))?;
        let job_type = self.job_type(config)?;
        let signature = self.signature()?;
        if !self.no_check
            && let Err(reason) = check(config, &job_type, &bytes, signature.as_deref())
        {
            anyhow::bail!(
                "{file} is refused, and nothing was stored (--no-check stores it all the same): {reason}"
            );
        }
        with_store(config, async |store| {
            let digest = store.push(&bytes, signature.as_deref()).await?;
            let auto = if self.no_auto_rollback {
                AutoRollback::Off
            } else {
                AutoRollback::On
            };
            let change = self.canary.map_or(Change::Push(digest), |share| {
                Change::Canary(digest, share, auto)
            });
            let changed = store.release(&job_type, change).await?;
            if !self.json {
                print::line(&print::plain(&changed.message))?;
            }
            // Runners do it too, when they may; what is pushed often should not have to wait for them.
            if let Err(error) = store.prune_components().await {
                tracing::debug!(%error, "old components could not be forgotten");
            }
            let answers = if self.no_wait {
                Vec::new()
            } else {
                wait(&store, &job_type, &hex(&digest), self.wait).await?
            };
            self.tell(&changed, &hex(&digest), &answers)
        })
    }

    /// The one that is named, or that the file would serve in the plugins folder.
    fn job_type(&self, config: &Config) -> anyhow::Result<String> {
        if let Some(job_type) = &self.job_type {
            return Ok(job_type.clone());
        }
        let file = self.file.display();
        let name = self.file.file_stem().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| {
            Misuse(format!(
                "the name of {file} is no job type: name one with --type"
            ))
        })?;
        match &config.plugin(name).job_types[..] {
            [job_type] => Ok(job_type.clone()),
            several => Err(Misuse(format!(
                "{file} serves {} in the plugins folder: name one with --type",
                several.join(", ")
            ))
            .into()),
        }
    }

    fn signature(&self) -> anyhow::Result<Option<String>> {
        let beside = PathBuf::from(format!("{}.minisig", self.file.display()));
        let file: &Path = match &self.signature {
            Some(file) => file,
            None if beside.exists() => &beside,
            None => return Ok(None),
        };
        let name = file.display();
        let unreadable = |error| Misuse(format!("the signature {name} cannot be read: {error}"));
        let size = std::fs::metadata(file).map_err(unreadable)?.len();
        if !(1..=LONGEST_SIGNATURE).contains(&size) {
            return Err(Misuse(format!(
                "{name} has {size} bytes and is no minisign signature"
            ))
            .into());
        }
        Ok(Some(std::fs::read_to_string(file).map_err(unreadable)?))
    }

    fn tell(&self, changed: &Changed, digest: &str, answers: &[Answer]) -> anyhow::Result<Ending> {
        if self.json {
            #[derive(Serialize)]
            struct Told<'a> {
                digest: &'a str,
                #[serde(flatten)]
                changed: &'a Changed,
                runners: &'a [Answer],
            }
            print::json(&Told {
                digest,
                changed,
                runners: answers,
            })?;
        } else if !self.no_wait {
            for answer in answers {
                let says = match answer.state.as_str() {
                    "folder" => "takes no plugins from the fleet".to_owned(),
                    "none" => format!(
                        "has not said anything within {}",
                        humantime::format_duration(self.wait)
                    ),
                    state if !answer.is_final() => format!(
                        "{} after {}",
                        print::plain(state),
                        humantime::format_duration(self.wait)
                    ),
                    state => print::plain(state),
                };
                let reason = answer
                    .reason
                    .as_deref()
                    .map(|reason| format!(": {}", print::plain(reason)));
                print::line(&format!(
                    "runner {} {}: {says}{}",
                    answer.id,
                    print::plain(&answer.name),
                    reason.unwrap_or_default()
                ))?;
            }
            if answers.iter().all(|answer| answer.state == "folder") {
                print::line(
                    "no live runner takes plugins from the fleet; one that does will serve it",
                )?;
            }
        }
        let fine = answers
            .iter()
            .all(|answer| answer.serves() || answer.state == "folder");
        Ok(if fine { Ending::Done } else { Ending::Failed })
    }
}

/// As a runner with these settings would.
fn check(
    config: &Config,
    job_type: &str,
    bytes: &[u8],
    signature: Option<&str>,
) -> Result<(), String> {
    let name = config.plugin_of(job_type);
    let engine = Engine::new(config, 1).map_err(|error| format!("{error:#}"))?;
    vet(&engine, name, &config.plugin(name), bytes, signature)
        .map(drop)
        .map_err(|refusal| refusal.to_string())
}

/// Waits until all live runners that take plugins from the fleet serve this version or refuse it, but no longer than this.
async fn wait(
    store: &Store,
    job_type: &str,
    digest: &str,
    longest: Duration,
) -> anyhow::Result<Vec<Answer>> {
    let begun = Instant::now();
    loop {
        match store.runner_plugins().await {
            Ok(runners) => {
                let answers: Vec<Answer> = runners
                    .iter()
                    .map(|runner| Answer::of(runner, job_type, digest))
                    .collect();
                if answers.iter().all(Answer::is_final) || begun.elapsed() >= longest {
                    return Ok(answers);
                }
            }
            Err(error) if error.is_passing() && begun.elapsed() < longest => {
                tracing::warn!(%error, "waiting goes on");
            }
            Err(error) => {
                return Err(error).context("it is pushed, but what the runners say cannot be read");
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn history(
    config: &Config,
    job_type: Option<&str>,
    limit: u32,
    json: bool,
) -> anyhow::Result<Ending> {
    with_store(config, async |store| {
        let lines = store.plugin_history(job_type, limit).await?;
        if json {
            print::json(&lines)?;
            return Ok(Ending::Done);
        }
        let mut rows = vec![
            ["AT", "JOB TYPE", "CHANGE", "FROM", "TO", "SHARE", "BY", ""]
                .map(str::to_owned)
                .to_vec(),
        ];
        rows.extend(lines.iter().map(|line| {
            let numbers = line
                .numbers
                .as_ref()
                .map(|numbers| count_text(numbers.get()));
            vec![
                line.at.clone(),
                print::short(&line.job_type, 40),
                line.action.replace('_', " "),
                version(line.from.as_deref()),
                version(line.to.as_deref()),
                percent(line.percent),
                print::short(&line.who, 40),
                print::plain(
                    line.reason
                        .as_deref()
                        .unwrap_or(&numbers.unwrap_or_default()),
                ),
            ]
        }));
        print::table(&rows)?;
        Ok(Ending::Done)
    })
}

/// The numbers of a canary that a person ended.
fn count_text(numbers: &str) -> String {
    let numbers: serde_json::Value = serde_json::from_str(numbers).unwrap_or_default();
    let failed = |of: &str| {
        let number = |what: &str| numbers[of][what].as_i64().unwrap_or(0);
        format!(
            "{} of {}",
            number("failed"),
            number("done") + number("failed")
        )
    };
    format!(
        "{} attempts of the canary failed, {} of the stable version",
        failed("canary"),
        failed("stable")
    )
}

fn releases(config: &Config, json: bool) -> anyhow::Result<Ending> {
    with_store(config, async |store| {
        let lines = store.releases().await?;
        if json {
            print::json(&lines)?;
            return Ok(Ending::Done);
        }
        let mut rows = vec![
            [
                "JOB TYPE", "STABLE", "SINCE", "FAILED", "CANARY", "SHARE", "SINCE", "FAILED", "",
            ]
            .map(str::to_owned)
            .to_vec(),
        ];
        rows.extend(lines.iter().map(row));
        print::table(&rows)?;
        Ok(Ending::Done)
    })
}

fn row(line: &ReleaseLine) -> Vec<String> {
    // They are counted while there is a canary.
    let failed = |done: i64, failed: i64| {
        line.canary
            .as_ref()
            .map_or_else(String::new, |_| format!("{failed} of {}", done + failed))
    };
    let remark = match (&line.pinned_by, &line.pinned_at) {
        (Some(by), Some(at)) => format!("pinned by {} since {at}", print::short(by, 40)),
        _ if line.canary.is_some() && !line.auto_rollback => "no auto rollback".to_owned(),
        _ => String::new(),
    };
    vec![
        print::short(&line.job_type, 40),
        version(Some(&line.stable)),
        line.stable_since.clone(),
        failed(line.stable_done, line.stable_failed),
        version(line.canary.as_deref()),
        percent(line.percent),
        line.canary_since.clone().unwrap_or_default(),
        failed(line.canary_done, line.canary_failed),
        remark,
    ]
}

fn version(digest: Option<&str>) -> String {
    digest.map_or_else(String::new, print::version)
}

fn percent(percent: Option<f64>) -> String {
    percent.map_or_else(String::new, |percent| format!("{percent}%"))
}

/// "10%" in hundredths of a percent.
fn share(text: &str) -> Result<u16, String> {
    let wrong = || "a share is a percentage of 0.01 to 99.99, such as 10%".to_owned();
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || whole.len() > 3 || part.len() > 2 || !digits(whole) || !digits(part) {
        return Err(wrong());
    }
    format!("{whole}{part:0<2}")
        .parse()
        .ok()
        .filter(|share| (1..10_000).contains(share))
        .ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percentages() {
        for (text, hundredths) in [("10%", 1000), ("0.01%", 1), ("99.99", 9999), ("5.5 %", 550)] {
            assert_eq!(share(text), Ok(hundredths), "{text}");
        }
        for text in [
            "", "%", "0", "100%", "-1%", "1.234%", "ten", "1e1", "+5", "99999%",
        ] {
            assert!(share(text).is_err(), "{text}");
        }
    }
}
