//! The runner: claims jobs, runs them, confirms what they came to. The only module that knows both the database and the
//! guests, and the one that keeps them apart: no transaction and no connection is held while a guest runs.
//!
//! ```text
//!            control runtime                                   guest runtime (threads = cores)
//!   listen ─┐
//!   plugins ┼─ wake ─> dispatch ── claim ── spawn ───────────>  attempt: call, judge
//!   reaper ─┘             ^  └── finish + next claim <── ended ───┘
//!   lease (renews; lost: stops all guests, registers anew)
//! ```

use std::collections::HashMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::engine::{Engine, StopReason, Ties};
use crate::job::{ClaimToken, JobId, JobType, RunnerId};
use crate::plugins::{Plugin, PluginState, Registry, Shelf};
use crate::store::Store;
use crate::telemetry::Events;

mod appetite;
mod attempt;
mod checkpoints;
mod chores;
mod demand;
mod dispatch;
mod fleet;
mod keys;
mod lease;
mod marks;
mod outbox;
mod plugins;
mod quotas;
mod round;
mod schedules;
mod settings;
mod shares;
mod slots;
mod voids;

pub use settings::{ReadSettings, SettingsFile};

/// What is left for the last writes after the grace of a stop is over.
const LAST_WRITES: Duration = Duration::from_millis(400);

/// A runner that works in the background.
#[derive(Debug)]
pub struct Runner {
    shared: Arc<Shared>,
    dispatch: tokio::task::JoinHandle<bool>,
    chores: JoinSet<()>,
    /// Dropped, and its guests with it, when the runner is.
    _guests: Guests,
}

/// What the tasks of a runner share.
#[derive(Debug)]
struct Shared {
    config: ArcSwap<Config>,
    store: Store,
    engine: Engine,
    registry: Registry,
    /// How the plugins stand.
    plugins: Mutex<Vec<PluginState>>,
    /// That has changed: it is to be said to the database.
    restated: Notify,
    /// What the fleet wants to be served.
    wants: fleet::Wants,
    /// That may have changed: it is to be asked for.
    released: Notify,
    /// How canaries do.
    trials: fleet::Trials,
    events: Events,
    /// Who this runner is now; `None` while it has no lease.
    identity: watch::Sender<Option<RunnerId>>,
    /// The attempts that run now, by what fences them.
    running: Mutex<HashMap<(JobId, ClaimToken), Running>>,
    /// There may be something to claim.
    wake: Notify,
    /// A result was stale: the lease may be lost.
    doubt: Notify,
    /// Something was cancelled, or an attempt wrote in vain: look which attempts are void.
    suspicion: Notify,
    /// There are keyed jobs to settle.
    unsettled: Notify,
    /// The settings are to be read again now.
    reload: Notify,
    /// The schedules of the settings may have changed.
    rescheduled: Notify,
    /// Where attempts send what they want to be kept.
    checkpoints: checkpoints::Sender,
    /// LISTEN works.
    hears: std::sync::atomic::AtomicBool,
    /// When a call last failed whose claim may have been committed all the same.
    doubtful: Mutex<Option<tokio::time::Instant>>,
    /// No more claims.
    drain: CancellationToken,
    /// No more waiting for handlers.
    halt: CancellationToken,
}

/// A running attempt, for those who must reach it from outside.
#[derive(Debug)]
struct Running {
    runner: RunnerId,
    since: tokio::time::Instant,
    job_type: JobType,
    plugin: Arc<Plugin>,
    /// The revision of the release, while its job type has a canary.
    trial: Option<i64>,
    ties: Ties,
}

/// No chore ends by itself. Should one fail, the runner must not go on without it: without the lease's keeper, for one, its
/// handlers would outlive the lease.
struct ChoreEnd(&'static str, Arc<Shared>);

impl Drop for ChoreEnd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(
                chore = self.0,
                "a chore of the runner failed; the runner stops"
            );
            self.1.halt.cancel();
            self.1.drain.cancel();
        }
    }
}

/// The runtime of the guests. A runtime must not be dropped where async code runs, since it would wait; this one leaves what
/// still runs to end by itself.
#[derive(Debug)]
struct Guests(Option<tokio::runtime::Runtime>);

