//! The dispatcher: one task that turns free slots into claims, claims into attempts, and ended attempts into writes. One
//! round trip does both halves. Results gather while rounds are under way, so a single job waits for nothing and a busy
//! runner writes dozens at once; a second round goes out beside the first when enough has gathered.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::appetite::{Appetite, Shown};
use super::attempt::{self, Ended};
use super::demand::{Idle, View};
use super::marks::Marks;
use super::outbox::Outbox;
use super::quotas::Quotas;
use super::round::{self, Answer, Ask, Round};
use super::shares::Shares;
use super::slots::Slots;
use super::{Config, LAST_WRITES, Running, Shared};
use crate::engine::{Progress, Stop, StopReason, Ties};
use crate::job::{ClaimToken, Claimed, FailureClass, JobId, JobType, RunnerId};
use crate::plugins::Plugin;
use crate::store::{Cycle, Error, Finish, Verdict};
use crate::telemetry::{Event, Events};

/// What must have gathered for a second round: smaller ones cost a commit each and make nothing faster.
const WORTH_A_SECOND: usize = 16;

/// Runs until drained, and then until nothing is left to write. False: something could not be written in time.
pub(super) async fn run(shared: Arc<Shared>, guests: Handle) -> bool {
    // However this ends, also by a panic: nobody must take a runner for working that has no dispatcher.
    let _ended = shared.drain.clone().drop_guard();
    let slots = Slots::new(shared.config().runner.slots);
    let mut dispatch = Dispatch {
        config: shared.config(),
        shared,
        guests,
        attempts: JoinSet::new(),
        tasks: HashMap::new(),
        rounds: JoinSet::new(),
        asides: JoinSet::new(),
        claims: 0,
        halvings: 0,
        outbox: Outbox::default(),
        slots,
        marks: Marks::default(),
        quotas: Quotas::default(),
        shares: Shares::default(),
        idle: Idle::default(),
        appetite: Appetite::default(),
        retry: Duration::ZERO,
        retry_at: None,
        drained_at: None,
        stopped_at: None,
    };
    while dispatch.step().await {}
    let written = dispatch.outbox.is_empty() && dispatch.rounds.is_empty();
    if written {
        let asides = async { while dispatch.asides.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_WRITES, asides).await;
    }
    written
}

struct Dispatch {
    shared: Arc<Shared>,
    config: Arc<Config>,
    guests: Handle,
    attempts: JoinSet<Ended>,
    /// What each task runs, in case it panics.
    tasks: HashMap<tokio::task::Id, Claimed>,
    rounds: JoinSet<Answer>,
    /// Calls that nobody waits for, except at the very end.
    asides: JoinSet<Result<(), Error>>,
    /// Rounds under way that claim.
    claims: usize,
    /// Claims that fail ask for half as much the next time, good ones for twice: what is too much for one call is claimed in
    /// parts.
    halvings: u32,
    /// Ended and not yet on the way.
    outbox: Outbox,
    slots: Slots,
    marks: Marks,
    quotas: Quotas,
    shares: Shares,
    idle: Idle,
    appetite: Appetite,
    /// Pause after a failed round.
    retry: Duration,
    retry_at: Option<Instant>,
    /// When the runner was told to stop.
    drained_at: Option<Instant>,
    /// When running handlers were stopped for it.
    stopped_at: Option<Instant>,
}

impl Dispatch {
    /// Takes in what has happened and does the next thing; false when everything is over.
    async fn step(&mut self) -> bool {
        while let Some(ended) = self.attempts.try_join_next_with_id() {
            self.take(ended);
        }
        while let Some(answer) = self.rounds.try_join_next() {
            self.answered(answer).await;
        }
        if self.shared.drain.is_cancelled() && self.drained_at.is_none() {
            self.begin_drain();
        }
        if self.drained_at.is_some() {
            let idle = self.attempts.is_empty() && self.rounds.is_empty();
            if idle && self.outbox.is_empty() {
                return false;
            }
            if Instant::now() >= self.give_up_at() {
                tracing::error!(
                    unwritten = self.outbox.len(),
                    rounds = self.rounds.len(),
                    "the last results could not be written in time; their jobs are taken back when the lease ends"
                );
                return false;
            }
        }
        if !Arc::ptr_eq(&self.config, &self.shared.config()) {
            self.config = self.shared.config();
            self.quotas.relimit();
        }
        let identity = *self.shared.identity.borrow();
        if let Some(round) = self.next_round(identity) {
            self.claims += usize::from(round.ask.is_some());
            Events::count(&self.shared.events.rounds, 1);
            self.rounds.spawn(round::run(self.shared.clone(), round));
        } else {
            self.wait(identity).await;
        }
        true
    }

