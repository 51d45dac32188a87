//! What the tests share: a database each, guests by name, runners in this process and as processes, waiting without sleeping.

pub(crate) mod bed;
pub(crate) mod caller;
pub(crate) mod copies;
pub(crate) mod db;
pub(crate) mod field;
pub(crate) mod guests;
pub(crate) mod large;
pub(crate) mod process;
pub(crate) mod relay;
pub(crate) mod server;

use std::future::Future;
use std::time::{Duration, Instant};

/// The longest that any test waits for anything.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);

/// Waits until `look` finds something.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut look: impl FnMut() -> F,
) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < LONGEST, "waited {LONGEST:?} for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
