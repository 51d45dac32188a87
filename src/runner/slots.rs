//! Free slots, in all and by job type. A runner claims only what it can start
//! now: there is no local queue, and never more running rows in the table than slots.

use std::collections::{BTreeMap, HashMap};

use crate::job::JobType;
use crate::plugins::{Plugin, Served};
use crate::store::Demand;

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
        self.reserved += demand.total + demand.quota_total;
        for (job_type, want) in asked(demand) {
            self.by_type.entry(job_type.clone()).or_default().reserved += want;
        }
    }

    /// A claim is back.
    pub(super) fn release(&mut self, demand: &Demand) {
        self.reserved = self
            .reserved
            .saturating_sub(demand.total + demand.quota_total);
        for (job_type, want) in asked(demand) {
            if let Some(count) = self.by_type.get_mut(job_type) {
                count.reserved = count.reserved.saturating_sub(want);
            }
        }
    }

    /// How many jobs a round that writes `writes` rows may claim.
    pub(super) fn free(&self, writes: usize) -> u32 {
        let freed = u32::try_from(writes).unwrap_or(u32::MAX);
        let held = self.running + self.unwritten.saturating_sub(freed) + self.reserved;
        self.total.saturating_sub(held)
    }

    /// How many of each job type, where there is room for any; another type comes first each time.
    pub(super) fn wants<'a>(
        &mut self,
        serving: &'a HashMap<JobType, Served>,
        total: u32,
    ) -> Vec<(&'a JobType, &'a Plugin, u32)> {
        let mut wants = Vec::new();
        for (job_type, served) in serving {
            let plugin = &*served.plugin;
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
                wants.push((job_type, plugin, want));
            }
        }
        wants.sort_unstable_by_key(|(job_type, ..)| *job_type);
        self.turn = self.turn.wrapping_add(1);
        if !wants.is_empty() {
            let first = self.turn % wants.len();
            wants.rotate_left(first);
        }
        wants
    }

    /// Counts the claims.
    pub(super) fn turn(&self) -> usize {
        self.turn
    }
}

/// How many of each job type a claim asks for.
fn asked(demand: &Demand) -> BTreeMap<&JobType, u32> {
    let picks = demand.picks.iter().map(|pick| (&pick.job_type, pick.want));
    let quotas = demand
        .quotas
        .iter()
        .map(|quota| (&quota.job_type, quota.want));
    picks.chain(quotas).collect()
}
