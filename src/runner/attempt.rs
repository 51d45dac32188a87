//! One job: one call of its plugin, and what is to be written of it.

use std::sync::Arc;
use std::time::Instant;

use super::Shared;
use crate::engine::{Progress, Stop, StopReason};
use crate::job::{Claimed, Disposition, Failure, FailureClass, Outcome, Usage};
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
    stop: Arc<Stop>,
    progress: Arc<Progress>,
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
        .call(
            &plugin.handler,
            &job,
            &plugin.rules.limits,
            &stop,
            &progress,
        )
        .await;
    let finish =
        (stop.reason() != Some(StopReason::LeaseLost)).then(|| conclude(&plugin, &job, outcome));
    Ended { finish }
}

/// A task that panicked: the host's fault, so the attempt is given back.
pub(super) fn panicked(job: &Claimed) -> Finish {
    let failure = Failure::new(
        FailureClass::HostError,
        "the host failed while it ran the attempt",
        Disposition::Refund(std::time::Duration::from_secs(5)),
    );
    finish(
        job,
        [0; 32],
        verdict(None, job, &failure),
        Some(&failure),
        Vec::new(),
        Usage::default(),
        None,
    )
}

/// A job that was claimed and cannot be started: given back as if it had never been.
pub(super) fn give_back(job: &Claimed) -> Finish {
    let verdict = Verdict::Again {
        delay: std::time::Duration::ZERO,
        refund: true,
    };
    let failure = Failure::new(
        FailureClass::HandedBack,
        "the runner could not start it any more",
        Disposition::Refund(std::time::Duration::ZERO),
    );
    finish(
        job,
        [0; 32],
        verdict,
        Some(&failure),
        Vec::new(),
        Usage::default(),
        None,
    )
}

fn conclude(plugin: &Plugin, job: &Claimed, outcome: Outcome) -> Finish {
    let digest = plugin.handler.digest();
    match outcome.verdict {
        Ok(result) => finish(
            job,
            digest,
            Verdict::Done(result),
            None,
            outcome.follow_ups,
            outcome.usage,
            outcome.output,
        ),
        Err(failure) => {
            let verdict = verdict(Some(plugin), job, &failure);
            finish(
                job,
                digest,
                verdict,
                Some(&failure),
                Vec::new(),
                outcome.usage,
                outcome.output,
            )
        }
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

fn finish(
    job: &Claimed,
    plugin: [u8; 32],
    verdict: Verdict,
    failure: Option<&Failure>,
    follow_ups: Vec<crate::job::FollowUp>,
    usage: Usage,
    output: Option<String>,
) -> Finish {
    Finish {
        id: job.id,
        claim: job.claim,
        verdict,
        failure: failure.map(|failure| (failure.class, failure.message.clone())),
        follow_ups,
        usage,
        output,
        plugin,
    }
}