    /// The next round, if there is something to do and room for it.
    fn next_round(&mut self, identity: Option<RunnerId>) -> Option<Round> {
        if self.retry_at.is_some_and(|at| Instant::now() < at) {
            return None;
        }
        let first = self.rounds.is_empty();
        if let Some(batch) = (self.rounds.len() < 2)
            .then(|| self.outbox.take_held())
            .flatten()
        {
            return Some(Round {
                batch,
                ..Round::default()
            });
        }
        let writes = self.outbox.ready();
        if !first && (self.rounds.len() > 1 || writes < WORTH_A_SECOND) {
            return None;
        }
        // Two claims at once only while there is a backlog.
        let may_claim = self.claims == 0 || self.appetite.has_backlog();
        let ask = if may_claim {
            self.ask(identity, writes)
        } else {
            None
        };
        if writes == 0 && ask.is_none() {
            return None;
        }
        Some(Round {
            batch: self.outbox.take(writes),
            ask,
            ..Round::default()
        })
    }

    fn ask(&mut self, identity: Option<RunnerId>, writes: usize) -> Option<Ask> {
        let runner = identity.filter(|_| self.appetite.is_hungry() && self.drained_at.is_none())?;
        let at_all = self.marks.look_at_all(self.appetite.wants_all());
        let serving = self.shared.registry.serving();
        let view = View {
            serving: &serving,
            marks: &self.marks,
            quotas: &self.quotas,
            order: self.shares.order(),
            at_all,
            idle: self.idle,
        };
        let mut demand = view.demand(&mut self.slots, runner, writes)?;
        demand.halve(self.halvings);
        let order = view.order;
        self.slots.reserve(&demand);
        Some(Ask {
            demand,
            config: self.config.clone(),
            order,
            at_all,
            reasons: self.appetite.reasons(),
        })
    }

    /// An attempt ended.
    fn take(&mut self, ended: Result<(tokio::task::Id, Ended), JoinError>) {
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
        let plugin = self.shared.registry.find(&job.job_type);
        if let Some(plugin) = plugin {
            let counted = plugin.rules.fleet.counts_running();
            if counted {
                self.quotas.ended(&job.job_type);
            }
            if counted || plugin.rules.concurrency.is_some() {
                // It may have been full, and not asked for since.
                self.appetite.may_have_more();
            }
        }
        let finish = match ended {
            Some(ended) => ended.finish,
            None => Some(attempt::panicked(&job)),
        };
        match finish {
            Some(finish) => self.remember(finish, job.job_type, job.attempt),
            None => {
                // Its claim is void with the lease: the row is others' by now.
                self.slots.written(1);
                self.forget(job.id, job.claim);
                self.dropped(job.id, job.attempt);
            }
        }
    }

    fn remember(&mut self, finish: Finish, job_type: JobType, attempt: u32) {
        self.outbox.push(finish, (job_type, attempt));
    }

    /// The result of an attempt comes too late; this is all that happens of it.
    fn dropped(&self, id: JobId, attempt: u32) {
        tracing::warn!(job = %id, attempt, "result dropped, the job was taken over");
        Events::count(&self.shared.events.stale, 1);
        self.shared.events.tell(|| Event::Stale { id });
    }

    fn forget(&self, id: JobId, claim: ClaimToken) {
        self.shared.running().remove(&(id, claim));
    }

