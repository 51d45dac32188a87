//! `piecework bench claim`: the claim beside millions of jobs that it must not see.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::Args;

use super::drain::{Keys, fill};
use super::{print, round3};
use crate::job::{JobType, Priority, Timestamp};
use crate::store::{Demand, Pick, Store};

#[derive(Debug, Args)]
pub(super) struct Claim {
    /// Finished jobs beside
    #[arg(long, default_value_t = 3_000_000)]
    finished: u32,
    /// Future jobs beside
    #[arg(long, default_value_t = 1_000_000)]
    future: u32,
    /// Jobs beside that wait for an earlier one of their ordering key
    #[arg(long, default_value_t = 1_000_000)]
    blocked: u32,
    /// Due jobs beside of a type that no runner serves
    #[arg(long, default_value_t = 1_000_000)]
    unknown: u32,
    /// Claims to time in each of the two states
    #[arg(long, default_value_t = 400)]
    claims: u32,
    /// Jobs a claim
    #[arg(long, default_value_t = 25)]
    batch: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Claim {
    pub(super) async fn measure(&self, store: &Store) -> anyhow::Result<()> {
        let runner = store
            .register("bench", self.batch, &[], Duration::from_secs(3600), &[])
            .await?;
        let empty = self.time(store, runner).await?;
        store
            .bench_fill(
                i64::from(self.finished),
                i64::from(self.future),
                i64::from(self.blocked),
                i64::from(self.unknown),
                "bench",
            )
            .await?;
        let beside = self.time(store, runner).await?;
        let demand = demand(runner, self.batch);
        let mut plans = BTreeMap::new();
        for (name, generic) in [("custom", false), ("generic", true)] {
            plans.insert(name, store.bench_claim_plan(&demand, generic).await?);
        }
        let bad: Vec<_> = plans
            .values()
            .flat_map(|plan| scans_and_sorts(plan))
            .collect();
        let ratio = beside / empty;
        if self.json {
            print::json(&serde_json::json!({
                "claims": self.claims, "batch": self.batch, "finished": self.finished, "future": self.future,
                "blocked": self.blocked, "unknown": self.unknown,
                "mean_ms_empty": round3(empty), "mean_ms_beside": round3(beside), "ratio": round3(ratio), "plans": plans, "sorts_and_seq_scans": bad,
            }))?;
        } else {
            for line in &plans["generic"] {
                print::line(&format!("    {line}"))?;
            }
            print::line(&format!(
                "sorts and sequential scans in the plans (custom and generic)  {}\n\
                 mean of {} claims of {} jobs, nothing beside                   {empty:.3} ms\n\
                 the same beside {} finished, {} future and {} blocked jobs and {} of an unknown type  {beside:.3} ms\n\
                 ratio                                                         {ratio:.2}",
                bad.len(),
                self.claims,
                self.batch,
                self.finished,
                self.future,
                self.blocked,
                self.unknown
            ))?;
        }
        Ok(())
    }

    /// Mean time of a claim in milliseconds, on jobs that are enqueued and vacuumed for it.
    async fn time(&self, store: &Store, runner: crate::job::RunnerId) -> anyhow::Result<f64> {
        // Two claims of each job type and priority beforehand.
        fill(
            store,
            "bench",
            (self.claims + 10) * self.batch,
            Keys::default(),
        )
        .await?;
        store.bench_vacuum().await?;
        let demand = demand(runner, self.batch);
        for _ in 0..10 {
            store.claim(&demand).await?;
        }
        let mut total = Duration::ZERO;
        for _ in 0..self.claims {
            let begun = Instant::now();
            let claimed = store.claim(&demand).await?;
            total += begun.elapsed();
            anyhow::ensure!(
                claimed.len() == self.batch as usize,
                "a claim of {} jobs returned {}",
                self.batch,
                claimed.len()
            );
        }
        Ok(total.as_secs_f64() * 1000.0 / f64::from(self.claims))
    }
}

/// The nodes of a plan that read the whole table or sort it. The rows that were picked already, a batch at most, are numbered
/// in their order: that sort is not one of them.
fn scans_and_sorts(plan: &[String]) -> Vec<String> {
    let node = |line: &str| {
        line.trim_start()
            .trim_start_matches("->")
            .trim_start()
            .to_owned()
    };
    // Tables of a handful of rows, read once a round.
    let is_small = |node: &str| {
        ["paused", "key_todo", "retention"]
            .iter()
            .any(|table| node.starts_with(&format!("Seq Scan on {table}")))
    };
    let of_the_picked = |at: usize| {
        plan[at + 1..]
            .iter()
            .map(|line| node(line))
            .find(|line| !line.starts_with("Sort Key"))
            .is_some_and(|child| child.starts_with("CTE Scan on picked"))
    };
    plan.iter()
        .enumerate()
        .filter(|(at, line)| {
            (node(line).starts_with("Seq Scan") && !is_small(&node(line)))
                || (node(line).starts_with("Sort")
                    && !node(line).starts_with("Sort Key")
                    && !of_the_picked(*at))
        })
        .map(|(_, line)| node(line))
        .collect()
}

fn demand(runner: crate::job::RunnerId, batch: u32) -> Demand {
    let job_type = JobType::from("bench");
    Demand {
        runner,
        picks: Priority::ALL
            .map(|priority| Pick {
                job_type: job_type.clone(),
                priority,
                want: batch,
                mark: (Timestamp::MIN, 0),
            })
            .to_vec(),
        total: batch,
        deadlines: BTreeMap::from([(job_type, Duration::from_secs(3600))]),
        ..Demand::default()
    }
}
