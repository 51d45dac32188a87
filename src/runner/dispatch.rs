//! The dispatcher: one task that turns free slots into claims, claims into attempts, and ended attempts into writes. One
//! round trip does both halves: results gather while the last one is under way, so a single job waits for nothing and a
//! busy runner writes hundreds at once.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::attempt::{self, Ended};
use super::marks::Marks;
use super::slots::Slots;
use super::{LAST_WRITES, Running, Shared};
use crate::engine::{Progress, Stop, StopReason};
use crate::job::{ClaimToken, Claimed, JobId, JobType, RunnerId};
use crate::store::{Cycle, Demand, Error, Finish, Verdict};
use crate::telemetry::{Event, Events};

/// Outcomes written in one round.
const WRITE_AT_ONCE: usize = 1000;
/// First poll after going to sleep: it finds what was being enqueued while the runner said that it waits.
const FIRST_POLL: Duration = Duration::from_millis(100);
/// A runner that found jobs for this long, never further apart than [`GAP`], needs no notices and looks by itself. Below
/// that rate telling the database costs more than the notices do.
const BUSY: Duration = Duration::from_millis(50);
const GAP: Duration = Duration::from_millis(10);
/// How soon a busy runner looks again.
const BUSY_POLL: Duration = Duration::from_millis(5);

/// Runs until drained, and then until nothing is left to write.
pub(super) async fn run(shared: Arc<Shared>, guests: Handle) {
    let slots = Slots::new(shared.config.runner.slots);
    let mut dispatch = Dispatch {
        shared,
        guests,
        attempts: JoinSet::new(),
        tasks: HashMap::new(),
        finishes: Vec::new(),
        labels: Vec::new(),
        slots,
        marks: Marks::default(),
        hungry: true,
        idle: false,
        woken: false,
        waiting: None,
        busy_since: None,
        found_at: None,
        poll: FIRST_POLL,
        next_look: None,
        retry: Duration::ZERO,
        drained_at: None,
    };
    while dispatch.step().await {}
}

struct Dispatch {
    shared: Arc<Shared>,
    guests: Handle,
    attempts: JoinSet<Ended>,
    /// What each task runs, in case it panics.
    tasks: HashMap<tokio::task::Id, Claimed>,
    /// Ended and not yet written, oldest first; with the job type and attempt of each.
    finishes: Vec<Finish>,
    labels: Vec<(JobType, u32)>,
    slots: Slots,
    marks: Marks,
    /// There may be more to claim.
    hungry: bool,
    /// The next claim looks at everything: it was woken by the clock, or a wake-up found nothing.
    idle: bool,
    /// The next claim answers a notice or the clock.
    woken: bool,
    /// The identity under which the database knows that this runner waits.
    waiting: Option<RunnerId>,
    /// Jobs have been found since then without a gap.
    busy_since: Option<Instant>,
    found_at: Option<Instant>,
    poll: Duration,
    next_look: Option<Instant>,
    /// Pause after a failed call.
    retry: Duration,
    drained_at: Option<Instant>,
}

impl Dispatch {
    /// One round; false when everything is over.
    async fn step(&mut self) -> bool {
        self.gather();
        if self.shared.drain.is_cancelled() && self.drained_at.is_none() {
            self.begin_drain().await;
        }
        let identity = *self.shared.identity.borrow();
        let (demand, all_asked, at_all) = self.demand(identity);
        if self.finishes.is_empty() && demand.is_none() {
            if self.drained_at.is_some() && self.attempts.is_empty() {
                return false;
            }
            self.wait(identity).await;
            return true;
        }
        let writes = self.finishes.len().min(WRITE_AT_ONCE);
        match self.cycle(writes, demand.as_ref()).await {
            Some(Ok(cycle)) => {
                let stale = self.really_stale(&cycle).await;
                self.retry = Duration::ZERO;
                self.settle(writes, &stale);
                if let Some(demand) = demand {
                    self.start(&demand, cycle, all_asked, at_all).await;
                }
                true
            }
            Some(Err(error)) => self.failed(&error, demand.is_some()).await,
            None => {
                tracing::error!(
                    unwritten = self.finishes.len(),
                    "the last results could not be written in time; their jobs are taken back when the lease ends"
                );
                false
            }
        }
    }

    /// Takes what ended since the last round.
    fn gather(&mut self) {
        while let Some(ended) = self.attempts.try_join_next_with_id() {
            self.take(ended);
        }
    }

