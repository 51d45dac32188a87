//! Finds attempts that are void, because their job was cancelled or taken over, and stops them.
//!
//! A cancelled handler is told at once (`jobs.cancelled` answers true) and stopped a second later, wherever it is. Nothing
//! that it does meanwhile can change its job: the row is gone, and with it the claim that fences its writes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Shared;
use crate::engine::StopReason;
use crate::job::{ClaimToken, JobId};

/// How often running attempts are held against the table. A notice brings most cancels within milliseconds; this finds those
/// whose notice was lost, within two seconds in all.
const INTERVAL: Duration = Duration::from_millis(500);
/// An attempt is looked at when it is this old: most are over by then.
const YOUNG: Duration = Duration::from_millis(400);
/// What a cancelled handler has left to end by itself.
const GRACE: Duration = Duration::from_secs(1);

/// Watches until dropped.
pub(super) async fn watch(shared: Arc<Shared>) {
    // When each cancelled attempt was told.
    let mut told: HashMap<(JobId, ClaimToken), Instant> = HashMap::new();
    loop {
        let next_end = told.values().min().map(|at| *at + GRACE);
        let pause = next_end.map_or(INTERVAL, |at| {
            at.saturating_duration_since(Instant::now()).min(INTERVAL)
        });
        let suspects = tokio::select! {
            () = sleep(pause) => suspects(&shared, YOUNG),
            () = shared.suspicion.notified() => suspects(&shared, Duration::ZERO),
        };
        told.retain(|attempt, _| shared.running().contains_key(attempt));
        if let Err(error) = look(&shared, suspects, &mut told).await {
            tracing::warn!(%error, "cannot tell which jobs were cancelled");
        }
        stop_told(&shared, &mut told);
    }
}

fn suspects(shared: &Shared, age: Duration) -> Vec<(JobId, ClaimToken)> {
    shared
        .running()
        .iter()
        .filter(|(_, running)| running.since.elapsed() >= age)
        .map(|(attempt, _)| *attempt)
        .collect()
}

async fn look(
    shared: &Shared,
    suspects: Vec<(JobId, ClaimToken)>,
    told: &mut HashMap<(JobId, ClaimToken), Instant>,
) -> Result<(), crate::store::Error> {
    if suspects.is_empty() {
        return Ok(());
    }
    let void = shared.store.void(&suspects).await?;
    let running = shared.running();
    for (attempt, cancelled) in void {
        // Not there: it ended by itself meanwhile, which made its row vanish.
        let Some(running) = running.get(&attempt) else {
            continue;
        };
        if cancelled {
            told.entry(attempt).or_insert_with(|| {
                running.ties.stop.ask();
                Instant::now()
            });
        } else if running.ties.stop.reason().is_none() {
            tracing::debug!(job = %attempt.0, "the attempt's row is not its own any more; its handler is stopped");
            running.ties.stop.now(StopReason::LeaseLost);
        }
    }
    Ok(())
}

/// Stops the attempts whose grace is over.
fn stop_told(shared: &Shared, told: &mut HashMap<(JobId, ClaimToken), Instant>) {
    let running = shared.running();
    told.retain(|attempt, at| {
        let over = at.elapsed() >= GRACE;
        if over && let Some(running) = running.get(attempt) {
            running.ties.stop.now(StopReason::Cancelled);
        }
        !over
    });
}
