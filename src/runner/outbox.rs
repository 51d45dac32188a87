//! What ended and is still to be written: the order, how much goes at once, and what must wait for somebody else's lock.

use std::time::Duration;

use tokio::time::Instant;

use crate::job::{FailureClass, JobType};
use crate::store::{Finish, Verdict};

/// Outcomes written in one round.
const AT_ONCE: usize = 1000;
/// Follow-ups enqueued in one round: 10,000 took a quarter of a second, 400,000 longer than a call may take.
const FOLLOW_UPS: usize = 10_000;
/// Texts sent in one round, in bytes: results, outputs, payloads of follow-ups.
const BYTES: usize = 16 * 1024 * 1024;
/// How long a row is left alone that another transaction has locked.
const AFTER_A_LOCK: Duration = Duration::from_secs(1);

/// Job type and attempt of a finish.
pub(super) type Label = (JobType, u32);

/// The attempts that ended, oldest first.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: Vec<(Finish, Label)>,
    /// How many of them, from the front, were in a round that failed and may have been written all the same.
    uncertain: usize,
    /// Their rows were locked by others. They go out alone, so that they hold nobody up.
    held: Vec<(Finish, Label)>,
    held_until: Option<Instant>,
    /// Failed rounds halve what goes at once, good ones double it: what is too much for one call is tried in parts.
    halvings: u32,
}

/// What goes out in one round.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) finishes: Vec<Finish>,
    pub(super) labels: Vec<Label>,
    /// Some of it may have been written by an earlier round whose answer was lost.
    pub(super) repeated: bool,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.held.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.held.len()
    }

    pub(super) fn push(&mut self, finish: Finish, label: Label) {
        self.waiting.push((finish, label));
    }

    /// How many go out next.
    pub(super) fn ready(&self) -> usize {
        let most = (AT_ONCE >> self.halvings.min(20)).max(1);
        let (mut follow_ups, mut bytes) = (0, 0);
        self.waiting
            .iter()
            .take(most)
            .enumerate()
            .take_while(|(place, (finish, _))| {
                follow_ups += finish.follow_ups.len();
                bytes += weight(finish);
                *place == 0 || (follow_ups <= FOLLOW_UPS && bytes <= BYTES)
            })
            .count()
    }

    /// Takes the next `count`.
    pub(super) fn take(&mut self, count: usize) -> Batch {
        let repeated = self.uncertain > 0;
        self.uncertain = self.uncertain.saturating_sub(count);
        let (finishes, labels) = self.waiting.drain(..count).unzip();
        Batch {
            finishes,
            labels,
            repeated,
        }
    }

    /// Takes what was held, when its time has come.
    pub(super) fn take_held(&mut self) -> Option<Batch> {
        self.held_until.filter(|until| *until <= Instant::now())?;
        self.held_until = None;
        let (finishes, labels) = std::mem::take(&mut self.held).into_iter().unzip();
        Some(Batch {
            finishes,
            labels,
            repeated: false,
        })
    }

    /// When something that is held goes out again.
    pub(super) fn held_until(&self) -> Option<Instant> {
        self.held_until
    }

    /// A round failed: what it carried goes out again, before everything else.
    pub(super) fn put_back(&mut self, batch: Batch) {
        self.halvings = (self.halvings + 1).min(20);
        self.uncertain += batch.finishes.len();
        let again = batch.finishes.into_iter().zip(batch.labels);
        self.waiting.splice(..0, again);
    }

    /// A round came back.
    pub(super) fn written(&mut self) {
        self.halvings = self.halvings.saturating_sub(1);
    }

    /// Its row is locked by others: it waits.
    pub(super) fn hold(&mut self, finish: Finish, label: Label) {
        self.held.push((finish, label));
        self.held_until = Some(Instant::now() + AFTER_A_LOCK);
    }
}

fn weight(finish: &Finish) -> usize {
    let result = match &finish.verdict {
        Verdict::Done(result) => result.as_ref().map_or(0, String::len),
        Verdict::Failed | Verdict::Again { .. } => 0,
    };
    let output = finish.output.as_ref().map_or(0, String::len);
    let follow_ups: usize = finish
        .follow_ups
        .iter()
        .map(|job| job.payload.get().len() + job.job_type.len())
        .sum();
    // Its payload moves into the history: 1 s for 15 MiB that does not compress, on a busy disk.
    let payload = match &finish.failure {
        Some((FailureClass::PayloadTooLarge, _)) => BYTES / 4,
        _ => 0,
    };
    result + output + follow_ups + payload
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{ClaimToken, FollowUp, JobId, Usage};

    fn finish(id: i64, follow_ups: usize, output: usize) -> (Finish, Label) {
        let follow_up = FollowUp {
            job_type: "next".into(),
            payload: serde_json::value::RawValue::from_string("{}".into()).unwrap(),
            delay: None,
            due_at: None,
            priority: None,
            max_attempts: None,
            unique_key: None,
            unique_for: None,
            ordering_key: None,
            group_key: None,
            parent: None,
            root: None,
        };
        let finish = Finish {
            id: JobId(id),
            claim: ClaimToken(id),
            ordering_key: None,
            batch: None,
            verdict: Verdict::Done(None),
            failure: None,
            follow_ups: vec![follow_up; follow_ups],
            usage: Usage::default(),
            output: Some("x".repeat(output)),
            progress: None,
            plugin: [0; 32],
        };
        (finish, (JobType::from("a"), 1))
    }

    #[test]
    fn a_round_carries_no_more_than_one_call_can_write() {
        let mut outbox = Outbox::default();
        for n in 0..10 {
            let (finish, label) = finish(n, 4000, 0);
            outbox.push(finish, label);
        }
        assert_eq!(outbox.ready(), 2);
        let batch = outbox.take(2);
        assert_eq!((batch.finishes.len(), batch.repeated), (2, false));
        // The first always goes, whatever it weighs.
        let mut outbox = Outbox::default();
        for n in 0..3 {
            let (finish, label) = finish(n, 0, 20 << 20);
            outbox.push(finish, label);
        }
        assert_eq!(outbox.ready(), 1);
    }

    #[test]
    fn what_failed_goes_out_again_in_parts_and_in_order() {
        let mut outbox = Outbox::default();
        for n in 0..2000 {
            let (finish, label) = finish(n, 0, 0);
            outbox.push(finish, label);
        }
        assert_eq!(outbox.ready(), 1000);
        let batch = outbox.take(1000);
        outbox.put_back(batch);
        assert_eq!(outbox.ready(), 500);
        let batch = outbox.take(500);
        assert!(batch.repeated);
        assert_eq!(batch.finishes[0].id, JobId(0));
        outbox.written();
        assert_eq!(outbox.ready(), 1000);
        for _ in 0..40 {
            let batch = outbox.take(1);
            outbox.put_back(batch);
        }
        assert_eq!(outbox.ready(), 1);
    }

    #[test]
    fn what_is_held_does_not_go_out_with_the_others() {
        let mut outbox = Outbox::default();
        let (held, label) = finish(1, 0, 0);
        outbox.hold(held, label);
        assert!(outbox.take_held().is_none() && outbox.ready() == 0 && !outbox.is_empty());
    }
}
