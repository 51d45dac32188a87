//! Low-water marks: the place of the last job claimed of each type and priority, so that the next claim starts behind the
//! dead index entries of all jobs claimed before. While any transaction elsewhere pins the horizon those entries stay: with
//! marks the claim keeps its 36,000 jobs/s, without them it falls to 1,200.
//!
//! What commits late may lie behind a mark (a long transaction, a job enqueued as due in the past). A claim without marks
//! finds it; when to make one is decided here.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::job::{Claimed, JobType, Priority, Timestamp};

/// What looking behind the marks may add to the time of all rounds: one part in so many. At 100,000 dead entries a look
/// costs 20 ms; one round in 20 would then take as long as the other 19.
const BUDGET: u32 = 20;
/// One round in so many goes with marks even where they save nothing, to know what they would save.
const SAMPLE: u32 = 20;
/// How much the newest round with marks weighs in what these are thought to take, one in so many.
const WEIGHT: u32 = 4;

#[derive(Debug, Default)]
pub(super) struct Marks {
    places: HashMap<(JobType, Priority), (Timestamp, i64)>,
    /// What the last round without marks took, and what rounds with them take.
    without: Option<Duration>,
    with: Option<Duration>,
    /// When one last went without, and how many have since.
    looked_at: Option<Instant>,
    looks: u32,
}

impl Marks {
    /// Whether the next claim should go without marks. `idle`: there is nothing else to do, or a wake-up found nothing.
    pub(super) fn look_at_all(&self, idle: bool) -> bool {
        self.look_at_all_at(idle, Instant::now())
    }

    fn look_at_all_at(&self, idle: bool, now: Instant) -> bool {
        let (Some(without), Some(looked_at)) = (self.without, self.looked_at) else {
            return true;
        };
        if idle {
            return true;
        }
        let Some(with) = self.with else {
            return false;
        };
        let pause = without.saturating_sub(with) * BUDGET;
        self.looks < SAMPLE && now.saturating_duration_since(looked_at) >= pause
    }

    /// Where a pick starts.
    pub(super) fn place(&self, job_type: &JobType, priority: Priority) -> (Timestamp, i64) {
        self.places
            .get(&(job_type.clone(), priority))
            .copied()
            .unwrap_or((Timestamp::MIN, 0))
    }

    /// Learns from a round that claimed.
    pub(super) fn learn(&mut self, claimed: &[Claimed], took: Duration, at_all: bool) {
        self.learn_at(claimed, took, at_all, Instant::now());
    }

    fn learn_at(&mut self, claimed: &[Claimed], took: Duration, at_all: bool, now: Instant) {
        if at_all {
            // The newest alone: after vacuum has been there a look costs nothing, and is believed at once.
            self.without = Some(took);
        } else {
            let mean = |with| (with * (WEIGHT - 1) + took) / WEIGHT;
            self.with = Some(self.with.map_or(took, mean));
        }
        if at_all {
            self.looked_at = Some(now);
            self.looks += 1;
        } else {
            self.looks = 0;
        }
        // Groups have no marks: theirs is another index.
        for job in claimed.iter().filter(|job| job.group_key.is_none()) {
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

    /// Rounds one after another, when the two kinds take so many milliseconds; returns how many went without marks and the
    /// share of the time that this cost.
    fn rounds(marks: &mut Marks, now: &mut Instant, without: u64, with: u64) -> (u32, f64) {
        let (mut looks, mut spent) = (0, Duration::ZERO);
        let begun = *now;
        for _ in 0..1000 {
            let at_all = marks.look_at_all_at(false, *now);
            let took = Duration::from_millis(if at_all { without } else { with });
            *now += took;
            marks.learn_at(&[], took, at_all, *now);
            if at_all {
                looks += 1;
                spent += Duration::from_millis(without - with);
            }
        }
        (looks, spent.as_secs_f64() / (*now - begun).as_secs_f64())
    }

    #[test]
    fn looks_behind_the_marks_stay_within_their_budget() {
        let (mut marks, mut now) = (Marks::default(), Instant::now());
        assert!(marks.look_at_all(false), "nothing is known yet");
        let (looks, _) = rounds(&mut marks, &mut now, 3, 3);
        assert!(looks > 900, "marks save nothing: {looks} of 1000");
        for without in [6, 30, 300] {
            let (looks, share) = rounds(&mut marks, &mut now, without, 3);
            assert!(
                looks > 0 && share < 0.1,
                "{without} ms: {looks} looks, {share} of the time"
            );
        }
        assert!(
            marks.look_at_all_at(true, now),
            "there is nothing else to do"
        );
        // As soon as vacuum has been there, marks save nothing again.
        now += Duration::from_secs(10);
        let (looks, _) = rounds(&mut marks, &mut now, 3, 3);
        assert!(looks > 900, "{looks} of 1000");
    }
}
