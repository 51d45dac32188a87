//! The claim: what a runner asks for.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Error, Quota, Store};
use crate::job::{Claimed, JobType, Priority, RunnerId, Timestamp};

/// One index-ordered look at the jobs of one type and priority.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// The job type.
    pub job_type: JobType,
    /// The priority.
    pub priority: Priority,
    /// Free slots of the job type; the same at each of its priorities.
    pub want: u32,
    /// Jobs at or before this place were claimed before.
    pub mark: (Timestamp, i64),
}

/// What a runner can start now.
#[derive(Clone, Debug, Default)]
pub struct Demand {
    /// Who claims.
    pub runner: RunnerId,
    /// In the order in which they are to be served.
    pub picks: Vec<Pick>,
    /// Most jobs in all of these.
    pub total: u32,
    /// What is wanted of job types that need more than a pick, in the order in which they are to be served.
    pub quotas: Vec<Quota>,
    /// Most jobs in all of those.
    pub quota_total: u32,
    /// Job types among the picks of which it is not known whether they have jobs with a group key.
    pub probe: Vec<JobType>,
    /// How long after the claim a job counts as lost even though its runner lives.
    pub deadlines: BTreeMap<JobType, Duration>,
}

impl Demand {
    /// Asks for fewer jobs: so many times the half, and at least one where any were asked for.
    pub fn halve(&mut self, times: u32) {
        for total in [&mut self.total, &mut self.quota_total] {
            *total = (*total >> times).max((*total).min(1));
        }
    }
}

impl Store {
    /// Claims due jobs, in the order in which they are to be started. Committed when it returns.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn claim(&self, demand: &Demand) -> Result<Vec<Claimed>, Error> {
        Ok(self.round(&[], Some(demand)).await?.claimed)
    }
}
