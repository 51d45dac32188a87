//! What happens to jobs, as a stream for tests, benchmarks and the demo, and as counters for everybody. Sending costs
//! nothing while nobody listens.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::broadcast;

use crate::job::{FailureClass, JobId, JobType};

/// Something that happened in this process.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// An attempt began.
    Started {
        /// The job.
        id: JobId,
        /// Its type.
        job_type: JobType,
        /// Counted from 1.
        attempt: u32,
        /// When the handler was about to be called.
        at: Instant,
    },
    /// What an attempt came to is in the database.
    Finished {
        /// The job.
        id: JobId,
        /// Its type.
        job_type: JobType,
        /// Counted from 1.
        attempt: u32,
        /// Why it came to nothing, if it did.
        failure: Option<FailureClass>,
        /// True when the job runs again.
        again: bool,
        /// What the attempt took.
        run: std::time::Duration,
    },
    /// The result of an attempt was dropped: its job had been taken over.
    Stale {
        /// The job.
        id: JobId,
    },
    /// The runner lost its lease and stopped its guests.
    LeaseLost,
}

/// The stream and the counters.
#[derive(Debug)]
pub struct Events {
    sender: broadcast::Sender<Event>,
    /// Jobs claimed.
    pub claimed: AtomicU64,
    /// Jobs that ended well.
    pub done: AtomicU64,
    /// Jobs that failed for good.
    pub failed: AtomicU64,
    /// Attempts whose job runs again.
    pub again: AtomicU64,
    /// Attempts whose job was cancelled while they ran.
    pub cancelled: AtomicU64,
    /// Results that were dropped.
    pub stale: AtomicU64,
    /// Round trips that wrote results or asked for jobs.
    pub rounds: AtomicU64,
}

impl Default for Events {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            sender: broadcast::channel(65_536).0,
            claimed: zero(),
            done: zero(),
            failed: zero(),
            again: zero(),
            cancelled: zero(),
            stale: zero(),
            rounds: zero(),
        }
    }
}

impl Events {
    /// Hears everything from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.sender.subscribe()
    }

    /// Tells whoever listens; `event` is made only when somebody listens.
    pub(crate) fn tell(&self, event: impl FnOnce() -> Event) {
        if self.sender.receiver_count() > 0 {
            // Nobody listens any more: nothing is lost.
            let _ = self.sender.send(event());
        }
    }

    pub(crate) fn count(counter: &AtomicU64, more: usize) {
        counter.fetch_add(more as u64, Ordering::Relaxed);
    }
}
