//! Priorities that cannot starve: most claims serve priority 1 first, and each other one leads as often as it takes to give it its
//! share.

use crate::job::{Claimed, Priority};

/// Each of the priorities 2, 3 and 4 gets at least one of so many jobs that this runner starts, while it has due jobs.
const SHARE: f64 = 16.0;
/// What may be owed to a priority at most, in jobs: it had none due, or they were full.
const MOST_OWED: f64 = 16.0;
/// What a priority may be ahead at most, in jobs: what it got while nobody else wanted it does not count for ever.
const MOST_AHEAD: f64 = 128.0;

/// What is owed to each priority, in jobs.
#[derive(Debug, Default)]
pub(super) struct Shares {
    owed: [f64; 4],
}

impl Shares {
    /// In which order the next claim serves the priorities.
    pub(super) fn order(&self) -> [Priority; 4] {
        let mut order = Priority::ALL;
        let lead = (1..order.len())
            .filter(|place| self.owed[*place] >= 1.0)
            .max_by(|a, b| self.owed[*a].total_cmp(&self.owed[*b]));
        if let Some(place) = lead {
            order[..=place].rotate_right(1);
        }
        order
    }

    /// Learns from a claim that served the priorities in this order; `whole`: it had room for every job type that can run.
    pub(super) fn learn(&mut self, order: [Priority; 4], claimed: &[Claimed], whole: bool) {
        #[expect(clippy::cast_precision_loss, reason = "a few thousand at most")]
        let all = claimed.len() as f64;
        for (priority, owed) in Priority::ALL.iter().zip(&mut self.owed).skip(1) {
            let got = claimed.iter().filter(|job| job.priority == *priority);
            #[expect(clippy::cast_precision_loss, reason = "a few thousand at most")]
            let got = got.count() as f64;
            let led = order[0] == *priority;
            *owed = if led && got == 0.0 && whole {
                // It was asked first and has nothing due.
                0.0
            } else {
                (*owed + all / SHARE - got).clamp(-MOST_AHEAD, MOST_OWED)
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{ClaimToken, JobId, Timestamp};

    fn job(priority: Priority) -> Claimed {
        Claimed {
            id: JobId(1),
            claim: ClaimToken(1),
            job_type: "a".into(),
            priority,
            due_at: Timestamp::MIN,
            attempt: 1,
            max_attempts: 1,
            payload: String::new(),
            ordering_key: None,
            group_key: None,
            batch: None,
            enqueued_at: Timestamp::MIN,
            parent: None,
            root: JobId(1),
            checkpoint: None,
            oversized: false,
        }
    }

    /// How many jobs of each priority of 16,000 are started, when each of `waiting` always has due ones.
    fn started(waiting: &[i16], at_once: usize) -> [usize; 4] {
        let (mut shares, mut counts) = (Shares::default(), [0; 4]);
        while counts.iter().sum::<usize>() < 16_000 {
            let order = shares.order();
            let first = order.iter().find(|priority| waiting.contains(&priority.0));
            let claimed = vec![job(*first.unwrap()); at_once];
            counts[usize::try_from(first.unwrap().0).unwrap() - 1] += at_once;
            shares.learn(order, &claimed, true);
        }
        counts
    }

    #[test]
    fn each_priority_has_its_share_and_the_first_has_the_rest() {
        for at_once in [1, 3, 20, 128] {
            let counts = started(&[1, 2, 3, 4], at_once);
            for low in &counts[1..] {
                assert!((900..1200).contains(low), "{at_once} at once: {counts:?}");
            }
        }
    }

    /// A claim may have no room for the job type whose jobs wait.
    #[test]
    fn a_claim_that_did_not_ask_for_all_settles_no_debt() {
        let mut shares = Shares::default();
        shares.learn(shares.order(), &vec![job(Priority(1)); 20], true);
        let order = shares.order();
        assert_ne!(order[0], Priority(1));
        shares.learn(order, &[], false);
        assert_eq!(shares.order(), order, "it is owed as before");
        shares.learn(order, &[], true);
        assert_ne!(shares.order(), order, "it has nothing due");
    }

    #[test]
    fn what_nobody_waits_for_is_not_kept_free() {
        assert_eq!(started(&[1], 10), [16_000, 0, 0, 0]);
        let counts = started(&[1, 4], 10);
        assert!((900..1200).contains(&counts[3]), "{counts:?}");
        assert_eq!(started(&[2], 10), [0, 16_000, 0, 0]);
    }
}
