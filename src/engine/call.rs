//! One call: a fresh store and instance, all limits set, the guest's `run`, and what came of it.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use wasmtime::{Store, UpdateDeadline};

use super::clock::{CpuClock, Timed};
use super::failure::judge;
use super::host::HostState;
use super::worlds::Call;
use super::{Engine, Grants, Handler, StopReason, Ties};
use crate::job::{Claimed, HttpUsage, Outcome, Usage};

/// How much of an attempt is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// All of it.
    Whole,
    /// Only its start: instantiation, without `run`.
    Start,
}

impl Engine {
    /// Runs one attempt to its end, whatever that is. Dropping the future ends the guest too.
    pub async fn call(
        &self,
        handler: &Handler,
        grants: &Grants,
        job: &Claimed,
        ties: &Ties,
    ) -> Outcome {
        self.attempt(handler, grants, job, ties, Extent::Whole)
            .await
    }

    pub(super) async fn attempt(
        &self,
        handler: &Handler,
        grants: &Grants,
        job: &Claimed,
        ties: &Ties,
        extent: Extent,
    ) -> Outcome {
        let started = Instant::now();
        let limits = &grants.limits;
        let deadline = started + limits.timeout;
        let stop = &ties.stop;
        // Instantiation counts: a start function can loop too.
        let _watch = self.ticker.watch(deadline, stop.clone());
        let key = idempotency_key(job);
        let clock = Arc::new(CpuClock::default());
        let state = HostState::new(job, &key, grants, ties, deadline, self.reserve.clone());
        let mut store = Store::new(handler.entry.engine(), state);
        store.limiter(|state| &mut state.memory);
        store.set_hostcall_fuel(limits.host_call);
        store.set_max_component_handles(limits.handles);
        let budget = limits.fuel.filter(|_| handler.fuelled);
        if let Some(fuel) = budget {
            store
                .set_fuel(fuel)
                .expect("the engine of a handler with a budget counts fuel");
        }
        store.set_epoch_deadline(1);
        let (most, computed) = (limits.cpu, clock.clone());
        store.epoch_deadline_callback(move |store| {
            let stop = store.data().stop();
            if computed.spent_now() >= most {
                stop.now(StopReason::CpuLimit);
            }
            if stop.reason().is_some() {
                return Err(wasmtime::Error::msg("the attempt was stopped"));
            }
            // Not wasmtime's own yield: it wakes itself, so tokio looks at timers and sockets only every 61 polls, and a
            // 5 ms timer came 590 ms late.
            Ok(UpdateDeadline::YieldCustom(
                1,
                Box::pin(tokio::task::yield_now()),
            ))
        });

        let returned = {
            let call = (extent == Extent::Whole).then_some(Call {
                job,
                idempotency_key: &key,
            });
            let work = handler.entry.enter(&mut store, call);
            let work = Timed {
                work,
                clock: clock.clone(),
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
            cpu: clock.spent(),
            fuel,
            peak_memory: state.memory.peak,
            http: state.http.usage().map(|http| HttpUsage {
                calls: http.calls,
                bytes: http.sent.saturating_add(http.received),
                time: http.time,
            }),
        };
        Outcome {
            verdict,
            follow_ups,
            usage,
            output,
            progress: ties.progress.take(),
        }
    }
}

/// The same for every attempt on every host: neither part ever changes. The time keeps apart the job 1 of one database and the
/// job 1 of another that talks to the same service.
fn idempotency_key(job: &Claimed) -> String {
    format!("piecework-{}-{:x}", job.id, job.enqueued_at.0)
}
