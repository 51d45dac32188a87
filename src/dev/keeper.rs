//! The server's process, and the thread that waits for it.

use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// How long a fast shutdown may take (0.1 to 0.5 s measured on a busy machine) before an immediate one.
const FAST: Duration = Duration::from_secs(10);
/// How long an immediate shutdown may take. PostgreSQL itself gives its children 5 s before it kills them.
const IMMEDIATE: Duration = Duration::from_secs(10);

/// A running server and the thread that spawned it and waits for it. Dropped, it stops the server.
///
/// The thread is our own because the death signal fires at the end of the spawning *thread*, which for a caller on a
/// thread pool would be while the host still runs.
#[derive(Debug)]
pub(super) struct Keeper {
    pub(super) pid: Pid,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// It was ready once, so that its end is news.
    serving: bool,
    stopping: bool,
    ended: Option<ExitStatus>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keeper {
    pub(super) fn spawn(mut command: Command) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (started, outcome) = mpsc::channel();
        let theirs = Arc::clone(&shared);
        let body = move || {
            let spawned = command.spawn();
            drop(command);
            match spawned {
                Ok(child) => {
                    drop(started.send(Ok(Pid::from_child(&child))));
                    keep(child, &theirs);
                }
                Err(error) => drop(started.send(Err(error))),
            }
        };
        let thread = thread::Builder::new()
            .name("postgres".into())
            .spawn(body)
            .context("start a thread for the server")?;
        let pid = outcome
            .recv()
            .context("hear from the server's thread")?
            .context("run postgres")?;
        Ok(Self {
            pid,
            shared,
            thread: Some(thread),
        })
    }

    /// Waits for the end, at most so long; `None` while the server runs.
    pub(super) fn wait(&self, limit: Duration) -> Option<ExitStatus> {
        let state = self.shared.lock();
        let waited = self
            .shared
            .changed
            .wait_timeout_while(state, limit, |state| state.ended.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.ended
    }

    /// Notes that the server is ready: from now on an end that nobody asked for is logged.
    pub(super) fn serving(&self) {
        self.shared.lock().serving = true;
    }

    /// Stops the server: fast (open connections are closed, a checkpoint is written), then immediate.
    pub(super) fn stop(&mut self) -> anyhow::Result<()> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        self.signal(Signal::INT)?;
        if self.wait(FAST).is_none() {
            tracing::warn!(pid = %self.pid, "the private PostgreSQL server is slow to stop, and will recover at its next start");
            self.signal(Signal::QUIT)?;
            if self.wait(IMMEDIATE).is_none() {
                bail!(
                    "the private PostgreSQL server (pid {}) does not stop",
                    self.pid
                );
            }
        }
        if thread.join().is_err() {
            bail!("the private PostgreSQL server's thread panicked");
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let mut state = self.shared.lock();
        state.stopping = true;
        // Under the lock, because the thread reaps under it: until then the pid cannot belong to anybody else.
        if state.ended.is_none() {
            kill_process(self.pid, signal).context("signal the private PostgreSQL server")?;
        }
        Ok(())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::error!("{error:#}");
        }
    }
}

fn keep(mut child: Child, shared: &Shared) {
    let pid = Pid::from_child(&child);
    // NOWAIT leaves the zombie, and with it the pid, in place until the lock is held.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while waitid(WaitId::Pid(pid), options).is_err_and(|error| error == rustix::io::Errno::INTR) {}
    let mut state = shared.lock();
    let status = child.wait().unwrap_or_default();
    if state.serving && !state.stopping {
        tracing::error!(%pid, %status, "the private PostgreSQL server ended by itself");
    }
    state.ended = Some(status);
    shared.changed.notify_all();
}

/// `true` when a process with this id exists, be it another user's or a zombie.
pub(super) fn exists(pid: Pid) -> bool {
    rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH)
}

/// Lets `duration` pass, or less: good enough between two looks at something.
pub(super) fn pause(duration: Duration) {
    thread::park_timeout(duration);
}
