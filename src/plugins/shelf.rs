//! Everything a runner may serve, and what of it serves: files of the folder and releases of the fleet. Where both have something for
//! a job type, the fleet goes first: what was pushed holds for every runner, whatever lies in the folders.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::fleet::Fleet;
use super::folder::Folder;
use super::hint::Hint;
use super::load::{Key, Origin};
use super::{Load, Loaded, Plugin, PluginState, Registry, Served, Source, State};
use crate::config::{self, Config};
use crate::engine::Engine;
use crate::job::JobType;
use crate::store::Wanted;

/// A file is taken once it has stayed the same for this long: a copy that pauses for longer is seen as it is in the pause.
const SETTLE: Duration = Duration::from_millis(400);

/// Where the plugins of a runner stand ready.
#[derive(Debug)]
pub struct Shelf {
    /// `None`: files are not looked for.
    folder: Option<Folder>,
    hint: Hint,
    fleet: Fleet,
    /// How each one stood when it was last looked at, and since when.
    stood: HashMap<Which, Stood>,
}

/// Source and name, and of a release the digest.
type Which = (Source, String, Option<String>);
/// State and digest, and since when.
type Stood = (State, String, Instant);

/// Says what to do about a folder that is missing.
///
/// # Errors
/// When it is not there.
pub fn require_folder(path: &Path) -> anyhow::Result<()> {
    Folder::open(path, SETTLE).map(drop)
}

