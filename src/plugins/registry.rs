//! What serves now, for those who start attempts.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::Plugin;
use crate::job::{JobId, JobType};

/// What serves now.
#[derive(Debug, Default)]
pub struct Registry {
    serving: ArcSwap<HashMap<JobType, Served>>,
}

/// What serves one job type.
#[derive(Clone, Debug)]
pub struct Served {
    /// The version of most attempts, whose rules hold for the job type.
    pub plugin: Arc<Plugin>,
    /// A newer version that is tried on a share of the jobs.
    pub canary: Option<Canary>,
}

/// A version on trial.
#[derive(Clone, Debug)]
pub struct Canary {
    /// The version.
    pub plugin: Arc<Plugin>,
    /// The share of jobs that it is given, in hundredths of a percent.
    pub share: u16,
    /// The revision of its release; counts of its attempts carry it.
    pub revision: i64,
}

impl Registry {
    /// The plugin of a job type, without its canary.
    pub fn find(&self, job_type: &JobType) -> Option<Arc<Plugin>> {
        let serving = self.serving.load();
        serving.get(job_type).map(|served| served.plugin.clone())
    }

    /// Everything that serves, as one consistent map.
    pub fn serving(&self) -> Arc<HashMap<JobType, Served>> {
        self.serving.load_full()
    }

    /// The job types that are served, in order.
    pub fn job_types(&self) -> Vec<JobType> {
        let mut job_types: Vec<_> = self.serving.load().keys().cloned().collect();
        job_types.sort();
        job_types
    }

    pub(super) fn replace(&self, serving: HashMap<JobType, Served>) {
        self.serving.store(Arc::new(serving));
    }
}

impl From<Arc<Plugin>> for Served {
    fn from(plugin: Arc<Plugin>) -> Self {
        Self {
            plugin,
            canary: None,
        }
    }
}

impl Served {
    /// The version that runs this job. All attempts of a job on all runners get the same, as long as the canary and its share
    /// stay: which jobs try a canary depends on their ids and on the canary alone.
    pub fn version_for(&self, id: JobId) -> &Arc<Plugin> {
        match &self.canary {
            Some(canary) if canary.tries(id) => &canary.plugin,
            _ => &self.plugin,
        }
    }
}

impl Canary {
    fn tries(&self, id: JobId) -> bool {
        let digest = self.plugin.handler.digest();
        let salt = u64::from_le_bytes(std::array::from_fn(|n| digest[n]));
        u64::from(self.share) > mix(id.0.cast_unsigned() ^ salt) % 10_000
    }
}

/// Spreads ids that follow each other (the finaliser of splitmix64).
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
