//! What a runner does beside running jobs. Every runner does all of it, without a leader: each statement is safe to run
//! anywhere, any number of times.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use super::Shared;
use crate::store::Notice;

/// Jobs taken back in one statement.
const REAP_AT_ONCE: u32 = 500;

/// Takes jobs back from runners that died.
pub(super) async fn reap(shared: Arc<Shared>) {
    loop {
        let interval = shared.config().runner.reap_interval.0;
        // Jittered, so that a fleet that was started together does not look together.
        sleep(interval.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
        if let Err(error) = reap_once(&shared).await {
            tracing::warn!(%error, "cannot look for runners that died");
        }
    }
}

async fn reap_once(shared: &Shared) -> Result<(), crate::store::Error> {
    for (runner, name) in shared.store.lapse().await? {
        tracing::warn!(%runner, name, "a runner's lease ran out; its jobs are taken back");
    }
    loop {
        let reaped = shared.store.reap(REAP_AT_ONCE).await?;
        for job in &reaped {
            tracing::warn!(job = %job.id, job_type = %job.job_type, failed = job.failed, "job taken back");
        }
        if !reaped.is_empty() {
            shared.wake.notify_one();
            // This runner may be full, or serve other types.
            let job_types: Vec<_> = reaped.iter().map(|job| job.job_type.clone()).collect();
            shared.store.wake(&job_types).await?;
        }
        if reaped.len() < REAP_AT_ONCE as usize {
            break;
        }
    }
    release_strays(shared).await
}

/// A claim whose answer was lost may have been committed: its jobs are running in the table, and nowhere else.
async fn release_strays(shared: &Shared) -> Result<(), crate::store::Error> {
    // What is being claimed at this moment is younger than any call may take.
    let age = shared.config().database.call_timeout.0 * 2;
    let doubtful = *shared
        .doubtful
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let runner = *shared.identity.borrow();
    let (Some(since), Some(runner)) = (doubtful, runner) else {
        return Ok(());
    };
    let known: Vec<i64> = shared.running().keys().map(|(_, claim)| claim.0).collect();
    let strays = shared.store.release_strays(runner, &known, age).await?;
    if strays > 0 {
        tracing::warn!(
            strays,
            "released jobs whose claim had been answered too late"
        );
        shared.wake.notify_one();
    }
    // A statement that was sent last moment may commit as late as its own limit; then it must be old enough to be seen.
    if since.elapsed() > age * 2 {
        let mut doubtful = shared
            .doubtful
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *doubtful == Some(since) {
            *doubtful = None;
        }
    }
    Ok(())
}

/// Writes what handlers report, the newest only, a few times a second at most.
pub(super) async fn report_progress(shared: Arc<Shared>) {
    loop {
        sleep(Duration::from_millis(300)).await;
        let reports: Vec<_> = shared
            .running()
            .iter()
            .filter_map(|((id, claim), running)| {
                running
                    .ties
                    .progress
                    .take()
                    .map(|(percent, message)| (*id, *claim, percent, message))
            })
            .collect();
        if reports.is_empty() {
            continue;
        }
        match shared.store.progress(&reports).await {
            Ok(stale) if stale.is_empty() => {}
            Ok(_) => shared.suspicion.notify_one(),
            Err(error) => tracing::warn!(%error, "progress could not be written"),
        }
    }
}

/// Calls in a row that drop history. Ten tables each are months of it; what is left then waits for the next hour.
const DROPS: u32 = 100;

/// Drops history that has been kept long enough, step by step.
async fn drop_old_history(shared: &Shared) -> Result<(), crate::store::Error> {
    for _ in 0..DROPS {
        let dropped = shared.store.drop_old_history().await?;
        let mut put_off = false;
        for step in &dropped {
            let table = &step.table;
            if step.put_off {
                put_off = true;
                tracing::info!(
                    table,
                    "old history is being read, or something depends on it; it will be dropped later"
                );
            } else if let Some(jobs) = step.jobs {
                tracing::info!(table, jobs, "old history deleted");
            } else {
                tracing::info!(table, "old history dropped");
            }
        }
        if dropped.is_empty() || put_off {
            break;
        }
    }
    Ok(())
}

/// Makes history partitions ahead and drops old ones, forgets old runners, schedules and their ticks, and unique keys whose time
/// is over.
pub(super) async fn keep_house(shared: Arc<Shared>) {
    loop {
        match shared.store.make_history_partitions().await {
            Ok(made) if made > 0 => tracing::info!(made, "history partitions made"),
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "history partitions could not be made; there are days left to try again")
            }
        }
        if let Err(error) = drop_old_history(&shared).await {
            tracing::warn!(%error, "old history could not be dropped; it is tried again in an hour");
        }
        if let Err(error) = shared.store.prune_runners().await {
            tracing::warn!(%error, "old runners could not be forgotten");
        }
        match shared.store.schedules_prune().await {
            Ok(names) if !names.is_empty() => {
                tracing::info!(
                    schedules = names.join(", "),
                    "schedules forgotten that no runner has declared for a day"
                );
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "old schedules could not be forgotten"),
        }
        match shared.store.prune_components().await {
            Ok(gone) if gone > 0 => tracing::info!(
                gone,
                "components of the fleet forgotten that nobody has wanted for long"
            ),
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "old components of the fleet could not be forgotten")
            }
        }
        if let Err(error) = shared.store.forget_windows().await {
            tracing::warn!(%error, "unique keys whose time is over could not be forgotten");
        }
        sleep(Duration::from_secs(3600).mul_f64(0.75 + fastrand::f64() / 2.0)).await;
    }
}

/// Wakes the dispatcher for every notice.
pub(super) async fn listen(shared: Arc<Shared>) {
    let store = shared.store.clone();
    store
        .listen(|notice| {
            shared
                .hears
                .store(notice != Notice::Deaf, Ordering::Relaxed);
            match notice {
                Notice::Cancelled => shared.suspicion.notify_one(),
                Notice::Plugins => shared.released.notify_one(),
                Notice::Listening | Notice::Deaf | Notice::Enqueued => shared.wake.notify_one(),
            }
        })
        .await;
}
