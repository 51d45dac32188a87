//! Whether a component starts, tried once before it serves: one whose start traps, or that begins with more memory than it may have,
//! would fail every job.

use std::sync::Arc;
use std::time::Duration;

use super::call::Extent;
use super::refusal::Refusal;
use super::{Engine, Handler, NoLedger, Progress, Stop, Ties};
use crate::config::PluginRules;
use crate::job::{ClaimToken, Claimed, FailureClass, JobId, JobType, Priority, Timestamp};
use crate::policy::Policy;

/// Longest that a start is watched. One that is allowed more, and takes it, is left to its first job.
const LONGEST: Duration = Duration::from_secs(30);
/// Most that a start may compute; the slowest that was seen, of a language runtime, took a few milliseconds.
const COMPUTING: Duration = Duration::from_secs(10);

impl Engine {
    /// Instantiates a component as for an attempt, with the plugin's limits and without HTTP; nothing of it is run but what runs at
    /// the start. Blocks for as long as that takes.
    ///
    /// # Errors
    /// Says why the start fails. What is no fault of the component is no reason.
    pub fn check_start(
        &self,
        name: &str,
        handler: &Handler,
        rules: &PluginRules,
    ) -> Result<(), Refusal> {
        let mut rules = rules.clone();
        rules.http.allow = Policy::default();
        let patient = rules.limits.timeout <= LONGEST;
        rules.limits.timeout = rules.limits.timeout.min(LONGEST);
        rules.limits.cpu = rules.limits.cpu.min(COMPUTING);
        let grants = self.grants(name, &rules);
        let job = nobody(&rules);
        let ties = Ties {
            stop: Arc::new(Stop::default()),
            progress: Arc::new(Progress::default()),
            ledger: Arc::new(NoLedger),
        };
        let attempt = || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .ok()?;
            let started = self.attempt(handler, &grants, &job, &ties, Extent::Start);
            runtime.block_on(started).verdict.err()
        };
        // A thread of its own: the caller's may belong to a runtime.
        let failure = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("check".to_owned());
            let thread = thread.spawn_scoped(scope, attempt).ok()?;
            thread.join().ok().flatten()
        });
        let Some(failure) = failure else {
            return Ok(());
        };
        let remedy = match failure.class {
            FailureClass::Timeout if patient => {
                "let it do less before `run`, or raise `timeout` of the plugin in runner.toml"
            }
            FailureClass::CpuLimit => {
                "let it do less before `run`, or raise `cpu` of the plugin in runner.toml"
            }
            FailureClass::OutOfFuel => "raise `fuel` of the plugin in runner.toml",
            FailureClass::OutOfMemory => "raise `memory` of the plugin in runner.toml",
            FailureClass::Trap => {
                "what it does before `run` ends in a trap: see what `piecework invoke` prints for it"
            }
            FailureClass::Timeout
            | FailureClass::BadResult
            | FailureClass::PayloadTooLarge
            | FailureClass::GuestRetry
            | FailureClass::GuestDiscard
            | FailureClass::Snoozed
            | FailureClass::HostLost
            | FailureClass::HandedBack
            | FailureClass::Cancelled
            | FailureClass::HostError => return Ok(()),
        };
        let class = failure.class.as_str();
        Err(Refusal::new(
            format!("it does not start ({class}): {}", failure.message),
            remedy,
        ))
    }
}

/// A job that is in no table.
fn nobody(rules: &PluginRules) -> Claimed {
    Claimed {
        id: JobId(0),
        claim: ClaimToken(0),
        job_type: JobType::from(rules.job_types.first().map_or("", String::as_str)),
        priority: Priority(2),
        due_at: Timestamp(0),
        attempt: 1,
        max_attempts: 1,
        payload: "null".into(),
        oversized: false,
        ordering_key: None,
        group_key: None,
        batch: None,
        enqueued_at: Timestamp(0),
        parent: None,
        root: JobId(0),
        checkpoint: None,
    }
}
