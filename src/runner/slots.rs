//! Free slots, in all and by job type, and the picks that a claim makes of them. A runner claims only what it can start
//! now: there is no local queue, and never more running rows in the table than slots.

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
    /// Ended, and still running in the table.
    unwritten: u32,
    /// Asked for by claims that are under way.
    reserved: u32,
    by_type: HashMap<JobType, Count>,
    /// Which job type is asked first changes from claim to claim, so that none starves where slots are scarce.
    turn: usize,
}

#[derive(Debug, Default)]
struct Count {
    running: u32,
    reserved: u32,
}

impl Slots {
    pub(super) fn new(total: u32) -> Self {
        Self {
            total,
            running: 0,
            unwritten: 0,
            reserved: 0,
            by_type: HashMap::new(),
            turn: 0,
        }
    }

    pub(super) fn running(&self) -> u32 {
        self.running
    }

    /// An attempt begins.
    pub(super) fn take(&mut self, job_type: &JobType) {
        self.running += 1;
        self.by_type.entry(job_type.clone()).or_default().running += 1;
    }

    /// An attempt ended; its row is still to be written.
    pub(super) fn give(&mut self, job_type: &JobType) {
        self.running = self.running.saturating_sub(1);
        self.unwritten += 1;
        if let Some(count) = self.by_type.get_mut(job_type) {
            count.running = count.running.saturating_sub(1);
        }
    }

    /// Rows were written, or are not this runner's any more.
    pub(super) fn written(&mut self, rows: usize) {
        self.unwritten = self
            .unwritten
            .saturating_sub(u32::try_from(rows).unwrap_or(u32::MAX));
    }

    /// A claim is sent.
    pub(super) fn reserve(&mut self, demand: &Demand) {
        self.reserved += demand.total;
        for pick in demand
            .picks
            .iter()
            .filter(|pick| pick.priority == Priority::ALL[0])
        {
            self.by_type
                .entry(pick.job_type.clone())
                .or_default()
                .reserved += pick.want;
        }
    }

    /// A claim is back.
    pub(super) fn release(&mut self, demand: &Demand) {
        self.reserved = self.reserved.saturating_sub(demand.total);
        for pick in demand
            .picks
            .iter()
            .filter(|pick| pick.priority == Priority::ALL[0])
        {
            if let Some(count) = self.by_type.get_mut(&pick.job_type) {
                count.reserved = count.reserved.saturating_sub(pick.want);
            }
        }
    }

    /// What can be started by a round that writes `writes` rows; `None` when there is no slot, or no plugin.
    pub(super) fn demand(
        &mut self,
        runner: RunnerId,
        serving: &HashMap<JobType, Arc<Plugin>>,
        marks: &Marks,
        at_all: bool,
        writes: usize,
    ) -> Option<Demand> {
        let freed = u32::try_from(writes).unwrap_or(u32::MAX);
        let held = self.running + self.unwritten.saturating_sub(freed) + self.reserved;
        let total = self.total.saturating_sub(held);
        let mut wants: Vec<(&JobType, u32)> = Vec::new();
        let mut deadlines = BTreeMap::new();
        for (job_type, plugin) in serving {
            let busy = self
                .by_type
                .get(job_type)
                .map_or(0, |count| count.running + count.reserved);
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
        if wants.is_empty() {
            return None;
        }
        wants.sort_unstable();
        self.turn = (self.turn + 1) % wants.len();
        wants.rotate_left(self.turn);
        let pick = |priority: Priority, job_type: &JobType, want: u32| Pick {
            job_type: job_type.clone(),
            priority,
            want,
            mark: if at_all {
                (Timestamp::MIN, 0)
            } else {
                marks.place(job_type, priority)
            },
        };
        let picks = Priority::ALL
            .iter()
            .flat_map(|priority| {
                wants
                    .iter()
                    .map(|(job_type, want)| pick(*priority, job_type, *want))
            })
            .collect();
        Some(Demand {
            runner,
            picks,
            total,
            deadlines,
        })
    }
}
