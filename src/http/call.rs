//! One call and the counters of its session. A call is open from its start until its body has ended or nobody waits for it
//! any more; then it is ended once, whoever notices first, and everything that still works for it stops.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
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
    /// The time of all calls, each until its body's end.
    pub time: Duration,
}

/// The counters of a session.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    calls: AtomicU32,
    open: AtomicU32,
    sent: AtomicU64,
    received: AtomicU64,
    micros: AtomicU64,
}

impl Ledger {
    pub(super) fn usage(&self) -> Usage {
        Usage {
            calls: self.calls.load(Ordering::Relaxed),
            sent: self.sent.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
            time: Duration::from_micros(self.micros.load(Ordering::Relaxed)),
        }
    }
}

/// One call.
#[derive(Debug)]
pub(super) struct Call {
    ledger: Arc<Ledger>,
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
        ledger: &Arc<Ledger>,
        limits: &HttpLimits,
        plugin: &Arc<str>,
        session: &CancellationToken,
    ) -> Result<Arc<Self>, Error> {
        if !rise(&ledger.calls, limits.calls) {
            return Err(Error::Limit(format!(
                "the attempt has made the {} HTTP calls that it may make (`calls`)",
                limits.calls
            )));
        }
        if !rise(&ledger.open, limits.concurrent) {
            return Err(Error::Limit(format!(
                "{} HTTP calls are open, and more may not be at a time (`concurrent`): a call is open until its body was read \
                 or dropped",
                limits.concurrent
            )));
        }
        Ok(Arc::new(Self {
            ledger: ledger.clone(),
            plugin: plugin.clone(),
            token: session.child_token(),
            begun: Instant::now(),
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
        self.ledger.sent.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
        self.ledger.received.fetch_add(bytes, Ordering::Relaxed);
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
        let took = self.begun.elapsed();
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.ledger.micros.fetch_add(micros, Ordering::Relaxed);
        self.ledger.open.fetch_sub(1, Ordering::AcqRel);
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
            ms = micros / 1000,
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