impl Guests {
    /// `threads` threads; 0 for one a core.
    fn start(threads: usize) -> std::io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let threads = if threads == 0 { cores } else { threads };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("guest")
            .enable_all()
            .build()?;
        Ok(Self(Some(runtime)))
    }

    fn handle(&self) -> tokio::runtime::Handle {
        self.0
            .as_ref()
            .expect("the runtime is taken only by drop")
            .handle()
            .clone()
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Shared {
    /// The settings as they are now. What must not change in the middle of something takes them once.
    fn config(&self) -> Arc<Config> {
        self.config.load_full()
    }

    fn running(&self) -> MutexGuard<'_, HashMap<(JobId, ClaimToken), Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends attempts from outside: all, or those of one identity.
    fn stop_running(&self, reason: StopReason, of: Option<RunnerId>) {
        for running in self
            .running()
            .values()
            .filter(|running| of.is_none_or(|runner| running.runner == runner))
        {
            running.ties.stop.now(reason);
        }
    }
}

impl Runner {
    /// [`start_with`](Self::start_with) settings that stay as they are.
    ///
    /// # Errors
    /// As there.
    pub async fn start(config: Config, store: Store) -> anyhow::Result<Self> {
        Box::pin(Self::start_with(config, store, None)).await
    }

    /// Loads the plugins, registers, and begins to work. What changes in the file of the settings is taken up while it works. The schema must be there (see [`Store::check_schema`]).
    ///
    /// # Errors
    /// When the plugins folder is missing, the engine does not start, or the database cannot be reached.
    pub async fn start_with(
        mut config: Config,
        store: Store,
        file: Option<SettingsFile>,
    ) -> anyhow::Result<Self> {
        config.open_secrets()?;
        let settings = &config.runner;
        let shelf = Shelf::of(settings)?;
        let engine = Engine::new(&config, settings.slots)?;
        let (checkpoints, saves) = checkpoints::channel();
        let shared = Arc::new(Shared {
            store,
            engine,
            registry: Registry::default(),
            plugins: Mutex::default(),
            restated: Notify::new(),
            wants: watch::channel(None).0,
            released: Notify::new(),
            trials: fleet::Trials::default(),
            events: Events::default(),
            identity: watch::channel(None).0,
            running: Mutex::default(),
            wake: Notify::new(),
            doubt: Notify::new(),
            suspicion: Notify::new(),
            unsettled: Notify::new(),
            reload: Notify::new(),
            rescheduled: Notify::new(),
            checkpoints,
            hears: false.into(),
            doubtful: Mutex::new(None),
            drain: CancellationToken::new(),
            halt: CancellationToken::new(),
            config: ArcSwap::from_pointee(config),
        });
        let loaded = plugins::load(&shared, shelf).await;
        let loaded = loaded.context("load the plugins")?;

        let guests = Guests::start(shared.config().engine.threads)
            .context("start the threads for guests")?;
        let mut chores = JoinSet::new();
        let registered = lease::register(&shared)
            .await
            .context("register the runner")?;
        let mut chore = |name: &'static str, work: Pin<Box<dyn Future<Output = ()> + Send>>| {
            let end = ChoreEnd(name, shared.clone());
            chores.spawn(async move {
                let _end = end;
                work.await;
            });
        };
        chore("lease", Box::pin(lease::keep(shared.clone(), registered)));
        chore("reaper", Box::pin(chores::reap(shared.clone())));
        chore(
            "progress",
            Box::pin(chores::report_progress(shared.clone())),
        );
        chore(
            "checkpoints",
            Box::pin(checkpoints::write(shared.clone(), saves)),
        );
        chore("cancels", Box::pin(voids::watch(shared.clone())));
        chore("keys", Box::pin(keys::settle(shared.clone())));
        chore("schedules", Box::pin(schedules::fire(shared.clone())));
        chore("housekeeping", Box::pin(chores::keep_house(shared.clone())));
        let (reload, reloads) = settings::channel();
        chore(
            "plugins",
            Box::pin(plugins::keep(shared.clone(), loaded, reloads)),
        );
        if let Some(file) = file {
            let watch = settings::watch(shared.clone(), file, reload);
            chore("settings", Box::pin(watch));
        }
        chore("reports", Box::pin(fleet::report(shared.clone())));
        if shared.config().runner.plugins_from.fleet() {
            chore("fleet", Box::pin(fleet::ask(shared.clone())));
            chore("canaries", Box::pin(fleet::judge(shared.clone())));
        }
        if shared.config().runner.listen {
            chore("listener", Box::pin(chores::listen(shared.clone())));
        }
        let dispatch = tokio::spawn(dispatch::run(shared.clone(), guests.handle()));
        Ok(Self {
            shared,
            dispatch,
            chores,
            _guests: guests,
        })
    }

    /// What happens in it.
    pub fn events(&self) -> &Events {
        &self.shared.events
    }

    /// The plugins and how they stand.
    pub fn plugins(&self) -> Vec<PluginState> {
        self.shared.plugins()
    }

    /// Who it is now; `None` while it has no lease.
    pub fn identity(&self) -> Option<RunnerId> {
        *self.shared.identity.borrow()
    }

    /// Takes no more jobs. Running handlers may go on for the configured grace; then they are stopped and their jobs handed
    /// back, with the attempt refunded.
    pub fn drain(&self) {
        self.shared.drain.cancel();
        self.shared.wake.notify_one();
    }

    /// Takes no more jobs and hands back what runs, now.
    pub fn halt(&self) {
        self.halter()();
    }

    /// Reads the settings again now, if they came from a file.
    pub fn reload(&self) {
        self.shared.reload.notify_one();
    }

    /// Waits until the runner takes no more jobs: it was told to, or its dispatcher ended by a fault of the host.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        self.shared.drain.clone().cancelled_owned()
    }

    /// [`halt`](Self::halt) for later, when [`join`](Self::join) has taken the runner.
    pub fn halter(&self) -> impl Fn() + Send + Sync + use<> {
        let shared = self.shared.clone();
        move || {
            shared.drain.cancel();
            shared.halt.cancel();
            shared.wake.notify_one();
        }
    }

    /// Waits for the end of a [`drain`](Self::drain) or [`halt`](Self::halt).
    pub async fn join(mut self) {
        let written = (&mut self.dispatch).await.unwrap_or_else(|error| {
            tracing::error!(%error, "the dispatcher failed; the jobs it ran are taken back when its lease ends");
            false
        });
        self.chores.shutdown().await;
        // A database that did not take the last results does not take this either.
        if let Some(runner) = self.identity().filter(|_| written) {
            let sign_off = self.shared.store.sign_off(runner, true);
            if !matches!(
                tokio::time::timeout(LAST_WRITES, sign_off).await,
                Ok(Ok(()))
            ) {
                tracing::warn!(%runner, "the database does not know that this runner ended; its lease runs out by itself");
            }
        }
    }

    /// The settings that hold now: a reload replaces them as a whole.
    pub fn settings(&self) -> Arc<Config> {
        self.shared.config()
    }

    /// The name of the plugins folder.
    pub fn plugins_folder(&self) -> PathBuf {
        self.shared.config().runner.plugins_folder.clone()
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.dispatch.abort();
        self.shared.stop_running(StopReason::HandBack, None);
    }
}
