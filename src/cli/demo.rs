//! `piecework demo`: a few hundred real jobs, some of them bad company, and proof that the database stays free meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use tokio::sync::broadcast::error::RecvError;

use super::run::{Overrides, require_folder};
use super::{Ending, Misuse, block_on, database_or_private, print};
use crate::config::{self, Config, PluginSettings, Span};
use crate::job::FailureClass;
use crate::runner::Runner;
use crate::store::{LocksHeld, Scratch, Store};
use crate::telemetry::Event;

/// Run a few hundred jobs on a private PostgreSQL, a handler that never returns among them, and show what happens
#[derive(Debug, Args)]
pub(super) struct Demo {
    #[command(flatten)]
    overrides: Overrides,
    /// How many Markdown pages to render
    #[arg(long, default_value_t = 300)]
    pages: u32,
    /// Print the table as JSON
    #[arg(long)]
    json: bool,
}

/// The limit of the handler that never returns.
const SPIN_LIMIT: Duration = Duration::from_secs(2);
/// How much later than its limit it may end.
const SPIN_LATE: Duration = Duration::from_millis(200);
/// A transaction this old was held by somebody. The runner's own take a few milliseconds.
const HELD: Duration = Duration::from_millis(250);
/// The whole demo ends by then, or something is wrong.
const LONGEST: Duration = Duration::from_secs(120);

/// What became of the jobs of one type.
#[derive(Clone, Debug, Default, serde::Serialize)]
struct Tally {
    enqueued: u32,
    done: u32,
    retried: u32,
    failed: u32,
    why: BTreeMap<&'static str, u32>,
    longest_ms: u128,
}

/// What was seen in the database while handlers ran.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
struct Seen {
    samples: u32,
    held_transactions: i64,
    row_locks: i64,
    oldest_transaction_ms: f64,
}

impl Demo {
    pub(super) fn run(self, mut config: Config) -> anyhow::Result<Ending> {
        self.overrides.apply(&mut config)?;
        require_folder(&config)?;
        config.plugins.insert(
            "spin".into(),
            PluginSettings {
                timeout: Some(Span(SPIN_LIMIT)),
                ..PluginSettings::default()
            },
        );
        config.plugins.insert(
            "flaky".into(),
            PluginSettings {
                retry_base: Some(Span::millis(200)),
                retry_max: Some(Span::secs(1)),
                ..PluginSettings::default()
            },
        );
        self.say("starting a database")?;
        let (settings, cluster) = database_or_private(&config)?;
        let ending = block_on(async {
            let scratch = Scratch::create(&settings.url).await?;
            let settings = config::Database {
                url: scratch.url().to_owned(),
                ..settings
            };
            let ending = self.play(config, &settings).await;
            scratch.drop().await.context("drop the demo's database")?;
            ending
        });
        if let Some(cluster) = cluster {
            cluster.stop()?;
        }
        ending
    }

    async fn play(&self, config: Config, settings: &config::Database) -> anyhow::Result<Ending> {
        let store = Store::open(settings)?;
        store.migrate().await?;
        let runner = Runner::start(config, store.clone()).await?;
        for job_type in ["markdown", "flaky", "spin", "noop"] {
            if !runner.plugins().iter().any(|file| {
                file.state == "serving" && file.job_types.iter().any(|served| served == job_type)
            }) {
                return Err(Misuse(format!("the demo needs the handler `{job_type}` in `{}`: build it with scripts/guests.sh", runner.plugins_folder().display())).into());
            }
        }
        let mut events = runner.events().subscribe();
        let mut tallies = self.enqueue(&store).await?;
        let total: u32 = tallies.values().map(|tally| tally.enqueued).sum();
        self.say(&format!("{total} jobs enqueued: pages of Markdown, jobs that fail a few times, jobs that do nothing, and two that never return"))?;

        let begun = Instant::now();
        let mut seen = Seen::default();
        let (mut ended, mut running) = (0, 0_u32);
        let mut sample = tokio::time::interval(Duration::from_millis(20));
        let mut show = tokio::time::interval(Duration::from_millis(500));
        while ended < total {
            anyhow::ensure!(
                begun.elapsed() < LONGEST,
                "{ended} of {total} jobs had ended after {LONGEST:?}"
            );
            tokio::select! {
                event = events.recv() => match event {
                    Ok(Event::Started { .. }) => running += 1,
                    Ok(Event::Finished { job_type, failure, again, run, .. }) => {
                        running = running.saturating_sub(1);
                        let tally = tallies.entry(job_type.to_string()).or_default();
                        tally.count(failure, again, run);
                        ended += u32::from(!again);
                    }
                    Ok(_) => {}
                    Err(RecvError::Lagged(missed)) => anyhow::bail!("the demo missed {missed} events"),
                    Err(RecvError::Closed) => anyhow::bail!("the runner is gone"),
                },
                _ = sample.tick(), if running > 0 => seen.add(store.locks_held(HELD).await?),
                _ = show.tick() => {
                    let events = runner.events();
                    self.say(&format!(
                        "{:5.1} s  {ended:4} of {total} ended, {running} running, {} retries",
                        begun.elapsed().as_secs_f64(),
                        events.again.load(Ordering::Relaxed)
                    ))?;
                }
            }
        }
        let took = begun.elapsed();
        runner.drain();
        runner.join().await;
        store.close().await;
        self.report(&tallies, seen, took)
    }

