//! When to look for jobs: at once while there are more, otherwise on a notice, when the next job is due, or when a poll is
//! due. The database is told that this runner waits shortly before it sleeps, so that enqueue notifies it, and told the
//! opposite once it has been busy for a while.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::Shared;
use crate::job::RunnerId;

/// First poll after going to sleep: it finds what was being enqueued while the runner said that it waits.
const FIRST_POLL: Duration = Duration::from_millis(100);
/// A runner that found jobs for this long, never further apart than [`GAP`], needs no notices and looks by itself. Below
/// that rate telling the database costs more than the notices do.
const BUSY: Duration = Duration::from_millis(50);
const GAP: Duration = Duration::from_millis(10);
/// How much later than a job is due to look for it: the database must find it due.
const DUE: Duration = Duration::from_millis(1);
/// How soon a busy runner looks again.
const BUSY_POLL: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) struct Appetite {
    /// There may be something to claim.
    hungry: bool,
    /// The last claim got all that it asked for: there is a backlog.
    backlog: bool,
    /// The next claim looks behind the marks too: the clock woke it, or a wake-up found nothing.
    at_all: bool,
    /// The next claim answers a notice or the clock.
    woken: bool,
    /// How often there was a reason to look; a claim that was sent before the last one proves nothing about it.
    reasons: u64,
    /// The identity under which the database knows that this runner waits.
    waiting: Option<RunnerId>,
    /// Jobs have been found since then without a gap.
    busy_since: Option<Instant>,
    found_at: Option<Instant>,
    poll: Duration,
    next_look: Option<Instant>,
}

/// What a claim has shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    /// How many jobs it got.
    pub(super) found: usize,
    /// There may be more of what it asked for.
    pub(super) more: bool,
    /// It looked behind the marks.
    pub(super) at_all: bool,
    /// [`Appetite::reasons`] when it was sent.
    pub(super) reasons: u64,
    /// Other claims are under way.
    pub(super) others: bool,
}

impl Default for Appetite {
    fn default() -> Self {
        Self {
            hungry: true,
            backlog: false,
            at_all: false,
            woken: false,
            reasons: 0,
            waiting: None,
            busy_since: None,
            found_at: None,
            poll: FIRST_POLL,
            next_look: None,
        }
    }
}

impl Appetite {
    pub(super) fn is_hungry(&self) -> bool {
        self.hungry
    }

    pub(super) fn has_backlog(&self) -> bool {
        self.backlog
    }

    pub(super) fn wants_all(&self) -> bool {
        self.at_all
    }

    pub(super) fn reasons(&self) -> u64 {
        self.reasons
    }

    pub(super) fn next_look(&self) -> Option<Instant> {
        self.next_look
    }

    /// There may be more of what has been known for long.
    pub(super) fn may_have_more(&mut self) {
        self.hungry = true;
        self.reasons += 1;
    }

    /// There may be something new.
    pub(super) fn look(&mut self) {
        self.may_have_more();
        self.woken = true;
    }

    /// The time of the planned look has come.
    pub(super) fn look_by_the_clock(&mut self) {
        self.look();
        self.next_look = None;
        // A busy runner looks every few milliseconds: only at what a mark cannot hide.
        self.at_all |= self.busy_since.is_none();
    }

    /// A job was put back for this much later.
    pub(super) fn expect(&mut self, delay: Duration) {
        if delay.is_zero() {
            self.look();
        }
        // Where no look is planned, planning one asks the database, which knows of this job by now.
        if let Some(look) = &mut self.next_look {
            *look = (*look).min(Instant::now() + delay + DUE);
        }
    }

