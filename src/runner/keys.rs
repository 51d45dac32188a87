//! Ordering keys: decides about keyed jobs before they can be claimed. Every runner does it for the whole queue, whatever it
//! serves; two that do it at once wait for each other, key by key, for milliseconds.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::Shared;

/// Jobs and keys decided about in one transaction.
const AT_ONCE: u32 = 2000;
/// How often it is looked for keys that stand still; only a runner of an older version leaves any.
const INTERVAL: Duration = Duration::from_secs(30);

/// Settles whenever a claim has seen that there is something to settle, until dropped.
pub(super) async fn settle(shared: Arc<Shared>) {
    let mut next_look = Instant::now() + INTERVAL.mul_f64(0.75 + fastrand::f64() / 2.0);
    loop {
        tokio::select! {
            () = shared.unsettled.notified() => {}
            () = sleep_until(next_look) => {
                next_look = Instant::now() + INTERVAL.mul_f64(0.75 + fastrand::f64() / 2.0);
                match shared.store.note_idle_keys(AT_ONCE).await {
                    Ok(0) => continue,
                    Ok(keys) => tracing::info!(keys, "ordering keys stood still"),
                    Err(error) => {
                        tracing::warn!(%error, "cannot look for ordering keys that stand still");
                        continue;
                    }
                }
            }
        }
        loop {
            match shared.store.settle(AT_ONCE).await {
                Ok(settled) => {
                    if settled > 0 {
                        shared.wake.notify_one();
                    }
                    if settled < AT_ONCE {
                        break;
                    }
                }
                Err(error) => {
                    // Whoever had the keys' locks has done it, or the next claim sees it again.
                    tracing::debug!(%error, "keyed jobs could not be settled");
                    sleep(Duration::from_millis(100)).await;
                    break;
                }
            }
        }
    }
}
