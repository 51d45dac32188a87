//! The claim: what a runner asks for.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Error, Store};
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
#[derive(Clone, Debug)]
pub struct Demand {
    /// Who claims.
    pub runner: RunnerId,
    /// In the order in which they are to be served.
    pub picks: Vec<Pick>,
    /// Most jobs in all.
    pub total: u32,
    /// How long after the claim a job counts as lost even though its runner lives.
    pub deadlines: BTreeMap<JobType, Duration>,
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
