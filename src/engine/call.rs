//! One call: a fresh store and instance, all limits set, the guest's `run`, and what came of it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use wasmtime::{Store, UpdateDeadline};

use super::bindings::piecework::handler::types;
use super::failure::judge;
use super::host::HostState;
use super::{Engine, Handler, Stop};
use crate::config::Limits;
use crate::job::{Claimed, MAX_PROGRESS_BYTES, Outcome, Usage, storable};

/// What can be copied between guest and host in one crossing, in bytes: a payload and a result with room to spare.
const HOSTCALL_BYTES: usize = 16 * 1024 * 1024;

/// The latest progress that an attempt reported; only the newest is ever written.
#[derive(Debug, Default)]
pub struct Progress(Mutex<Option<(u8, String)>>);

impl Progress {
    /// Remembers a report.
    pub fn report(&self, percent: u8, message: &str) {
        let message = storable(message, MAX_PROGRESS_BYTES);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((percent, message));
    }

    /// Takes the newest report, if there is one since the last time.
    pub fn take(&self) -> Option<(u8, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Engine {
    /// Runs one attempt to its end, whatever that is. Dropping the future ends the guest too.
    pub async fn call(
        &self,
        handler: &Handler,
        job: &Claimed,
        limits: &Limits,
        stop: &Arc<Stop>,
        progress: &Arc<Progress>,
    ) -> Outcome {
        let started = Instant::now();
        // Instantiation counts: a start function can loop too.
        let _watch = self.ticker.watch(started + limits.timeout, stop.clone());
        let state = HostState::new(
            job.id,
            job.job_type.as_str(),
            limits.memory,
            stop.clone(),
            progress.clone(),
        );
        let mut store = Store::new(handler.pre.engine(), state);
        store.limiter(|state| &mut state.memory);
        store.set_hostcall_fuel(HOSTCALL_BYTES);
        store.set_max_component_handles(10_000);
        let budget = limits.fuel.filter(|_| handler.fuelled);
        if let Some(fuel) = budget {
            store
                .set_fuel(fuel)
                .expect("the engine of a handler with a budget counts fuel");
        }
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|store| {
            if store.data().stop.reason().is_some() {
                return Err(wasmtime::Error::msg("the attempt was stopped"));
            }
            // Not wasmtime's own yield: it wakes itself, so tokio looks at timers and sockets only every 61 polls, and a
            // 5 ms timer came 590 ms late.
            Ok(UpdateDeadline::YieldCustom(
                1,
                Box::pin(tokio::task::yield_now()),
            ))
        });

        let input = input(job);
        let mut cpu = Duration::ZERO;
        let returned = {
            let work = Box::pin(async {
                let instance = handler.pre.instantiate_async(&mut store).await?;
                instance.call_run(&mut store, &input).await
            });
            let work = Timed {
                work,
                cpu: &mut cpu,
            };
            tokio::select! {
                biased;
                returned = work => Some(returned),
                () = stop.stopped() => None,
            }
        };

        let verdict = judge(returned, stop, limits, store.data(), &handler.version());
        let fuel = budget.map(|budget| budget - store.get_fuel().unwrap_or(0).min(budget));
        let state = store.data_mut();
        let output = state
            .output
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .text();
        let follow_ups = if verdict.is_ok() {
            std::mem::take(&mut state.follow_ups)
        } else {
            Vec::new()
        };
        let usage = Usage {
            run: started.elapsed(),
            cpu,
            fuel,
            peak_memory: state.memory.peak,
        };
        Outcome {
            verdict,
            follow_ups,
            usage,
            output,
        }
    }
}

fn input(job: &Claimed) -> types::Job {
    types::Job {
        id: job.id.to_string(),
        job_type: job.job_type.as_str().to_owned(),
        payload: job.payload.clone(),
        attempt: job.attempt,
        max_attempts: job.max_attempts,
        // Neither ever changes, over attempts, hosts and restarts. The time keeps apart the job 1 of one database and the
        // job 1 of another that talks to the same service.
        idempotency_key: format!("piecework-{}-{:x}", job.id, job.enqueued_at.0),
        ordering_key: job.ordering_key.clone(),
        enqueued_at: job.enqueued_at.to_string(),
        due_at: job.due_at.to_string(),
        parent: job.parent.map(|id| id.to_string()),
    }
}

/// Adds up the thread time of each poll: what the guest computed, wherever it was polled.
struct Timed<'a, F> {
    work: Pin<Box<F>>,
    cpu: &'a mut Duration,
}

impl<F: Future> Future for Timed<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let before = thread_time();
        let polled = self.work.as_mut().poll(context);
        *self.cpu += thread_time().saturating_sub(before);
        polled
    }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}
