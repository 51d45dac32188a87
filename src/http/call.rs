//! One call and the counters of its session. A call is open from its start until its body has ended or nobody waits for it
//! any more; then it is ended once, whoever notices first, and everything that still works for it stops.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::Error;
use crate::config::HttpLimits;

/// What the HTTP of an attempt has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Calls, the refused and failed ones too.
    pub calls: u32,
    /// Bytes sent: bodies, and roughly the heads.
    pub sent: u64,
    /// Bytes received: bodies as they came, and roughly the heads.
    pub received: u64,
    /// The time of all calls, each until its body's end; of an open one, until now.
    pub time: Duration,
}

/// The counters of a session.
#[derive(Debug)]
pub(super) struct Tally {
    calls: AtomicU32,
    sent: AtomicU64,
    received: AtomicU64,
    since: Instant,
    clock: Mutex<Clock>,
}

/// The time of a session's calls. That of the open ones is known without a list of them: each began so long after the
/// session, and all of them run.
#[derive(Debug, Default)]
struct Clock {
    open: u32,
    /// How long after the session the open calls began, in sum.
    begun: Duration,
    /// The time of the calls that have ended.
    ended: Duration,
}

impl Tally {
    pub(super) fn new() -> Self {
        Self {
            calls: AtomicU32::new(0),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            since: Instant::now(),
            clock: Mutex::default(),
        }
    }

    pub(super) fn usage(&self) -> Usage {
        let clock = self.clock();
        let open = self.since.elapsed().saturating_mul(clock.open);
        Usage {
            calls: self.calls.load(Ordering::Relaxed),
            sent: self.sent.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
            time: clock.ended + open.saturating_sub(clock.begun),
        }
    }

    /// Begins a call if fewer than `limit` are open.
    fn begin(&self, limit: u32) -> Option<Instant> {
        let mut clock = self.clock();
        if clock.open >= limit {
            return None;
        }
        let now = Instant::now();
        clock.open += 1;
        clock.begun += now - self.since;
        Some(now)
    }

    /// Ends a call, and says how long it was open.
    fn end(&self, begun: Instant) -> Duration {
        let mut clock = self.clock();
        let took = begun.elapsed();
        clock.open -= 1;
        clock.begun -= begun - self.since;
        clock.ended += took;
        took
    }

    fn clock(&self) -> MutexGuard<'_, Clock> {
        // Nothing that holds this lock can leave it half changed.
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One call.
#[derive(Debug)]
pub(super) struct Call {
    tally: Arc<Tally>,
    plugin: Arc<str>,
    /// Ends what works for this call; the session's end ends it too.
    pub(super) token: CancellationToken,
    begun: Instant,
    ended: AtomicBool,
    /// What was wrong with the request's body, which the client library only knows as "the body".
    fault: OnceLock<Error>,
    about: OnceLock<(String, String)>,
    status: AtomicU16,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Call {
    /// Opens a call if the limits have room for it.
    pub(super) fn open(
        tally: &Arc<Tally>,
        limits: &HttpLimits,
        plugin: &Arc<str>,
        session: &CancellationToken,
    ) -> Result<Arc<Self>, Error> {
        if !rise(&tally.calls, limits.calls) {
            return Err(Error::Limit(format!(
                "the attempt has made the {} HTTP calls that it may make (`calls`)",
                limits.calls
            )));
        }
        let Some(begun) = tally.begin(limits.concurrent) else {
            return Err(Error::Limit(format!(
                "{} HTTP calls are open, and more may not be at a time (`concurrent`): a call is open until its body was read \
                 or dropped",
                limits.concurrent
            )));
        };
        Ok(Arc::new(Self {
            tally: tally.clone(),
            plugin: plugin.clone(),
            token: session.child_token(),
            begun,
            ended: AtomicBool::new(false),
            fault: OnceLock::new(),
            about: OnceLock::new(),
            status: AtomicU16::new(0),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        }))
    }

    /// What the log says about the call: method and destination, never the path.
    pub(super) fn is_about(&self, method: &str, to: &impl ToString) {
        let _ = self.about.set((method.to_owned(), to.to_string()));
    }

    pub(super) fn answered(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    pub(super) fn sent(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
        self.tally.sent.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
        self.tally.received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Keeps the first fault of the request's body.
    pub(super) fn spoil(&self, error: Error) {
        let _ = self.fault.set(error);
    }

    /// The fault of the request's body, else what the connection said.
    pub(super) fn blame(&self, else_blame: impl FnOnce() -> Error) -> Error {
        self.fault.get().cloned().unwrap_or_else(else_blame)
    }

    /// Ends the call. Only the first time counts.
    pub(super) fn end(&self, outcome: &'static str) {
        if self.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        let took = self.tally.end(self.begun);
        self.token.cancel();
        let (method, to) = match self.about.get() {
            Some((method, to)) => (method.as_str(), to.as_str()),
            None => ("", ""),
        };
        tracing::debug!(
            target: super::LOG,
            plugin = &*self.plugin,
            method,
            destination = to,
            status = self.status.load(Ordering::Relaxed),
            sent = self.sent.load(Ordering::Relaxed),
            received = self.received.load(Ordering::Relaxed),
            ms = took.as_millis(),
            outcome,
            "http call"
        );
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.end("dropped");
    }
}

/// Adds one if that is within the limit.
fn rise(counter: &AtomicU32, limit: u32) -> bool {
    counter
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
            (count < limit).then(|| count + 1)
        })
        .is_ok()
}
