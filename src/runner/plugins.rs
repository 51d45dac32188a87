//! Keeps what serves up to date while everything runs.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::Context;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::Shared;
use super::settings::{Reload, Reloads};
use crate::config::Config;
use crate::engine::hex;
use crate::plugins::{Key, Load, Loaded, PluginState, Shelf, Source, State, refit};

/// How many things are loaded at once: two, so that one that takes the compiler minutes does not hold up the rest. The engine compiles
/// one at a time as long as it comes to an end.
const LANES: usize = 2;
/// How long a start waits for the files of the folder. What takes longer serves when it is ready; jobs of its types wait.
const START_PATIENCE: Duration = Duration::from_secs(5);

/// What was loaded, with the settings that it was made by.
type Made = (Loaded, Arc<Config>);

/// What is being loaded beside everything else.
#[derive(Debug, Default)]
pub(super) struct Loads {
    tasks: JoinSet<(Key, anyhow::Result<Made>)>,
    busy: HashSet<Key>,
}

impl Loads {
    /// Begins with what is next.
    fn begin(&mut self, shared: &Arc<Shared>, shelf: &Shelf) {
        while self.tasks.len() < LANES
            && let Some(load) = shelf.next_load(&self.busy)
        {
            tracing::debug!(plugin = load.name(), "a plugin is being loaded");
            let (key, run) = (load.key(), run(shared.clone(), load));
            self.busy.insert(key.clone());
            self.tasks.spawn(async move { (key, run.await) });
        }
    }

    /// Waits for one to be loaded; `None` where nothing is.
    async fn next(&mut self) -> Option<anyhow::Result<Made>> {
        Some(match self.tasks.join_next().await? {
            Ok((key, made)) => {
                self.busy.remove(&key);
                made
            }
            Err(error) => Err(error.into()),
        })
    }
}

impl Shared {
    /// Lets people see how the plugins stand.
    fn show(&self, shelf: &mut Shelf) {
        let states = shelf.states(&self.config());
        *self.plugins.lock().unwrap_or_else(PoisonError::into_inner) = states;
        self.restated.notify_one();
    }

    /// How the plugins stand, with the attempts that run now.
    pub(super) fn plugins(&self) -> Vec<PluginState> {
        let plugins = self.plugins.lock();
        let mut states = plugins.unwrap_or_else(PoisonError::into_inner).clone();
        // By file, or by job type of the release, and by version.
        let mut running: BTreeMap<(Source, String), BTreeMap<String, u64>> = BTreeMap::new();
        for attempt in self.running().values() {
            let plugin = &attempt.plugin;
            let name = match plugin.source {
                Source::Folder => plugin.name.clone(),
                Source::Fleet => attempt.job_type.as_str().to_owned(),
            };
            let versions = running.entry((plugin.source, name)).or_default();
            *versions.entry(hex(&plugin.handler.digest())).or_default() += 1;
        }
        let canaries: Vec<_> = states
            .iter()
            .filter(|state| state.state == State::Canary)
            .map(|state| (state.name.clone(), state.digest.clone()))
            .collect();
        for state in &mut states {
            let Some(versions) = running.get(&(state.source, state.name.clone())) else {
                continue;
            };
            // A canary has a line of its own.
            let other = canaries.iter().find(|(name, _)| *name == state.name);
            let other = other.filter(|_| state.source == Source::Fleet);
            state.in_flight = versions
                .iter()
                .filter(|(digest, _)| match other {
                    Some((_, canary)) => (**digest == *canary) == (state.state == State::Canary),
                    None => true,
                })
                .map(|(digest, count)| (digest.clone(), *count))
                .collect();
        }
        states
    }
}

/// Does work on a thread that nobody waits for at the end of the process, as a runtime would for its own.
pub(super) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> anyhow::Result<T> {
    let (done, outcome) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("plugins".to_owned())
        .spawn(move || done.send(work()))
        .context("start a thread for the plugins folder")?;
    outcome
        .await
        .context("the thread of the plugins folder failed")
}

/// The file system may tell of thousands of changes a second.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);

