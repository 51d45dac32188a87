//! One OS thread that makes computing guests yield and ends attempts whose time is over. It shares nothing with the async
//! runtimes, so no guest can delay it; while no attempt runs it sleeps.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

/// Why an attempt was ended from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Its wall-clock limit passed.
    Timeout,
    /// It computed longer than it may.
    CpuLimit,
    /// The runner stops: the job is handed back.
    HandBack,
    /// The runner lost its lease: the job may run elsewhere by now.
    LeaseLost,
    /// The job was cancelled.
    Cancelled,
}

impl StopReason {
    const ALL: [Self; 5] = [
        Self::Timeout,
        Self::CpuLimit,
        Self::HandBack,
        Self::LeaseLost,
        Self::Cancelled,
    ];
}

/// The switch that ends one attempt, wherever it is. The first reason counts.
#[derive(Debug, Default)]
pub struct Stop {
    reason: AtomicU8,
    asked: AtomicBool,
    token: CancellationToken,
}

impl Stop {
    /// Ends the attempt.
    pub fn now(&self, reason: StopReason) {
        let place = StopReason::ALL
            .iter()
            .position(|other| *other == reason)
            .unwrap_or_default();
        let code = u8::try_from(place + 1).unwrap_or(u8::MAX);
        let _ = self
            .reason
            .compare_exchange(0, code, Ordering::SeqCst, Ordering::SeqCst);
        self.token.cancel();
    }

    /// Asks the guest to end by itself: `jobs.cancelled` answers true from now on.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Why the attempt was ended, if it was.
    pub fn reason(&self) -> Option<StopReason> {
        let code = usize::from(self.reason.load(Ordering::SeqCst));
        StopReason::ALL.get(code.checked_sub(1)?).copied()
    }

    pub(super) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed) || self.reason().is_some()
    }

    pub(super) async fn stopped(&self) {
        self.token.cancelled().await;
    }
}

/// The thread and what it watches.
#[derive(Debug)]
pub(super) struct Ticker {
    shared: Arc<Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    engines: Vec<wasmtime::Engine>,
    calls: HashMap<u64, (Instant, Arc<Stop>)>,
    next: u64,
    ended: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("calls", &self.calls.len())
            .finish_non_exhaustive()
    }
}

/// Keeps a call watched until it is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    shared: Arc<Watched>,
    id: u64,
}

impl Ticker {
    /// Starts the thread.
    pub(super) fn start(tick: Duration) -> std::io::Result<Self> {
        let shared = Arc::new(Watched::default());
        let watched = shared.clone();
        std::thread::Builder::new()
            .name("ticker".into())
            .spawn(move || watched.run(tick))?;
        Ok(Self { shared })
    }

    /// Advances this engine's epoch too.
    pub(super) fn drive(&self, engine: wasmtime::Engine) {
        self.shared.lock().engines.push(engine);
    }

    /// Ends the call at `deadline`, unless the watch is dropped before.
    pub(super) fn watch(&self, deadline: Instant, stop: Arc<Stop>) -> Watch {
        let mut state = self.shared.lock();
        let id = state.next;
        state.next += 1;
        let idle = state.calls.is_empty();
        state.calls.insert(id, (deadline, stop));
        drop(state);
        if idle {
            self.shared.wake.notify_one();
        }
        Watch {
            shared: self.shared.clone(),
            id,
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.wake.notify_one();
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.lock().calls.remove(&self.id);
    }
}

impl Watched {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds this lock can leave it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, tick: Duration) {
        let mut state = self.lock();
        while !state.ended {
            if state.calls.is_empty() {
                state = self
                    .wake
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let now = Instant::now();
            for (deadline, stop) in state.calls.values() {
                if now >= *deadline {
                    stop.now(StopReason::Timeout);
                }
            }
            for engine in &state.engines {
                engine.increment_epoch();
            }
            drop(state);
            pause(tick);
            state = self.lock();
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this thread exists to sleep; nothing async runs on it"
)]
fn pause(tick: Duration) {
    std::thread::sleep(tick);
}