impl Shelf {
    /// A folder, not looked at yet. A file that is the same at two looks is taken, however soon they follow each other.
    ///
    /// # Errors
    /// When it is not there.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        Ok(Self::with(Some(Folder::open(path, Duration::ZERO)?)))
    }

    fn with(folder: Option<Folder>) -> Self {
        Self {
            folder,
            hint: Hint::default(),
            fleet: Fleet::default(),
            stood: HashMap::new(),
        }
    }

    /// As the settings of a runner want it.
    ///
    /// # Errors
    /// When its folder is not there.
    pub fn of(settings: &config::Runner) -> anyhow::Result<Self> {
        if settings.plugins_from.folder() {
            let folder = Folder::open(&settings.plugins_folder, SETTLE)?;
            return Ok(Self::with(Some(folder)));
        }
        Ok(Self::with(None))
    }

    /// Compares the folder with what is loaded, loads what is new, and replaces the serving map if anything changed. Returns
    /// whether it did. Waits until all is compiled: seconds for a large component.
    ///
    /// # Errors
    /// When the folder cannot be read; what serves goes on serving.
    pub fn scan(
        &mut self,
        engine: &Engine,
        config: &Config,
        registry: &Registry,
    ) -> anyhow::Result<bool> {
        let Some(folder) = &mut self.folder else {
            return Ok(false);
        };
        let mut changed = folder.look(config)?;
        let loads: Vec<_> = folder.loads().collect();
        for load in loads {
            changed |= folder.put(load.run(engine, config));
        }
        if changed {
            self.publish(registry);
        }
        Ok(changed)
    }

    /// Compares the folder with what is loaded, and loads nothing: [`next_load`](Self::next_load) tells what is to be. Returns
    /// whether anything changed; what is gone serves no more.
    ///
    /// # Errors
    /// When the folder cannot be read; what serves goes on serving.
    pub fn look(&mut self, config: &Config, registry: &Registry) -> anyhow::Result<bool> {
        let Some(folder) = &mut self.folder else {
            return Ok(false);
        };
        let changed = folder.look(config)?;
        if changed {
            self.publish(registry);
        }
        Ok(changed)
    }

    /// In what time the next look is worth it, if a file was seen to change.
    pub fn next_look(&self) -> Option<Duration> {
        self.folder.as_ref().and_then(Folder::next_look)
    }

    /// Watches the folder and those that its links lead to. What is returned is notified when something may have changed there.
    pub fn watch(&mut self) -> Arc<Notify> {
        if let Some(folder) = &self.folder {
            self.hint.watch(&folder.places());
        }
        self.hint.told()
    }

    /// Takes in what the fleet wants now. Returns whether anything changed.
    pub fn want(&mut self, wanted: Vec<Wanted>, registry: &Registry) -> bool {
        let changed = self.fleet.want(wanted);
        if changed {
            self.publish(registry);
        }
        changed
    }

    /// What is to be loaded now, but for what is being loaded: what comes of that is to be [`put`](Self::put) back first.
    pub fn next_load(&self, busy: &HashSet<Key>) -> Option<Load> {
        // Releases first: they are few, and somebody waits who pushed them.
        let releases = self.fleet.loads().map(Origin::Release);
        let files = self.folder.iter().flat_map(Folder::loads);
        let mut loads = releases.chain(files.map(Origin::File)).map(Load);
        loads.find(|load| !busy.contains(&load.key()))
    }

    /// Whether a release is still to be loaded.
    pub fn awaits_release(&self) -> bool {
        self.fleet.loads().next().is_some()
    }

    /// Takes in what was loaded; returns whether anything changed for those who look.
    pub fn put(&mut self, loaded: Loaded, registry: &Registry) -> bool {
        let changed = match loaded.0 {
            Origin::File(loaded) => self
                .folder
                .as_mut()
                .is_some_and(|folder| folder.put(loaded)),
            Origin::Release(loaded) => self.fleet.put(loaded),
        };
        if changed {
            self.publish(registry);
        }
        changed
    }

    /// How everything stands, in order.
    pub fn states(&mut self, config: &Config) -> Vec<PluginState> {
        let now = Instant::now();
        let fleet = self.fleet.offer();
        let mut states = self.fleet.states();
        for mut file in self.folder.iter().flat_map(|folder| folder.states(config)) {
            let mut types = file.job_types.iter();
            let taken = types.find_map(|name| fleet.get_key_value(&JobType::from(name.as_str())));
            if let Some((job_type, served)) = taken.filter(|_| file.state == State::Serving) {
                file.state = State::Overridden;
                file.reason = Some(format!(
                    "the fleet serves `{job_type}` with version {}, which goes first: `piecework plugins withdraw {job_type}` ends that, or set `plugins_from = \"folder\"` under `[runner]` in runner.toml",
                    served.plugin.handler.version()
                ));
            }
            states.push(file);
        }
        let mut stood = HashMap::new();
        for state in &mut states {
            let release = state.file.is_none().then(|| state.digest.clone());
            let key = (state.source, state.name.clone(), release);
            let since = match self.stood.get(&key) {
                Some((before, digest, since))
                    if *before == state.state && *digest == state.digest =>
                {
                    *since
                }
                _ => now,
            };
            state.since_seconds = now.saturating_duration_since(since).as_secs_f64();
            stood.insert(key, (state.state, state.digest.clone(), since));
        }
        self.stood = stood;
        states
    }

    /// The plugins of files, each with its file.
    pub(super) fn files(&self) -> impl Iterator<Item = (&Arc<Plugin>, &PathBuf)> {
        self.folder.iter().flat_map(Folder::loaded)
    }

    /// The plugins of releases, each with its job type.
    pub(super) fn releases(&self) -> impl Iterator<Item = (&JobType, &Arc<Plugin>)> {
        self.fleet.loaded()
    }

    /// Lets other plugins take the place of those that are loaded, and what was refused be tried again.
    pub(super) fn swap(&mut self, swap: &dyn Fn(&mut Arc<Plugin>)) {
        if let Some(folder) = &mut self.folder {
            folder.swap(swap);
        }
        self.fleet.swap(swap);
    }

    pub(super) fn publish(&mut self, registry: &Registry) {
        let files = self.folder.as_mut().map(Folder::offer).unwrap_or_default();
        let mut serving: HashMap<JobType, Served> = files
            .into_iter()
            .map(|(job_type, plugin)| (job_type, plugin.into()))
            .collect();
        serving.extend(self.fleet.offer());
        registry.replace(serving);
    }
}