    fn take(&mut self, ended: Result<(tokio::task::Id, Ended), tokio::task::JoinError>) {
        let (id, ended) = match ended {
            Ok((id, ended)) => (id, Some(ended)),
            Err(error) => {
                tracing::error!(%error, "an attempt's task failed");
                (error.id(), None)
            }
        };
        let Some(job) = self.tasks.remove(&id) else {
            return;
        };
        self.slots.give(&job.job_type);
        let ended = ended.unwrap_or_else(|| Ended {
            job_type: job.job_type.clone(),
            attempt: job.attempt,
            finish: Some(attempt::panicked(&job)),
        });
        match ended.finish {
            Some(finish) => self.remember(finish, ended.job_type, ended.attempt),
            None => self.forget(job.id, job.claim),
        }
    }

    fn remember(&mut self, finish: Finish, job_type: JobType, attempt: u32) {
        self.finishes.push(finish);
        self.labels.push((job_type, attempt));
    }

    /// What to ask for in the next round.
    fn demand(&mut self, identity: Option<RunnerId>) -> (Option<Demand>, bool, bool) {
        let Some(runner) = identity.filter(|_| self.hungry && self.drained_at.is_none()) else {
            return (None, true, false);
        };
        let at_all = self.marks.look_at_all(self.idle);
        let serving = self.shared.registry.serving();
        let (demand, all_asked) = self.slots.demand(runner, &serving, &self.marks, at_all);
        (demand, all_asked, at_all)
    }

    /// Writes and claims. `None`: the time after a drain is over.
    async fn cycle(&self, writes: usize, demand: Option<&Demand>) -> Option<Result<Cycle, Error>> {
        let work = self.shared.store.cycle(&self.finishes[..writes], demand);
        match self.give_up_at() {
            Some(end) => timeout_at(end, work).await.ok(),
            None => Some(work.await),
        }
    }

    /// After a round that was repeated, what had been written the first time only looks stale.
    async fn really_stale(&self, cycle: &Cycle) -> HashSet<(JobId, ClaimToken)> {
        let mut stale: HashSet<_> = cycle.stale.iter().copied().collect();
        if !stale.is_empty() && !self.retry.is_zero() {
            match self.shared.store.written_before(&cycle.stale).await {
                Ok(written) => stale.retain(|attempt| !written.contains(attempt)),
                Err(error) => tracing::warn!(%error, "cannot tell what the lost answer had said"),
            }
        }
        stale
    }

    /// What was written, or found stale, is over.
    fn settle(&mut self, writes: usize, stale: &HashSet<(JobId, ClaimToken)>) {
        let events = &self.shared.events;
        let written: Vec<_> = self
            .finishes
            .drain(..writes)
            .zip(self.labels.drain(..writes))
            .collect();
        let (mut done, mut failed, mut again) = (0, 0, 0);
        for (finish, (job_type, attempt)) in written {
            self.forget(finish.id, finish.claim);
            if stale.contains(&(finish.id, finish.claim)) {
                tracing::warn!(job = %finish.id, attempt, "result dropped, the job was taken over");
                Events::count(&events.stale, 1);
                events.tell(|| Event::Stale { id: finish.id });
                continue;
            }
            let failure = finish.failure.as_ref().map(|(class, _)| *class);
            match finish.verdict {
                Verdict::Done(_) => done += 1,
                Verdict::Failed => failed += 1,
                Verdict::Again { delay, .. } => {
                    again += 1;
                    // Another look may be due before the one that is planned.
                    self.hungry |= delay < FIRST_POLL;
                    let due = Instant::now() + delay;
                    self.next_look = self.next_look.map(|look| look.min(due));
                }
            }
            if !finish.follow_ups.is_empty() {
                self.hungry = true;
            }
            if let Some((class, text)) = &finish.failure {
                tracing::info!(job = %finish.id, %job_type, attempt, failure = class.as_str(), again = matches!(finish.verdict, Verdict::Again { .. }), error = text, "attempt failed");
            } else {
                tracing::debug!(job = %finish.id, %job_type, attempt, "job done");
            }
            let run = finish.usage.run;
            let is_again = matches!(finish.verdict, Verdict::Again { .. });
            events.tell(|| Event::Finished {
                id: finish.id,
                job_type,
                attempt,
                failure,
                again: is_again,
                run,
            });
        }
        Events::count(&events.done, done);
        Events::count(&events.failed, failed);
        Events::count(&events.again, again);
    }

