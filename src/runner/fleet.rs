//! The runner's part in the fleet: asks what shall serve, says what does, and counts how canaries do.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::Shared;
use crate::job::{FailureClass, JobType, RunnerId};
use crate::plugins::PluginState;
use crate::store::{CanaryCount, Digest, Wanted};

/// Between two looks at what is to be said or counted.
const BEAT: Duration = Duration::from_millis(250);
/// How often the numbers of running attempts are said anew, at most.
const NUMBERS: Duration = Duration::from_secs(2);
/// Said again after this, so that people see that it still holds.
const AGAIN: Duration = Duration::from_secs(30);
/// How often canaries are judged.
const JUDGE: Duration = Duration::from_secs(1);

/// What the fleet wants, as far as this runner has heard; `None`: nothing yet.
pub(super) type Wants = watch::Sender<Option<Vec<Wanted>>>;

/// Asks what shall serve, at an interval and whenever the database says that it changed.
pub(super) async fn ask(shared: Arc<Shared>) {
    loop {
        let interval = shared.config().runner.plugins_interval.0;
        tokio::select! {
            () = shared.released.notified() => {}
            () = sleep(interval.mul_f64(0.75 + fastrand::f64() / 4.0)) => {}
        }
        match shared.store.wanted().await {
            Ok(wanted) => {
                shared.wants.send_if_modified(|known| {
                    let wanted = Some(wanted);
                    let changed = *known != wanted;
                    *known = wanted;
                    changed
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot ask which plugins the fleet serves; what serves goes on serving");
            }
        }
    }
}

/// What was said last, by whom and when.
struct Said {
    runner: RunnerId,
    plugins: Vec<PluginState>,
    at: Instant,
}

/// Says how the plugins stand whenever that changes.
pub(super) async fn report(shared: Arc<Shared>) {
    let mut said: Option<Said> = None;
    loop {
        tokio::select! {
            () = shared.restated.notified() => {}
            () = sleep(BEAT) => {}
        }
        let Some(runner) = *shared.identity.borrow() else {
            continue;
        };
        let plugins = shared.plugins();
        let known = said.as_ref().is_some_and(|said| {
            let age = said.at.elapsed();
            let numbers = age >= NUMBERS;
            said.runner == runner && age < AGAIN && same(&said.plugins, &plugins, numbers)
        });
        if known {
            continue;
        }
        let fleet = shared.config().runner.plugins_from.fleet();
        let text = serde_json::to_string(&plugins).unwrap_or_else(|_| "[]".to_owned());
        match shared.store.report_plugins(runner, fleet, &text).await {
            Ok(()) => {
                said = Some(Said {
                    runner,
                    plugins,
                    at: Instant::now(),
                });
            }
            Err(error) => {
                tracing::debug!(%error, "cannot say how the plugins stand");
                sleep(JUDGE).await;
            }
        }
    }
}

/// Whether nothing is worth a new report: the time goes by in any case, and the numbers of running attempts count only now and then.
fn same(before: &[PluginState], now: &[PluginState], numbers: bool) -> bool {
    let stands = |state: &PluginState| PluginState {
        since_seconds: 0.0,
        in_flight: if numbers {
            state.in_flight.clone()
        } else {
            Vec::new()
        },
        ..state.clone()
    };
    before.iter().map(stands).eq(now.iter().map(stands))
}

/// How first attempts of jobs came out while their type had a canary, since this process began.
#[derive(Debug)]
pub(super) struct Trials {
    /// Tells this process from others in the database.
    source: i64,
    counts: Mutex<HashMap<Version, (u64, u64)>>,
}

/// Job type, digest and revision of the release.
type Version = (JobType, Digest, i64);

impl Default for Trials {
    fn default() -> Self {
        Self {
            source: fastrand::i64(1..),
            counts: Mutex::default(),
        }
    }
}

impl Trials {
    /// Counts an attempt. What the guest is not to blame for is passed over, and so are later attempts of a job: one that fails
    /// whatever runs it would be taken for many.
    pub(super) fn count(
        &self,
        job_type: &JobType,
        digest: Digest,
        revision: i64,
        attempt: u32,
        failure: Option<FailureClass>,
    ) {
        let failed = match failure {
            None => false,
            Some(
                FailureClass::Trap
                | FailureClass::Timeout
                | FailureClass::CpuLimit
                | FailureClass::OutOfFuel
                | FailureClass::OutOfMemory
                | FailureClass::BadResult
                | FailureClass::GuestRetry
                | FailureClass::GuestDiscard,
            ) => true,
            Some(
                FailureClass::PayloadTooLarge
                | FailureClass::Snoozed
                | FailureClass::HostLost
                | FailureClass::HandedBack
                | FailureClass::Cancelled
                | FailureClass::HostError,
            ) => return,
        };
        if attempt != 1 {
            return;
        }
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts
            .entry((job_type.clone(), digest, revision))
            .or_insert((0, 0));
        count.0 += u64::from(!failed);
        count.1 += u64::from(failed);
    }

    fn all(&self) -> Vec<CanaryCount> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let line =
            |((job_type, digest, revision), (done, failed)): (&Version, &(u64, u64))| CanaryCount {
                job_type: job_type.clone(),
                digest: *digest,
                revision: *revision,
                done: *done,
                failed: *failed,
            };
        counts.iter().map(line).collect()
    }

    /// Forgets what is about canaries that are over.
    fn keep(&self, wanted: &[Wanted]) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.retain(|(job_type, _, revision), _| {
            let on_trial = |wanted: &Wanted| {
                wanted.job_type == *job_type
                    && wanted.canary.is_some()
                    && wanted.revision <= *revision
            };
            wanted.iter().any(on_trial)
        });
    }
}

/// Writes how canaries do, and ends those that do clearly worse: every runner judges, by what all have counted.
pub(super) async fn judge(shared: Arc<Shared>) {
    let mut written = Vec::new();
    loop {
        // Jittered, so that a fleet does not judge all at once.
        sleep(JUDGE.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        let trial = {
            let wants = shared.wants.borrow();
            let wanted = wants.as_deref().unwrap_or_default();
            shared.trials.keep(wanted);
            wanted.iter().any(|wanted| wanted.canary.is_some())
        };
        if !trial {
            continue;
        }
        let counts = shared.trials.all();
        if !counts.is_empty() && counts != written {
            match shared
                .store
                .count_canaries(shared.trials.source, &counts)
                .await
            {
                Ok(()) => written = counts,
                Err(error) => tracing::warn!(%error, "cannot write how canaries do"),
            }
        }
        match shared.store.judge_canaries().await {
            Ok(ended) => {
                for canary in ended {
                    tracing::warn!(
                        job_type = %canary.job_type,
                        canary = crate::engine::hex(&canary.canary[..6]),
                        stable = crate::engine::hex(&canary.stable[..6]),
                        reason = canary.reason,
                        "canary rolled back"
                    );
                    shared.released.notify_one();
                }
            }
            Err(error) => tracing::warn!(%error, "cannot judge canaries"),
        }
    }
}
