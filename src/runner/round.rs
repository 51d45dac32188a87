//! One round trip to the database: writes what ended, and claims what can be started.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Shared;
use super::demand::{DEADLINE_MARGIN, Idle};
use super::outbox::Batch;
use crate::config::Config;
use crate::job::{ClaimToken, Claimed, JobId, JobType, Priority};
use crate::plugins::Served;
use crate::store::{Cycle, Demand, Ended, Error, Note};

/// What one round is to do.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) batch: Batch,
    pub(super) ask: Option<Ask>,
    /// The attempts whose job turned out to be cancelled.
    pub(super) cancelled: HashSet<(JobId, ClaimToken)>,
}

/// What a round claims.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) demand: Demand,
    /// The settings that it was made by.
    pub(super) config: Arc<Config>,
    /// In which order it serves the priorities.
    pub(super) order: [Priority; 4],
    /// It looks behind the marks.
    pub(super) at_all: bool,
    /// See [`super::appetite::Appetite::reasons`].
    pub(super) reasons: u64,
}

/// A round that came back.
pub(super) type Answer = (Round, Result<Cycle, Error>);

/// Goes to the database and back.
pub(super) async fn run(shared: Arc<Shared>, mut round: Round) -> Answer {
    let demand = round.ask.as_ref().map(|ask| &ask.demand);
    let mut answer = shared.store.round(&round.batch.finishes, demand).await;
    if let Ok(cycle) = &mut answer
        && !cycle.stale.is_empty()
    {
        explain(&shared, &mut round, cycle).await;
    }
    (round, answer)
}

/// Why attempts are stale: their job was cancelled, or an earlier round had written them and they only look so; else others
/// have taken it over.
async fn explain(shared: &Shared, round: &mut Round, cycle: &mut Cycle) {
    let ends = match shared.store.ends(&cycle.stale).await {
        Ok(ends) => ends,
        Err(error) => {
            tracing::warn!(%error, "cannot tell why results were stale");
            return;
        }
    };
    let ended = |attempt: &(JobId, ClaimToken)| ends.get(attempt).copied();
    round.cancelled = cycle
        .stale
        .iter()
        .copied()
        .filter(|attempt| ended(attempt) == Some(Ended::Cancelled))
        .collect();
    let repeated = round.batch.repeated;
    cycle
        .stale
        .retain(|attempt| !(repeated && ended(attempt) == Some(Ended::Written)));
}

impl Ask {
    /// How many of these came by quotas.
    fn by_quota(&self, claimed: &[Claimed]) -> usize {
        let asked = |job: &&Claimed| {
            let quotas = &self.demand.quotas;
            quotas.iter().any(|quota| quota.job_type == job.job_type)
        };
        claimed.iter().filter(asked).count()
    }

    /// Whether a job type that was asked for by picks turns out to have groups.
    fn reveals(&self, notes: &[(JobType, Note)]) -> bool {
        let picked = |job_type: &JobType| {
            let picks = &self.demand.picks;
            picks.iter().any(|pick| &pick.job_type == job_type)
        };
        notes
            .iter()
            .any(|(job_type, note)| note.groups && picked(job_type))
    }

    /// Whether there may be more of what it asked for. A job type that it did not ask for, being full, is asked for when one
    /// Whether no half of it was left without a slot.
    pub(super) fn is_whole(&self) -> bool {
        let demand = &self.demand;
        (demand.picks.is_empty() || demand.total > 0)
            && (demand.quotas.is_empty() || demand.quota_total > 0)
    }

    /// Which half found nothing; `None` when it had one alone.
    pub(super) fn idle(&self, claimed: &[Claimed]) -> Option<Idle> {
        if self.demand.quotas.is_empty() || self.demand.picks.is_empty() {
            return None;
        }
        let by_quota = self.by_quota(claimed);
        Some(Idle {
            picks: by_quota == claimed.len(),
            quotas: by_quota == 0,
        })
    }

    /// Whether a job was claimed until sooner than what serves its type now may need.
    pub(super) fn is_short_for(&self, job: &Claimed, served: &Served) -> bool {
        let limit = served.version_for(job.id).rules.limits.timeout;
        let claimed = self.demand.deadlines.get(&job.job_type);
        claimed.is_none_or(|until| *until < limit + DEADLINE_MARGIN)
    }

    /// of its jobs ends.
    pub(super) fn leaves_more(&self, claimed: &[Claimed], notes: &[(JobType, Note)]) -> bool {
        if notes.iter().any(|(_, note)| note.more) || self.reveals(notes) {
            return true;
        }
        let quotas = self.by_quota(claimed);
        if !self.demand.picks.is_empty() && claimed.len() - quotas >= self.demand.total as usize {
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