    /// Starts what was claimed, and decides whether there may be more.
    async fn start(&mut self, demand: &Demand, cycle: Cycle, all_asked: bool, at_all: bool) {
        self.marks.learn(&cycle.claimed, cycle.claim_took, at_all);
        let claimed = cycle.claimed.len();
        // Fewer than asked for, of every job type: nothing is left, but for what a mark may hide.
        let more = claimed >= demand.total as usize
            || !all_asked
            || self.some_type_is_full(demand, &cycle.claimed);
        let found_nothing = claimed == 0;
        let look_behind_marks = !at_all && found_nothing && self.woken;
        self.woken = false;
        self.hungry = more || look_behind_marks;
        self.idle = look_behind_marks;
        Events::count(&self.shared.events.claimed, claimed);
        if !found_nothing {
            self.poll = FIRST_POLL;
        }
        if *self.shared.identity.borrow() != Some(demand.runner) {
            // The lease was lost while the claim was under way: these jobs are others' to run.
            return;
        }
        let serving = self.shared.registry.serving();
        for job in cycle.claimed {
            match serving.get(&job.job_type) {
                Some(plugin) => self.spawn(demand.runner, plugin.clone(), job),
                // Deleted in this very moment: given back as if never claimed.
                None => self.remember(give_back(&job), job.job_type, job.attempt),
            }
        }
        // Looked at again, now that the attempts are in the list that a lost lease goes through.
        if *self.shared.identity.borrow() != Some(demand.runner) {
            self.shared
                .stop_running(StopReason::LeaseLost, Some(demand.runner));
        }
        self.stay_awake(demand.runner, found_nothing).await;
    }

    fn some_type_is_full(&self, demand: &Demand, claimed: &[Claimed]) -> bool {
        let mut counts: HashMap<&JobType, u32> = HashMap::new();
        for job in claimed {
            *counts.entry(&job.job_type).or_default() += 1;
        }
        demand.picks.iter().any(|pick| {
            counts
                .get(&pick.job_type)
                .is_some_and(|count| *count >= pick.want)
        })
    }

    fn spawn(&mut self, runner: RunnerId, plugin: Arc<crate::plugins::Plugin>, job: Claimed) {
        let stop = Arc::new(Stop::default());
        let progress = Arc::new(Progress::default());
        if self.drained_at.is_some() {
            stop.ask();
        }
        self.shared.running().insert(
            (job.id, job.claim),
            Running {
                runner,
                stop: stop.clone(),
                progress: progress.clone(),
            },
        );
        self.slots.take(&job.job_type);
        let attempt = attempt::run(self.shared.clone(), plugin, job.clone(), stop, progress);
        let task = self.attempts.spawn_on(attempt, &self.guests);
        self.tasks.insert(task.id(), job);
    }

    /// Takes the flag back with which enqueue notifies this runner, once it has been busy for a while.
    async fn stay_awake(&mut self, runner: RunnerId, found_nothing: bool) {
        if found_nothing {
            self.busy_since = None;
            return;
        }
        let now = Instant::now();
        let last = self.found_at.replace(now);
        if last.is_none_or(|last| now - last > GAP) {
            self.busy_since = None;
        }
        let since = *self.busy_since.get_or_insert(now);
        if self.waiting == Some(runner) && now - since > BUSY {
            match self.shared.store.awake(runner).await {
                Ok(()) => self.waiting = None,
                Err(error) => tracing::debug!(%error, "notices go on"),
            }
        }
    }

    /// Sleeps until something happens.
    async fn wait(&mut self, identity: Option<RunnerId>) {
        if let Some(runner) = identity
            && self.drained_at.is_none()
            && !self.hungry
            && self.plan_next_look(runner).await
        {
            return;
        }
        let shared = self.shared.clone();
        let look = self.next_look.filter(|_| self.drained_at.is_none());
        let stop = self.stop_handlers_at();
        tokio::select! {
            biased;
            Some(ended) = self.attempts.join_next_with_id() => self.take(ended),
            () = shared.wake.notified() => self.look(false),
            () = sleep_until(look.unwrap_or_else(Instant::now)), if look.is_some() => self.look(true),
            () = shared.halt.cancelled(), if self.drained_at.is_some() && stop.is_some() => self.hand_back(),
            () = sleep_until(stop.unwrap_or_else(Instant::now)), if stop.is_some() => self.hand_back(),
            // A lease that was lost or won back.
            () = changed(&shared, identity) => self.look(false),
        }
    }

    fn look(&mut self, by_the_clock: bool) {
        self.hungry = true;
        self.woken = true;
        if by_the_clock {
            // A busy runner looks every few milliseconds: only what a mark cannot hide.
            self.idle = self.busy_since.is_none();
            self.next_look = None;
        }
    }

    /// When to look again if nothing happens before. True: look once more first.
    async fn plan_next_look(&mut self, runner: RunnerId) -> bool {
        if self.waiting == Some(runner) && self.next_look.is_some() {
            // Still good: whatever was enqueued since has sent a notice.
            return false;
        }
        if self.waiting != Some(runner) && self.busy_since.is_some() {
            self.next_look = Some(Instant::now() + BUSY_POLL);
            return false;
        }
        self.rest(runner).await
    }

