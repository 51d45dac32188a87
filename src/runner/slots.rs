//! Free slots, in all and by job type, and the picks that a claim makes of them. A runner claims only what it can start
//! now: there is no local queue.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::marks::Marks;
use crate::job::{JobType, Priority, RunnerId, Timestamp};
use crate::plugins::Plugin;
use crate::store::{Demand, Pick};

/// How much longer than its own limit a job may run before the reaper takes it for lost although its runner lives: the
/// limit itself ends it within milliseconds, so only a fault of the host gets this far.
const DEADLINE_MARGIN: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Slots {
    total: u32,
    running: u32,
    by_type: HashMap<JobType, u32>,
    /// Which job type is asked first changes from claim to claim, so that none starves where slots are scarce.
    turn: usize,
}

impl Slots {
    pub(super) fn new(total: u32) -> Self {
        Self {
            total,
            running: 0,
            by_type: HashMap::new(),
            turn: 0,
        }
    }

    pub(super) fn take(&mut self, job_type: &JobType) {
        self.running += 1;
        *self.by_type.entry(job_type.clone()).or_default() += 1;
    }

    pub(super) fn give(&mut self, job_type: &JobType) {
        self.running = self.running.saturating_sub(1);
        if let Some(count) = self.by_type.get_mut(job_type) {
            *count = count.saturating_sub(1);
        }
    }

    pub(super) fn running(&self) -> u32 {
        self.running
    }

    /// What can be started now: `None` when there is no slot, or no plugin. Also tells whether every job type was asked.
    pub(super) fn demand(
        &mut self,
        runner: RunnerId,
        serving: &HashMap<JobType, Arc<Plugin>>,
        marks: &Marks,
        at_all: bool,
    ) -> (Option<Demand>, bool) {
        let total = self.total.saturating_sub(self.running);
        let mut wants: Vec<(&JobType, u32)> = Vec::new();
        let mut deadlines = BTreeMap::new();
        for (job_type, plugin) in serving {
            let busy = self.by_type.get(job_type).copied().unwrap_or(0);
            let own = plugin
                .rules
                .concurrency
                .map_or(total, |limit| limit.saturating_sub(busy));
            let want = own.min(total);
            if want > 0 {
                wants.push((job_type, want));
                deadlines.insert(
                    job_type.clone(),
                    plugin.rules.limits.timeout + DEADLINE_MARGIN,
                );
            }
        }
        let all_asked = wants.len() == serving.len();
        if wants.is_empty() {
            return (None, all_asked);
        }
        wants.sort_unstable();
        self.turn = (self.turn + 1) % wants.len();
        wants.rotate_left(self.turn);
        let picks = Priority::ALL
            .iter()
            .flat_map(|priority| {
                wants.iter().map(|(job_type, want)| Pick {
                    job_type: (*job_type).clone(),
                    priority: *priority,
                    want: *want,
                    mark: if at_all {
                        (Timestamp::MIN, 0)
                    } else {
                        marks.place(job_type, *priority)
                    },
                })
            })
            .collect();
        (
            Some(Demand {
                runner,
                picks,
                total,
                deadlines,
            }),
            all_asked,
        )
    }
}