    async fn enqueue(&self, store: &Store) -> anyhow::Result<BTreeMap<String, Tally>> {
        // Real pages: this project's own documentation, section by section.
        let sections: Vec<&str> = [
            include_str!("../../README.md"),
            include_str!("../../ARCHITECTURE.md"),
            include_str!("../../CONTRIBUTING.md"),
        ]
        .iter()
        .flat_map(|page| page.split("\n## "))
        .collect();
        let mut jobs = Vec::new();
        let mut add = |job_type: &str, payload: serde_json::Value, max_attempts: u32| {
            jobs.push(serde_json::json!({ "job_type": job_type, "payload": payload, "max_attempts": max_attempts }));
        };
        add("spin", serde_json::json!({}), 1);
        for n in 0..self.pages {
            add(
                "markdown",
                serde_json::json!({ "markdown": format!("# Page {n}\n\n## {}", sections[n as usize % sections.len()]) }),
                5,
            );
        }
        for n in 0..60 {
            add("flaky", serde_json::json!({ "fail_times": n % 3 }), 5);
        }
        // One that fails more often than it may, one whose payload its handler refuses.
        add("flaky", serde_json::json!({ "fail_times": 99 }), 3);
        add(
            "markdown",
            serde_json::json!({ "text": "no `markdown` here" }),
            5,
        );
        for _ in 0..40 {
            add("noop", serde_json::json!({}), 5);
        }
        add("spin", serde_json::json!({}), 1);
        let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
        for job in &jobs {
            tallies
                .entry(job["job_type"].as_str().unwrap_or_default().to_owned())
                .or_default()
                .enqueued += 1;
        }
        store.enqueue_many(&serde_json::to_string(&jobs)?).await?;
        Ok(tallies)
    }

    fn report(
        &self,
        tallies: &BTreeMap<String, Tally>,
        seen: Seen,
        took: Duration,
    ) -> anyhow::Result<Ending> {
        let jobs: u32 = tallies.values().map(|tally| tally.enqueued).sum();
        let jobs_per_second = f64::from(jobs) / took.as_secs_f64();
        let spin = tallies.get("spin").cloned().unwrap_or_default();
        let on_time = spin.longest_ms <= (SPIN_LIMIT + SPIN_LATE).as_millis()
            && spin.why.get("timeout") == Some(&spin.enqueued);
        let others_ran = tallies
            .iter()
            .all(|(_, tally)| tally.done + tally.failed == tally.enqueued)
            && tallies.values().map(|tally| tally.failed).sum::<u32>() == spin.enqueued + 2;
        let free = seen.samples > 0 && seen.held_transactions == 0 && seen.row_locks == 0;
        let good = on_time && others_ran && free;
        if self.json {
            print::json(&serde_json::json!({
                "job_types": tallies, "seconds": took.as_secs_f64(), "jobs_per_second": jobs_per_second, "seen": seen, "good": good,
            }))?;
            return Ok(if good { Ending::Done } else { Ending::Failed });
        }
        let mut rows = vec![
            [
                "JOB TYPE",
                "ENQUEUED",
                "DONE",
                "RETRIED",
                "FAILED",
                "WHY",
                "LONGEST ATTEMPT",
            ]
            .map(str::to_owned)
            .to_vec(),
        ];
        rows.extend(tallies.iter().map(|(job_type, tally)| {
            let why: Vec<_> = tally
                .why
                .iter()
                .map(|(class, count)| format!("{class} {count}"))
                .collect();
            vec![
                job_type.clone(),
                tally.enqueued.to_string(),
                tally.done.to_string(),
                tally.retried.to_string(),
                tally.failed.to_string(),
                why.join(", "),
                format!("{} ms", tally.longest_ms),
            ]
        }));
        print::line("")?;
        print::table(&rows)?;
        let verdict = |fine| if fine { "ok" } else { "NOT AS IT SHOULD BE" };
        print::line(&format!(
            "\n{jobs} jobs in {:.2} s: {jobs_per_second:.0} jobs/s (the two that never return took {} ms each, their limit is {} ms)  {}\n\
             every other job ran: {}\n\
             seen in the database in {} samples while handlers ran: row locks held {}, open transactions {}  {}\n\
             (the longest transaction seen took {:.1} ms; one that lasts {} ms counts as held)",
            took.as_secs_f64(),
            spin.longest_ms,
            SPIN_LIMIT.as_millis(),
            verdict(on_time),
            verdict(others_ran),
            seen.samples,
            seen.row_locks,
            seen.held_transactions,
            verdict(free),
            seen.oldest_transaction_ms,
            HELD.as_millis(),
        ))?;
        Ok(if good { Ending::Done } else { Ending::Failed })
    }

    fn say(&self, text: &str) -> anyhow::Result<()> {
        if self.json { Ok(()) } else { print::line(text) }
    }
}

impl Tally {
    fn count(&mut self, failure: Option<FailureClass>, again: bool, run: Duration) {
        self.longest_ms = self.longest_ms.max(run.as_millis());
        match failure {
            None => self.done += 1,
            Some(_) if again => self.retried += 1,
            Some(class) => {
                self.failed += 1;
                *self.why.entry(class.as_str()).or_default() += 1;
            }
        }
    }
}

impl Seen {
    fn add(&mut self, held: LocksHeld) {
        self.samples += 1;
        self.held_transactions += held.old_transactions;
        self.row_locks += held.row_locks;
        self.oldest_transaction_ms = self.oldest_transaction_ms.max(held.oldest_seconds * 1000.0);
    }
}
