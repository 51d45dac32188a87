//! What the next claim asks for: picks of the claim index for most job types, quotas for those with limits over all runners or
//! with groups.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::marks::Marks;
use super::quotas::Quotas;
use super::slots::Slots;
use crate::job::{JobType, Priority, RunnerId, Timestamp};
use crate::plugins::Served;
use crate::store::{Demand, Pick, Quota};

/// How much longer than its own limit a job may run before the reaper takes it for lost although its runner lives: the
/// limit itself ends it within milliseconds, so only a fault of the host gets this far.
pub(super) const DEADLINE_MARGIN: Duration = Duration::from_secs(60);

/// What a claim is made from.
#[derive(Debug)]
pub(super) struct View<'a> {
    /// What serves now.
    pub(super) serving: &'a HashMap<JobType, Served>,
    pub(super) marks: &'a Marks,
    pub(super) quotas: &'a Quotas,
    /// In which order the priorities are served.
    pub(super) order: [Priority; 4],
    /// Without marks.
    pub(super) at_all: bool,
    /// Claims with quotas that found nothing lately; picks then get more of the slots.
    pub(super) idle: Idle,
}

/// Which half of the last claim that had both found nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Idle {
    pub(super) picks: bool,
    pub(super) quotas: bool,
}

impl View<'_> {
    /// What can be started by a round that writes `writes` rows; `None` when there is no slot, or no plugin.
    pub(super) fn demand(
        &self,
        slots: &mut Slots,
        runner: RunnerId,
        writes: usize,
    ) -> Option<Demand> {
        let total = slots.free(writes);
        let wants = slots.wants(self.serving, total);
        let deadlines: BTreeMap<_, _> = wants
            .iter()
            .map(|(job_type, plugin, _)| {
                let limit = plugin.rules.limits.timeout + DEADLINE_MARGIN;
                ((*job_type).clone(), limit)
            })
            .collect();
        let (special, plain): (Vec<_>, Vec<_>) = wants
            .into_iter()
            .partition(|(job_type, plugin, _)| self.quotas.applies(job_type, &plugin.rules.fleet));
        let special: Vec<_> = special
            .into_iter()
            .filter(|(job_type, ..)| self.quotas.may_ask(job_type))
            .collect();
        if plain.is_empty() && special.is_empty() {
            return None;
        }
        let quota_total = self.split(total, plain.len(), special.len(), slots.turn());
        let picks = self
            .order
            .iter()
            .flat_map(|priority| {
                plain.iter().map(|(job_type, _, want)| Pick {
                    job_type: (*job_type).clone(),
                    priority: *priority,
                    want: *want,
                    mark: self.mark(job_type, *priority),
                })
            })
            .collect();
        let quotas = special
            .iter()
            .map(|(job_type, plugin, want)| Quota {
                job_type: (*job_type).clone(),
                want: *want,
                priorities: self.order.to_vec(),
                marks: Priority::ALL
                    .map(|priority| (priority, self.mark(job_type, priority)))
                    .to_vec(),
                limits: plugin.rules.fleet,
                known: self.quotas.known(job_type),
            })
            .collect();
        let probe = if self.at_all {
            plain
                .iter()
                .map(|(job_type, ..)| (*job_type).clone())
                .collect()
        } else {
            Vec::new()
        };
        Some(Demand {
            runner,
            picks,
            total: total - quota_total,
            quotas,
            quota_total,
            probe,
            deadlines,
        })
    }

    fn mark(&self, job_type: &JobType, priority: Priority) -> (Timestamp, i64) {
        if self.at_all {
            (Timestamp::MIN, 0)
        } else {
            self.marks.place(job_type, priority)
        }
    }

    /// How many of the free slots the job types with quotas may take: a share by their number, or nearly all while the others have
    /// nothing. What one half leaves, the next claim gives to whom has more.
    fn split(&self, total: u32, plain: usize, special: usize, turn: usize) -> u32 {
        if special == 0 {
            return 0;
        }
        if plain == 0 {
            return total;
        }
        let (plain, special) = match self.idle {
            Idle {
                picks: true,
                quotas: false,
            } => (1, 7),
            Idle {
                picks: false,
                quotas: true,
            } => (7, 1),
            Idle { .. } => (plain, special),
        };
        let all = plain + special;
        // Rounded up or down in turn, so that a single slot goes to either.
        let share = (total as usize * special + turn % all) / all;
        u32::try_from(share).unwrap_or(total).min(total)
    }
}
