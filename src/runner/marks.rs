//! Low-water marks: the place of the last job claimed of each type and priority, so that the next claim starts behind the
//! dead index entries of all jobs claimed before. While any transaction elsewhere pins the horizon those entries stay: with
//! marks the claim keeps its 36,000 jobs/s, without them it falls to 1,200.
//!
//! What commits late may lie behind a mark (a long transaction, a job enqueued as due in the past). A claim without marks
//! finds it; when to make one is decided here.

use std::collections::HashMap;
use std::time::Duration;

use crate::job::{Claimed, JobType, Priority, Timestamp};

/// A claim without marks that cost less than this is worth making every time.
const CHEAP: Duration = Duration::from_millis(2);
/// What one job, claimed or written in the same round, adds to its cost.
const PER_JOB: Duration = Duration::from_micros(60);
/// When they are dear, one claim in this many goes without marks.
const SHARE: u32 = 20;

#[derive(Debug, Default)]
pub(super) struct Marks {
    places: HashMap<(JobType, Priority), (Timestamp, i64)>,
    /// What the last claim without marks cost, the jobs of its round aside.
    cost: Duration,
    since: u32,
}

impl Marks {
    /// Whether the next claim should go without marks. `idle`: there is nothing else to do, or a wake-up found nothing.
    pub(super) fn look_at_all(&self, idle: bool) -> bool {
        idle || self.cost < CHEAP || self.since + 1 >= SHARE
    }

    /// Where a pick starts.
    pub(super) fn place(&self, job_type: &JobType, priority: Priority) -> (Timestamp, i64) {
        self.places
            .get(&(job_type.clone(), priority))
            .copied()
            .unwrap_or((Timestamp::MIN, 0))
    }

    /// Learns from a claim.
    pub(super) fn learn(
        &mut self,
        claimed: &[Claimed],
        written: usize,
        took: Duration,
        at_all: bool,
    ) {
        if at_all {
            let jobs = u32::try_from(claimed.len() + written).unwrap_or(u32::MAX);
            self.cost = took.saturating_sub(PER_JOB.saturating_mul(jobs));
            self.since = 0;
        } else {
            self.since += 1;
        }
        for job in claimed {
            let place = self
                .places
                .entry((job.job_type.clone(), job.priority))
                .or_insert((Timestamp::MIN, 0));
            *place = (*place).max((job.due_at, job.id.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dear_claims_without_marks_keep_their_share() {
        let mut marks = Marks::default();
        assert!(marks.look_at_all(false));
        marks.learn(&[], 0, Duration::from_millis(30), true);
        let mut full = 0;
        for _ in 0..200 {
            let at_all = marks.look_at_all(false);
            full += u32::from(at_all);
            marks.learn(&[], 0, Duration::from_millis(30), at_all);
        }
        assert_eq!(full, 10);
        assert!(marks.look_at_all(true), "nothing else to do");
        marks.learn(&[], 0, Duration::from_millis(1), true);
        assert!(marks.look_at_all(false), "cheap again");
    }
}
