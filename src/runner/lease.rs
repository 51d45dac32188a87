//! The runner's lease, and what makes it safe.
//!
//! ```text
//!   registered ── renewed every beat ──> registered
//!       │  renewal says "declared dead", or none succeeded for a whole lease
//!       v
//!     lost: no identity, so no claims; every guest of the old identity is stopped; its results are dropped
//!       │  the database answers again
//!       v
//!   registered, under a new id
//! ```
//!
//! The database judges a lease by its own clock, from the moment a renewal arrives. The runner counts from the moment
//! before it sent one, by a monotonic clock: so it always gives up first, and whatever it still has in the air is fenced by
//! its claims.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::{Shared, schedules};
use crate::engine::StopReason;
use crate::job::RunnerId;
use crate::telemetry::Event;

/// A registration, and when it was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registered {
    runner: RunnerId,
    asked: Instant,
}

/// Registers under a new id.
pub(super) async fn register(shared: &Shared) -> anyhow::Result<Registered> {
    let config = shared.config();
    let settings = &config.runner;
    let name = if settings.name.is_empty() {
        usual_name()
    } else {
        settings.name.clone()
    };
    let asked = Instant::now();
    let runner = shared
        .store
        .register(
            &name,
            settings.slots,
            &shared.registry.job_types(),
            settings.lease.0,
            &schedules::names(&config),
        )
        .await?;
    tracing::info!(%runner, name, slots = settings.slots, "runner registered");
    shared.identity.send_replace(Some(runner));
    Ok(Registered { runner, asked })
}

/// Keeps the lease until dropped.
pub(super) async fn keep(shared: Arc<Shared>, mut registered: Registered) {
    loop {
        renew_until_lost(&shared, registered).await;
        shared.identity.send_replace(None);
        shared.stop_running(StopReason::LeaseLost, Some(registered.runner));
        shared.events.tell(|| Event::LeaseLost);
        tracing::error!(runner = %registered.runner, "the lease is lost: its handlers were stopped, others may run their jobs");
        registered = loop {
            // The database refused or did not answer: at most one try a second, and no thundering herd when it is back.
            sleep(Duration::from_millis(500 + fastrand::u64(..500))).await;
            match register(&shared).await {
                Ok(registered) => break registered,
                Err(error) => tracing::warn!(error = format!("{error:#}"), "cannot register"),
            }
        };
        shared.wake.notify_one();
    }
}

async fn renew_until_lost(shared: &Shared, registered: Registered) {
    let mut good = registered.asked;
    let mut next = good + shared.config().runner.beat.0;
    loop {
        let config = shared.config();
        let settings = &config.runner;
        let end = good + settings.lease.0;
        // Never past the end: a process that was stopped for a while must look at the clock first.
        tokio::select! {
            () = sleep_until(next.min(end)) => {}
            // A result that was stale: ask at once whether the lease still holds.
            () = shared.doubt.notified() => {}
        }
        if Instant::now() >= end {
            return;
        }
        let asked = Instant::now();
        let job_types = shared.registry.job_types();
        let renewal = shared
            .store
            .renew(registered.runner, settings.lease.0, &job_types);
        tokio::select! {
            biased;
            () = sleep_until(end) => return,
            renewed = renewal => match renewed {
                Ok(true) => {
                    good = asked;
                    next = asked + settings.beat.0;
                }
                Ok(false) => return,
                Err(error) => {
                    tracing::warn!(%error, left = ?end.saturating_duration_since(Instant::now()), "the lease could not be renewed");
                    next = Instant::now() + Duration::from_secs(1).min(settings.beat.0);
                }
            },
        }
    }
}

fn usual_name() -> String {
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    format!("{host}-{}", std::process::id())
}