    /// Learns from a claim.
    pub(super) fn learn(&mut self, shown: Shown) {
        self.backlog = shown.more && shown.found > 0;
        if shown.found > 0 {
            self.poll = FIRST_POLL;
            let now = Instant::now();
            let last = self.found_at.replace(now);
            if last.is_none_or(|last| now - last > GAP) {
                self.busy_since = None;
            }
            self.busy_since.get_or_insert(now);
        } else {
            self.busy_since = None;
        }
        // A wake-up that found nothing: what woke it may lie behind a mark.
        let behind_marks = !shown.at_all && shown.found == 0 && self.woken;
        self.woken = false;
        self.at_all = behind_marks;
        let newer_reason = shown.reasons != self.reasons;
        if !shown.more && !behind_marks && !shown.others && !newer_reason {
            self.hungry = false;
        }
    }

    /// Tells the database that this runner looks by itself, once it has been busy for a while.
    pub(super) async fn stay_awake(&mut self, shared: &Shared, runner: RunnerId) {
        let busy = self.busy_since.is_some_and(|since| since.elapsed() > BUSY);
        if self.waiting == Some(runner) && busy {
            match shared.store.awake(runner).await {
                Ok(()) => self.waiting = None,
                Err(error) => tracing::debug!(%error, "notices go on"),
            }
        }
    }

    /// Plans the next look before a sleep. True: look once more first.
    pub(super) async fn plan(&mut self, shared: &Shared, runner: RunnerId) -> bool {
        if self.waiting == Some(runner) && self.next_look.is_some() {
            // Still good: whatever was enqueued since has sent a notice.
            return false;
        }
        if self.waiting != Some(runner) && self.busy_since.is_some() {
            self.next_look = Some(Instant::now() + BUSY_POLL);
            return false;
        }
        let next_due = match shared
            .store
            .rest(runner, &shared.registry.job_types())
            .await
        {
            Ok(next_due) => next_due,
            Err(error) => {
                tracing::warn!(%error, "cannot ask when the next job is due");
                None
            }
        };
        let config = shared.config();
        let settings = &config.runner;
        let hears = shared.hears.load(Ordering::Relaxed);
        let longest = if hears {
            settings.poll.0
        } else {
            settings.poll_without_listen.0
        };
        // Jittered, so that a fleet that fell asleep together does not wake together.
        let poll = self.poll.min(longest).mul_f64(0.8 + 0.4 * fastrand::f64());
        self.poll = (self.poll * 2).min(longest);
        let due = next_due.map(|due| due.saturating_add(DUE));
        self.next_look = Some(Instant::now() + due.map_or(poll, |due| due.min(poll)));
        // What was enqueued before the flag was set has notified nobody.
        let newly = self.waiting.replace(runner) != Some(runner);
        if newly {
            self.look();
            self.at_all = true;
        }
        newly
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(found: usize, more: bool, reasons: u64) -> Shown {
        Shown {
            found,
            more,
            at_all: true,
            reasons,
            others: false,
        }
    }

    #[test]
    fn a_claim_that_was_sent_before_the_last_reason_does_not_end_the_hunger() {
        let mut appetite = Appetite::default();
        let sent = appetite.reasons();
        appetite.look();
        appetite.learn(shown(0, false, sent));
        assert!(appetite.is_hungry());
        appetite.learn(shown(0, false, appetite.reasons()));
        assert!(!appetite.is_hungry());
    }

    #[test]
    fn a_wake_up_that_found_nothing_looks_behind_the_marks_once() {
        let mut appetite = Appetite::default();
        appetite.look();
        let marked = Shown {
            at_all: false,
            ..shown(0, false, appetite.reasons())
        };
        appetite.learn(marked);
        assert!(appetite.is_hungry() && appetite.wants_all());
        appetite.learn(shown(0, false, appetite.reasons()));
        assert!(!appetite.is_hungry() && !appetite.wants_all());
    }

    #[test]
    fn the_last_of_several_claims_decides() {
        let mut appetite = Appetite::default();
        appetite.learn(Shown {
            others: true,
            ..shown(3, false, 0)
        });
        assert!(appetite.is_hungry());
        appetite.learn(shown(8, true, 0));
        assert!(appetite.is_hungry() && appetite.has_backlog());
        appetite.learn(shown(2, false, 0));
        assert!(!appetite.is_hungry() && !appetite.has_backlog());
    }
}