    /// A round came back.
    async fn answered(&mut self, answer: Result<Answer, JoinError>) {
        let (mut round, cycle) = match answer {
            Ok(answer) => answer,
            Err(error) => {
                // Only a fault of the host gets here. The runner ends, and what the round carried is taken back.
                tracing::error!(%error, "a round's task failed");
                self.shared.halt.cancel();
                self.shared.drain.cancel();
                return;
            }
        };
        if let Some(ask) = &round.ask {
            self.claims -= 1;
            self.slots.release(&ask.demand);
        }
        match cycle {
            Ok(cycle) => {
                self.retry = Duration::ZERO;
                self.retry_at = None;
                self.settle(&mut round, &cycle);
                if cycle.unsettled {
                    self.shared.unsettled.notify_one();
                }
                if let Some(error) = &cycle.claim_failed {
                    tracing::warn!(%error, "the results were written, and the claim failed");
                    self.doubt_claim();
                } else if round.ask.is_some() {
                    self.halvings = self.halvings.saturating_sub(1);
                }
                if let Some(ask) = round.ask {
                    self.start(&ask, cycle).await;
                }
            }
            Err(error) => self.failed(round, &error),
        }
    }

    /// A round failed: nothing is lost, what ended waits for the next one.
    fn failed(&mut self, round: Round, error: &Error) {
        if round.ask.is_some() {
            self.doubt_claim();
        }
        self.outbox.put_back(round.batch);
        self.retry = (self.retry * 2).clamp(Duration::from_millis(100), Duration::from_secs(5));
        let pause = self.retry.mul_f64(0.75 + fastrand::f64() / 2.0);
        self.retry_at = Some(Instant::now() + pause);
        tracing::warn!(%error, unwritten = self.outbox.len(), retry_in = ?pause, "the database did not take a round");
    }

