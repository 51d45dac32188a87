//! One round trip to the database: writes what ended, and claims what can be started.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Shared;
use crate::job::{ClaimToken, Claimed, JobId, JobType};
use crate::store::{Cycle, Demand, Error, Finish};

/// What one round is to do. The two lists go together, a place each.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) finishes: Vec<Finish>,
    /// Job type and attempt of each finish.
    pub(super) labels: Vec<(JobType, u32)>,
    pub(super) ask: Option<Ask>,
    /// Some of it may have been written by an earlier round whose answer was lost.
    pub(super) repeated: bool,
}

/// What a round claims.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) demand: Demand,
    /// It looks behind the marks.
    pub(super) at_all: bool,
    /// See [`super::appetite::Appetite::reasons`].
    pub(super) reasons: u64,
}

/// A round that came back.
pub(super) type Answer = (Round, Result<Cycle, Error>);

/// Goes to the database and back.
pub(super) async fn run(shared: Arc<Shared>, round: Round) -> Answer {
    let demand = round.ask.as_ref().map(|ask| &ask.demand);
    let mut answer = shared.store.round(&round.finishes, demand).await;
    if let Ok(cycle) = &mut answer
        && round.repeated
        && !cycle.stale.is_empty()
    {
        forgive(&shared, cycle).await;
    }
    (round, answer)
}

/// What an earlier round had written only looks stale.
async fn forgive(shared: &Shared, cycle: &mut Cycle) {
    match shared.store.written_before(&cycle.stale).await {
        Ok(written) => cycle.stale.retain(|attempt| !written.contains(attempt)),
        Err(error) => tracing::warn!(%error, "cannot tell what the lost answer had said"),
    }
}

impl Ask {
    /// Whether there may be more of what it asked for. A job type that it did not ask for, being full, is asked for when one
    /// of its jobs ends.
    pub(super) fn leaves_more(&self, claimed: &[Claimed]) -> bool {
        if claimed.len() >= self.demand.total as usize {
            return true;
        }
        let mut counts: HashMap<&JobType, u32> = HashMap::new();
        for job in claimed {
            *counts.entry(&job.job_type).or_default() += 1;
        }
        self.demand.picks.iter().any(|pick| {
            counts
                .get(&pick.job_type)
                .is_some_and(|count| *count >= pick.want)
        })
    }
}

/// The stale attempts of a round, to be looked up.
pub(super) fn stale(cycle: &Cycle) -> HashSet<(JobId, ClaimToken)> {
    cycle.stale.iter().copied().collect()
}
