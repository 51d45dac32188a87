//! How long a guest has computed: the time of the threads that polled it, while they did.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The computing time of one attempt, in nanoseconds. One thread at a time polls an attempt, so nothing here races.
#[derive(Debug, Default)]
pub(super) struct CpuClock {
    /// Of the polls that are over.
    spent: AtomicU64,
    /// The thread's time when the poll that runs now began.
    began: AtomicU64,
}

impl CpuClock {
    /// Of the polls that are over.
    pub(super) fn spent(&self) -> Duration {
        Duration::from_nanos(self.spent.load(Ordering::Relaxed))
    }

    /// Asked from within a poll, on its thread.
    pub(super) fn spent_now(&self) -> Duration {
        let running = thread_time().saturating_sub(self.began.load(Ordering::Relaxed));
        self.spent() + Duration::from_nanos(running)
    }
}

/// Work whose polls are timed.
pub(super) struct Timed<F: ?Sized> {
    pub(super) work: Pin<Box<F>>,
    pub(super) clock: Arc<CpuClock>,
}

impl<F: Future + ?Sized> Future for Timed<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let before = thread_time();
        self.clock.began.store(before, Ordering::Relaxed);
        let polled = self.work.as_mut().poll(context);
        let took = thread_time().saturating_sub(before);
        self.clock.spent.fetch_add(took, Ordering::Relaxed);
        polled
    }
}

/// The computing time of this thread, in nanoseconds.
fn thread_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}