/// Notices what changes in the plugins folder. It is compiled beside that, while the rest of the folder is watched and what serves
/// goes on serving.
pub(super) async fn keep(
    shared: Arc<Shared>,
    (mut shelf, mut loads): (Shelf, Loads),
    mut reloads: Reloads,
) {
    // The folder has just been looked at.
    let hint = shelf.watch();
    let mut looked = Instant::now();
    let mut next_look = looked + shared.config().runner.plugins_interval.0;
    let mut wants = shared.wants.subscribe();
    // Why the folder cannot be read: said once, however long it lasts.
    let mut unreadable: Option<String> = None;
    loop {
        let changed = tokio::select! {
            Some(made) = loads.next() => {
                let Ok((loaded, config)) = made else { break };
                // What was made by settings that hold no more is made again.
                let holds = Arc::ptr_eq(&config, &shared.config());
                Ok(holds && shelf.put(loaded, &shared.registry))
            }
            Some(Reload { config, answer }) = reloads.recv() => {
                let Ok((back, outcome)) = take_up(&shared, shelf, config).await else { break };
                shelf = back;
                // The interval may have changed, and what was refused is tried again.
                next_look = Instant::now();
                let taken = outcome.is_ok();
                let _ = answer.send(outcome);
                Ok(taken)
            }
            Ok(()) = wants.changed() => {
                let wanted = wants.borrow_and_update().clone();
                Ok(shelf.want(wanted.unwrap_or_default(), &shared.registry))
            }
            () = hint.notified(), if next_look > looked + BETWEEN_LOOKS => {
                next_look = looked + BETWEEN_LOOKS;
                Ok(false)
            }
            () = sleep_until(next_look) => {
                let looker = shared.clone();
                // A folder on a network may take its time.
                let look = aside(move || {
                    let changed = shelf.look(&looker.config(), &looker.registry);
                    shelf.watch();
                    (shelf, changed)
                });
                let Ok((back, changed)) = look.await else { break };
                shelf = back;
                looked = Instant::now();
                tell_readable(&changed, &mut unreadable);
                let interval = shared.config().runner.plugins_interval.0;
                let wait = match changed {
                    Ok(_) => shelf.next_look().map_or(interval, |wait| wait.min(interval)),
                    Err(_) => interval,
                };
                next_look = looked + wait.max(Duration::from_millis(20));
                changed
            }
        };
        loads.begin(&shared, &shelf);
        if matches!(changed, Ok(true)) {
            shared.show(&mut shelf);
            tell_job_types(&shared).await;
        }
    }
    tracing::error!("the plugins folder is not watched any more: the loader failed");
}

/// Says when the folder cannot be read any more, and when it can again.
fn tell_readable(look: &anyhow::Result<bool>, unreadable: &mut Option<String>) {
    let error = look.as_ref().err().map(|error| format!("{error:#}"));
    match &error {
        Some(error) if unreadable.as_ref() != Some(error) => {
            tracing::warn!(error, "the plugins folder cannot be read");
        }
        None if unreadable.is_some() => tracing::info!("the plugins folder can be read again"),
        _ => {}
    }
    *unreadable = error;
}

/// Lets new settings hold, unless a plugin is against it. Compiles where fuel is switched on or off; the folder waits as long.
async fn take_up(
    shared: &Arc<Shared>,
    mut shelf: Shelf,
    config: Config,
) -> anyhow::Result<(Shelf, Result<(), String>)> {
    let mut refits = shelf.refits(&config);
    for refit in &mut refits {
        if let Some(digest) = refit.needs() {
            match shared.store.component(&digest).await {
                Ok(bytes) => refit.give(bytes),
                Err(error) => return Ok((shelf, Err(error.to_string()))),
            }
        }
    }
    let owner = shared.clone();
    aside(move || {
        let made = refit(&refits, &owner.engine).map(|refitted| {
            // Rules of plugins first: what reads both finds at worst newer ones there.
            shelf.commit(&refitted, &owner.registry);
            owner.config.store(Arc::new(config));
        });
        (shelf, made)
    })
    .await
}

/// Fetches what is to be loaded, if it is in the database, and loads it beside everything else.
async fn run(shared: Arc<Shared>, mut load: Load) -> anyhow::Result<Made> {
    let config = shared.config();
    if let Some(digest) = load.needs() {
        let bytes = shared.store.component(&digest).await;
        load.give(bytes.map_err(|error| error.to_string()));
    }
    aside(move || (load.run(&shared.engine, &config), config)).await
}

/// Loads what there is before the first claim: all that the fleet wants, since a runner that starts must not run older versions of its
/// folder for a moment, and of the folder what is ready in time.
pub(super) async fn load(shared: &Arc<Shared>, mut shelf: Shelf) -> anyhow::Result<(Shelf, Loads)> {
    let deadline = Instant::now() + START_PATIENCE;
    let looker = shared.clone();
    // A folder on a network may take its time.
    let look = aside(move || {
        shelf.look(&looker.config(), &looker.registry)?;
        anyhow::Ok(shelf)
    });
    let mut shelf = look.await??;
    if shared.config().runner.plugins_from.fleet() {
        match shared.store.wanted().await {
            Ok(wanted) => {
                shelf.want(wanted.clone(), &shared.registry);
                shared.wants.send_replace(Some(wanted));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot ask which plugins the fleet serves; it is asked again");
            }
        }
    }
    let mut loads = Loads::default();
    loop {
        loads.begin(shared, &shelf);
        let made = if shelf.awaits_release() {
            loads.next().await
        } else if let Ok(made) = timeout_at(deadline, loads.next()).await {
            made
        } else {
            tracing::info!("plugins are still being compiled; jobs of the others run meanwhile");
            break;
        };
        match made {
            Some(made) => shelf.put(made?.0, &shared.registry),
            None => break,
        };
    }
    shared.show(&mut shelf);
    Ok((shelf, loads))
}

/// Enqueue notifies the runners that say they serve the type, so it should be told soon.
async fn tell_job_types(shared: &Shared) {
    let runner = *shared.identity.borrow();
    if let Some(runner) = runner {
        let _ = shared
            .store
            .renew(
                runner,
                shared.config().runner.lease.0,
                &shared.registry.job_types(),
            )
            .await;
    }
    shared.wake.notify_one();
}
