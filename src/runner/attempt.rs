//! One job: one call of its plugin, and what is to be written of it.

use std::sync::Arc;
use std::time::Instant;

use super::Shared;
use crate::engine::{StopReason, Ties};
use crate::job::{Claimed, Disposition, Failure, FailureClass, MAX_PAYLOAD_BYTES, Outcome, Usage};
use crate::plugins::Plugin;
use crate::store::{Finish, Verdict};
use crate::telemetry::Event;

/// An attempt that ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// `None`: its claim is void, there is nothing to write.
    pub(super) finish: Option<Finish>,
}

/// Runs one attempt to its end.
pub(super) async fn run(
    shared: Arc<Shared>,
    plugin: Arc<Plugin>,
    job: Claimed,
    ties: Ties,
) -> Ended {
    shared.events.tell(|| Event::Started {
        id: job.id,
        job_type: job.job_type.clone(),
        attempt: job.attempt,
        at: Instant::now(),
    });
    tracing::debug!(job = %job.id, job_type = %job.job_type, attempt = job.attempt, "attempt started");
    let outcome = shared
        .engine
        .call(&plugin.handler, &plugin.grants, &job, &ties)
        .await;
    let void = ties.stop.reason() == Some(StopReason::LeaseLost);
    let finish = (!void).then(|| conclude(&plugin, &job, outcome));
    Ended { finish }
}

/// A task that panicked: the host's fault. It counts all the same, since the job may be what brings it about, and would for
/// ever.
pub(super) fn panicked(job: &Claimed) -> Finish {
    let failure = Failure::new(
        FailureClass::HostError,
        "the host failed while it ran the attempt; its log says more",
        Disposition::After(std::time::Duration::from_secs(5)),
    );
    not_run(job, &failure)
}

/// A job that no enqueue function let in: written to the table by hand. A retry would end the same.
pub(super) fn oversized(job: &Claimed) -> Finish {
    let failure = Failure::new(
        FailureClass::PayloadTooLarge,
        format!(
            "the payload has more than {MAX_PAYLOAD_BYTES} bytes of JSON text, the limit; no handler was called"
        ),
        Disposition::Discard,
    );
    not_run(job, &failure)
}

/// A job that was claimed and cannot be started: given back as if it had never been.
pub(super) fn give_back(job: &Claimed) -> Finish {
    let failure = Failure::new(
        FailureClass::HandedBack,
        "the runner could not start it any more",
        Disposition::Refund(std::time::Duration::ZERO),
    );
    not_run(job, &failure)
}

fn not_run(job: &Claimed, failure: &Failure) -> Finish {
    Finish {
        id: job.id,
        claim: job.claim,
        ordering_key: job.ordering_key.clone(),
        batch: job.batch,
        verdict: verdict(None, job, failure),
        failure: Some((failure.class, failure.message.clone())),
        follow_ups: Vec::new(),
        usage: Usage::default(),
        output: None,
        progress: None,
        plugin: [0; 32],
    }
}

fn conclude(plugin: &Plugin, job: &Claimed, outcome: Outcome) -> Finish {
    let (verdict, failure, follow_ups) = match outcome.verdict {
        Ok(result) => (Verdict::Done(result), None, outcome.follow_ups),
        // What a failed attempt wanted to follow is dropped.
        Err(failure) => {
            let verdict = verdict(Some(plugin), job, &failure);
            (verdict, Some((failure.class, failure.message)), Vec::new())
        }
    };
    Finish {
        id: job.id,
        claim: job.claim,
        ordering_key: job.ordering_key.clone(),
        batch: job.batch,
        verdict,
        failure,
        follow_ups,
        usage: outcome.usage,
        output: outcome.output,
        progress: outcome.progress,
        plugin: plugin.handler.digest(),
    }
}

/// What becomes of a job whose attempt came to nothing.
fn verdict(plugin: Option<&Plugin>, job: &Claimed, failure: &Failure) -> Verdict {
    let spent = job.attempt >= job.max_attempts;
    match failure.disposition {
        Disposition::Discard => Verdict::Failed,
        Disposition::Refund(delay) => Verdict::Again {
            delay,
            refund: true,
        },
        Disposition::Backoff | Disposition::After(_) if spent => Verdict::Failed,
        Disposition::After(delay) => Verdict::Again {
            delay,
            refund: false,
        },
        Disposition::Backoff => {
            let delay =
                plugin.map(|plugin| plugin.rules.backoff.delay(job.attempt, fastrand::f64()));
            Verdict::Again {
                delay: delay.unwrap_or_default(),
                refund: false,
            }
        }
    }
}
