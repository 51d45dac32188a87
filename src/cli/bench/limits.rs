//! `piecework bench limits`: what ordering keys, limits and groups cost a drain. Plain drains and the others take turns in one
//! run, each in a database of its own, so that a machine that is busy for a while slows both.

use clap::Args;

use super::drain::{Keys, drain, fill};
use super::{Common, print, round, round3};
use crate::config::{self, Config, Span};
use crate::store::{Scratch, Store};

#[derive(Debug, Args)]
pub(super) struct Limits {
    /// How many jobs each time
    #[arg(long, default_value_t = 20_000)]
    jobs: u32,
    /// How often each
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    #[command(flatten)]
    pub(super) common: Common,
}

/// One thing that is measured against the plain drain.
struct Case {
    name: &'static str,
    keys: Keys,
    set: fn(&mut config::PluginDefaults),
}

const NONE: Keys = Keys {
    ordering: 0,
    group: 0,
};
const THOUSAND_GROUPS: Keys = Keys {
    ordering: 0,
    group: 1000,
};

/// No limit here binds: it is about what asking costs.
const CASES: [Case; 7] = [
    Case {
        name: "fleet_concurrency",
        keys: NONE,
        set: |all| all.fleet_concurrency = 100_000,
    },
    Case {
        name: "starts",
        keys: NONE,
        set: |all| {
            all.starts = 1_000_000_000;
            all.starts_per = Span::secs(60);
        },
    },
    Case {
        name: "fleet_concurrency and starts",
        keys: NONE,
        set: |all| {
            all.fleet_concurrency = 100_000;
            all.starts = 1_000_000_000;
            all.starts_per = Span::secs(60);
        },
    },
    Case {
        name: "1,000 groups",
        keys: THOUSAND_GROUPS,
        set: |_| {},
    },
    Case {
        name: "1,000 groups, group_concurrency",
        keys: THOUSAND_GROUPS,
        set: |all| all.group_concurrency = 100_000,
    },
    Case {
        name: "1,000 groups, group_starts",
        keys: THOUSAND_GROUPS,
        set: |all| {
            all.group_starts = 1_000_000_000;
            all.starts_per = Span::secs(60);
        },
    },
    Case {
        name: "1,000 ordering keys",
        keys: Keys {
            ordering: 1000,
            group: 0,
        },
        set: |_| {},
    },
];

impl Limits {
    pub(super) async fn measure(&self, config: &Config, url: &str) -> anyhow::Result<()> {
        let mut plain = Vec::new();
        let mut rates = vec![Vec::new(); CASES.len()];
        for _ in 0..self.rounds {
            for (case, rates) in CASES.iter().zip(&mut rates) {
                plain.push(self.once(config, url, NONE, |_| {}).await?);
                rates.push(self.once(config, url, case.keys, case.set).await?);
            }
        }
        let usual = median(&mut plain);
        let lines: Vec<_> = CASES
            .iter()
            .zip(rates)
            .map(|(case, mut rates)| {
                let rate = median(&mut rates);
                (case.name, rate, rate / usual)
            })
            .collect();
        if self.common.json {
            let cases: Vec<_> = lines
                .iter()
                .map(|(name, rate, ratio)| {
                    serde_json::json!({ "name": name, "jobs_per_second": round(*rate), "ratio": round3(*ratio) })
                })
                .collect();
            return print::json(&serde_json::json!({
                "jobs": self.jobs, "rounds": self.rounds, "plain_jobs_per_second": round(usual), "cases": cases,
            }));
        }
        print::line(&format!(
            "medians of {} drains of {} jobs each ({} of the plain one), jobs/s and ratio\n\
             {:<34}{usual:>8.0}",
            self.rounds,
            self.jobs,
            plain.len(),
            "plain"
        ))?;
        for (name, rate, ratio) in lines {
            print::line(&format!("{name:<34}{rate:>8.0}  {ratio:.2}"))?;
        }
        Ok(())
    }

    async fn once(
        &self,
        config: &Config,
        url: &str,
        keys: Keys,
        set: fn(&mut config::PluginDefaults),
    ) -> anyhow::Result<f64> {
        let mut config = config.clone();
        set(&mut config.defaults);
        let scratch = Scratch::create(url).await?;
        let store = Store::open(&config::Database {
            url: scratch.url().to_owned(),
            ..config.database.clone()
        })?;
        let measured = async {
            store.migrate().await?;
            fill(&store, &self.common.job_type, self.jobs, keys).await?;
            store.bench_vacuum().await?;
            drain(config, &store, &self.common.job_type, self.jobs).await
        }
        .await;
        store.close().await;
        scratch.drop().await?;
        measured
    }
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(f64::NAN)
}
