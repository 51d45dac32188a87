//! Everything a runner may serve, and what of it serves: the folder.

use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

use super::folder::Folder;
use super::load::Origin;
use super::{Load, Loaded, PluginState, Registry, Served, Source, State};
use crate::config::Config;
use crate::engine::Engine;
use crate::job::JobType;

/// Where the plugins of a runner stand ready.
#[derive(Debug)]
pub struct Shelf {
    folder: Folder,
    /// How each one stood when it was last looked at, and since when.
    stood: HashMap<(Source, String), (State, String, Instant)>,
}

/// Says what to do about a folder that is missing.
///
/// # Errors
/// When it is not there.
pub fn require_folder(path: &Path) -> anyhow::Result<()> {
    Folder::open(path).map(drop)
}

impl Shelf {
    /// A folder, not looked at yet.
    ///
    /// # Errors
    /// When it is not there.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            folder: Folder::open(path)?,
            stood: HashMap::new(),
        })
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
        let mut changed = self.folder.look()?;
        let loads: Vec<_> = self.folder.loads().collect();
        for load in loads {
            changed |= self.folder.put(load.run(engine, config));
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
    pub fn look(&mut self, registry: &Registry) -> anyhow::Result<bool> {
        let changed = self.folder.look()?;
        if changed {
            self.publish(registry);
        }
        Ok(changed)
    }

    /// What is to be loaded now. What comes of it is to be [`put`](Self::put) back before the next is asked for.
    pub fn next_load(&self) -> Option<Load> {
        self.folder
            .loads()
            .next()
            .map(|load| Load(Origin::File(load)))
    }

    /// Takes in what was loaded; returns whether anything changed for those who look.
    pub fn put(&mut self, loaded: Loaded, registry: &Registry) -> bool {
        let changed = match loaded.0 {
            Origin::File(loaded) => self.folder.put(loaded),
        };
        if changed {
            self.publish(registry);
        }
        changed
    }

    /// How everything stands, in order.
    pub fn states(&mut self, config: &Config) -> Vec<PluginState> {
        let now = Instant::now();
        let mut states = self.folder.states(config);
        let mut stood = HashMap::new();
        for state in &mut states {
            let key = (state.source, state.name.clone());
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

    fn publish(&mut self, registry: &Registry) {
        let serving: HashMap<JobType, Served> = self
            .folder
            .offer()
            .into_iter()
            .map(|(job_type, plugin)| (job_type, plugin.into()))
            .collect();
        registry.replace(serving);
    }
}