    /// A claim may have been committed although its answer was lost.
    fn doubt_claim(&mut self) {
        // 2 to the 14th is more than the slots of any runner.
        self.halvings = (self.halvings + 1).min(14);
        *self
            .shared
            .doubtful
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// What was written, or found stale, is over.
    fn settle(&mut self, round: &mut Round, cycle: &Cycle) {
        let events = &self.shared.events;
        let stale: HashSet<_> = cycle.stale.iter().copied().collect();
        let (mut done, mut failed, mut again, mut batches) = (0, 0, 0, false);
        let mut returned = Vec::new();
        self.outbox.written();
        let batch = std::mem::take(&mut round.batch);
        let held: HashSet<_> = cycle.held.iter().copied().collect();
        let mut cancelled = Vec::new();
        self.slots.written(batch.finishes.len() - held.len());
        for (finish, (job_type, attempt)) in batch.finishes.into_iter().zip(batch.labels) {
            if held.contains(&(finish.id, finish.claim)) {
                self.outbox.hold(finish, (job_type, attempt));
                continue;
            }
            let ran = self.shared.running().remove(&(finish.id, finish.claim));
            if round.cancelled.contains(&(finish.id, finish.claim)) {
                tracing::info!(job = %finish.id, %job_type, attempt, "the job was cancelled while it ran");
                Events::count(&events.cancelled, 1);
                events.tell(|| Event::Finished {
                    id: finish.id,
                    job_type,
                    attempt,
                    failure: Some(FailureClass::Cancelled),
                    again: false,
                    run: finish.usage.run,
                });
                cancelled.push(finish);
                continue;
            }
            if stale.contains(&(finish.id, finish.claim)) {
                self.dropped(finish.id, attempt);
                // Perhaps this runner is dead to the others, and does not know it.
                self.shared.doubt.notify_one();
                continue;
            }
            let handed_back = matches!(finish.failure, Some((FailureClass::HandedBack, _)));
            if handed_back && !returned.contains(&job_type) {
                returned.push(job_type.clone());
            }
            match finish.verdict {
                Verdict::Done(_) => done += 1,
                Verdict::Failed => failed += 1,
                Verdict::Again { delay, .. } => {
                    again += 1;
                    self.appetite.expect(delay);
                }
            }
            if !finish.follow_ups.is_empty() {
                self.appetite.look();
            }
            if finish.batch.is_some() && !matches!(finish.verdict, Verdict::Again { .. }) {
                batches = true;
            }
            let is_again = matches!(finish.verdict, Verdict::Again { .. });
            let failure = finish.failure.as_ref().map(|(class, _)| *class);
            if let Some(revision) = ran.and_then(|ran| ran.trial) {
                let trials = &self.shared.trials;
                trials.count(&job_type, finish.plugin, revision, attempt, failure);
            }
            if let Some((class, text)) = &finish.failure {
                tracing::info!(job = %finish.id, %job_type, attempt, failure = class.as_str(), again = is_again, error = text, "attempt failed");
            } else {
                tracing::debug!(job = %finish.id, %job_type, attempt, "job done");
            }
            let run = finish.usage.run;
            events.tell(|| Event::Finished {
                id: finish.id,
                job_type,
                attempt,
                failure,
                again: is_again,
                run,
            });
        }
        if batches {
            self.shared.unsettled.notify_one();
        }
        Events::count(&events.done, done);
        Events::count(&events.failed, failed);
        Events::count(&events.again, again);
        if !cancelled.is_empty() {
            let store = self.shared.store.clone();
            self.asides
                .spawn(async move { store.record_cancelled(&cancelled).await });
        }
        if !returned.is_empty() {
            let store = self.shared.store.clone();
            self.asides
                .spawn(async move { store.wake(&returned).await });
        }
    }

    /// Starts what was claimed.
    async fn start(&mut self, ask: &Ask, cycle: Cycle) {
        let runner = ask.demand.runner;
        self.marks.learn(&cycle.claimed, cycle.took, ask.at_all);
        self.shares.learn(ask.order, &cycle.claimed, ask.is_whole());
        let more = ask.leaves_more(&cycle.claimed, &cycle.notes);
        if let Some(idle) = ask.idle(&cycle.claimed) {
            self.idle = idle;
        }
        self.quotas.learn(cycle.notes);
        let outdated = !Arc::ptr_eq(&ask.config, &self.shared.config());
        if outdated {
            // That a type is full was said of limits that hold no more.
            self.quotas.relimit();
        }
        self.appetite.learn(Shown {
            found: cycle.claimed.len(),
            more,
            at_all: ask.at_all,
            reasons: ask.reasons,
            others: self.claims > 0,
        });
        Events::count(&self.shared.events.claimed, cycle.claimed.len());
        if *self.shared.identity.borrow() != Some(runner) {
            // The lease was lost while the claim was under way: these jobs are others' to run.
            return;
        }
        let serving = self.shared.registry.serving();
        for job in cycle.claimed {
            let finish = match serving.get(&job.job_type) {
                Some(_) if job.oversized => attempt::oversized(&job),
                // Its row has the deadline of another time limit; claimed anew it has the right one.
                Some(served) if outdated && ask.is_short_for(&job, served) => {
                    attempt::give_back(&job)
                }
                Some(served) if self.drained_at.is_none() => {
                    let plugin = served.version_for(job.id).clone();
                    let trial = served.canary.as_ref().map(|canary| canary.revision);
                    self.spawn(runner, plugin, trial, job);
                    continue;
                }
                // Deleted, or told to stop, in this very moment: given back as if never claimed.
                _ => attempt::give_back(&job),
            };
            self.slots.take(&job.job_type);
            self.slots.give(&job.job_type);
            self.remember(finish, job.job_type, job.attempt);
        }
        // Looked at again, now that the attempts are in the list that a lost lease goes through.
        if *self.shared.identity.borrow() != Some(runner) {
            self.shared
                .stop_running(StopReason::LeaseLost, Some(runner));
        }
        tokio::select! {
            () = self.appetite.stay_awake(&self.shared, runner) => {}
            () = self.shared.drain.cancelled() => {}
        }
    }

    fn spawn(&mut self, runner: RunnerId, plugin: Arc<Plugin>, trial: Option<i64>, job: Claimed) {
        let ties = Ties {
            stop: Arc::new(Stop::default()),
            progress: Arc::new(Progress::default()),
            ledger: Arc::new(self.shared.checkpoints.of(job.id, job.claim)),
        };
        let running = Running {
            runner,
            since: Instant::now(),
            job_type: job.job_type.clone(),
            plugin: plugin.clone(),
            trial,
            ties: ties.clone(),
        };
        self.shared.running().insert((job.id, job.claim), running);
        self.slots.take(&job.job_type);
        let attempt = attempt::run(self.shared.clone(), plugin, job.clone(), ties);
        let task = self.attempts.spawn_on(attempt, &self.guests);
        self.tasks.insert(task.id(), job);
    }

    /// Sleeps until something happens.
    async fn wait(&mut self, identity: Option<RunnerId>) {
        let draining = self.drained_at.is_some();
        // Only when nothing is under way: an answer may change everything.
        if let Some(runner) = identity
            && !draining
            && self.claims == 0
            && !self.appetite.is_hungry()
        {
            let again = tokio::select! {
                again = self.appetite.plan(&self.shared, runner) => again,
                () = self.shared.drain.cancelled() => true,
            };
            if again {
                return;
            }
        }
        let shared = self.shared.clone();
        let look = self
            .appetite
            .next_look()
            .filter(|_| !draining && !self.appetite.is_hungry());
        let room = self
            .quotas
            .next_look()
            // Also a hungry runner, whose types may all be full.
            .filter(|_| !draining);
        let retry = self
            .retry_at
            .filter(|_| self.retry_at > Some(Instant::now()));
        let held = self.outbox.held_until().filter(|_| self.rounds.len() < 2);
        let grace = self
            .drained_at
            .map(|at| at + shared.config().runner.stop_grace.0);
        let may_stop = draining && self.stopped_at.is_none();
        let give_up = self.give_up_at();
        tokio::select! {
            biased;
            Some(ended) = self.attempts.join_next_with_id() => self.take(ended),
            Some(answer) = self.rounds.join_next() => self.answered(answer).await,
            Some(_) = self.asides.join_next() => {}
            () = shared.wake.notified() => self.appetite.look(),
            () = until(look), if look.is_some() => self.appetite.look_by_the_clock(),
            () = until(room), if room.is_some() => {
                self.quotas.looked();
                self.appetite.may_have_more();
            }
            () = until(retry), if retry.is_some() => {}
            () = until(held), if held.is_some() && retry.is_none() => {}
            () = shared.drain.cancelled(), if !draining => {}
            () = shared.halt.cancelled(), if may_stop => self.hand_back(),
            () = until(grace), if may_stop => self.hand_back(),
            () = sleep_until(give_up), if draining => {}
            // A lease that was lost or won back.
            () = changed(&shared, identity) => self.appetite.look(),
        }
    }

    fn begin_drain(&mut self) {
        self.drained_at = Some(Instant::now());
        let grace = self.shared.config().runner.stop_grace.0;
        tracing::info!(
            running = self.slots.running(),
            ?grace,
            "stopping: no more jobs are taken"
        );
        for running in self.shared.running().values() {
            running.ties.stop.ask();
        }
        let runner = *self.shared.identity.borrow();
        if let Some(runner) = runner {
            // Only so that people see it; the lease goes on.
            let store = self.shared.store.clone();
            self.asides
                .spawn(async move { store.sign_off(runner, false).await });
        }
    }

    /// Stops what still runs; each ends as a job that is handed back.
    fn hand_back(&mut self) {
        self.stopped_at = Some(Instant::now());
        tracing::info!(
            running = self.slots.running(),
            "handlers are stopped and their jobs handed back"
        );
        self.shared.stop_running(StopReason::HandBack, None);
        // No more patience with the database either.
        self.retry_at = None;
    }

    /// When a drained runner stops trying to write.
    fn give_up_at(&self) -> Instant {
        let stopped = self
            .stopped_at
            .or_else(|| Some(self.drained_at? + self.shared.config().runner.stop_grace.0));
        stopped.unwrap_or_else(Instant::now) + LAST_WRITES
    }
}

/// Sleeps until a moment that is there whenever this is polled.
async fn until(at: Option<Instant>) {
    sleep_until(at.unwrap_or_else(Instant::now)).await;
}

/// Waits for another identity than `before`.
async fn changed(shared: &Shared, before: Option<RunnerId>) {
    let mut identity = shared.identity.subscribe();
    // The sender lives as long as `shared`.
    let _ = identity.wait_for(|now| *now != before).await;
}