    /// Says that the runner waits and plans the next look. True: look once more first.
    async fn rest(&mut self, runner: RunnerId) -> bool {
        let job_types = self.shared.registry.job_types();
        let next_due = match self.shared.store.rest(runner, &job_types).await {
            Ok(next_due) => next_due,
            Err(error) => {
                tracing::warn!(%error, "cannot ask when the next job is due");
                None
            }
        };
        let settings = &self.shared.config.runner;
        let hears = self.shared.hears.load(Ordering::Relaxed);
        let longest = if hears {
            settings.poll.0
        } else {
            settings.poll_without_listen.0
        };
        // Jittered, so that a fleet that fell asleep together does not wake together.
        let poll = self.poll.min(longest).mul_f64(0.8 + 0.4 * fastrand::f64());
        self.poll = (self.poll * 2).min(longest);
        // A millisecond more: the database must find it due.
        let due = next_due.map(|due| due.saturating_add(Duration::from_millis(1)));
        self.next_look = Some(Instant::now() + due.map_or(poll, |due| due.min(poll)));
        // What was enqueued before the flag was set has notified nobody.
        let newly = self.waiting.replace(runner) != Some(runner);
        if newly {
            self.hungry = true;
            self.idle = true;
        }
        newly
    }

    async fn begin_drain(&mut self) {
        self.drained_at = Some(Instant::now());
        tracing::info!(running = self.slots.running(), grace = ?self.shared.config.runner.stop_grace.0, "stopping: no more jobs are taken");
        for running in self.shared.running().values() {
            running.stop.ask();
        }
        let runner = *self.shared.identity.borrow();
        if let Some(runner) = runner {
            // Only so that people see it; the lease goes on.
            let _ = tokio::time::timeout(
                Duration::from_millis(300),
                self.shared.store.sign_off(runner, false),
            )
            .await;
        }
    }

    /// When running handlers are stopped; `None` when they may run on, or were stopped already.
    fn stop_handlers_at(&self) -> Option<Instant> {
        let at = self.drained_at? + self.shared.config.runner.stop_grace.0;
        (!self.attempts.is_empty() && !self.all_stopped()).then_some(at)
    }

    fn all_stopped(&self) -> bool {
        self.shared
            .running()
            .values()
            .all(|running| running.stop.reason().is_some())
    }

    fn hand_back(&mut self) {
        tracing::info!(
            running = self.slots.running(),
            "handlers are stopped and their jobs handed back"
        );
        self.shared.stop_running(StopReason::HandBack, None);
    }

    /// When a drained runner stops trying to write.
    fn give_up_at(&self) -> Option<Instant> {
        let drained_at = self.drained_at?;
        let grace = if self.shared.halt.is_cancelled() {
            Duration::ZERO
        } else {
            self.shared.config.runner.stop_grace.0
        };
        // With halt the clock runs from now on, at most once around.
        Some((drained_at + grace).max(Instant::now()) + LAST_WRITES)
    }

    /// A call failed: nothing is lost, what ended waits for the next try.
    async fn failed(&mut self, error: &Error, claiming: bool) -> bool {
        if claiming {
            // The claim may have been committed although its answer was lost.
            *self
                .shared
                .doubtful
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        self.retry = (self.retry * 2).clamp(Duration::from_millis(100), Duration::from_secs(5));
        let pause = self.retry.mul_f64(0.75 + fastrand::f64() / 2.0);
        tracing::warn!(%error, unwritten = self.finishes.len(), retry_in = ?pause, "the database did not take the last round");
        let until = Instant::now() + pause;
        let last = self
            .drained_at
            .map(|at| at + self.shared.config.runner.stop_grace.0 + LAST_WRITES);
        let drain = self.shared.drain.clone();
        tokio::select! {
            () = sleep_until(last.map_or(until, |last| until.min(last))) => {}
            () = drain.cancelled(), if last.is_none() => {}
        }
        let over = last.is_some_and(|last| Instant::now() >= last)
            || (self.shared.halt.is_cancelled() && self.retry > Duration::from_millis(300));
        if over {
            tracing::error!(
                unwritten = self.finishes.len(),
                "the last results could not be written; their jobs are taken back when the lease ends"
            );
            self.shared.stop_running(StopReason::HandBack, None);
        }
        !over
    }

    fn forget(&self, id: JobId, claim: ClaimToken) {
        self.shared.running().remove(&(id, claim));
    }
}

/// Waits for another identity than `before`.
async fn changed(shared: &Shared, before: Option<RunnerId>) {
    let mut identity = shared.identity.subscribe();
    // The sender lives as long as `shared`.
    let _ = identity.wait_for(|now| *now != before).await;
}

fn give_back(job: &Claimed) -> Finish {
    Finish {
        id: job.id,
        claim: job.claim,
        verdict: Verdict::Again {
            delay: Duration::ZERO,
            refund: true,
        },
        failure: None,
        follow_ups: Vec::new(),
        usage: crate::job::Usage::default(),
        output: None,
        plugin: [0; 32],
    }
}
