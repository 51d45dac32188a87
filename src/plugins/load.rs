//! From bytes to a plugin: compiled, checked, with what the settings grant it. The same for files and for releases.

use std::sync::Arc;
use std::time::Instant;

use super::fleet::{ReleaseLoad, ReleaseLoaded};
use super::folder::{FileLoad, FileLoaded};
use super::{Plugin, Source};
use crate::config::{Config, PluginRules};
use crate::engine::{Engine, Handler, Refusal};
use crate::job::JobType;
use crate::store::Digest;
use crate::trust::{self, Trusted};

/// Something to be loaded: reading and compiling it need not hold up the rest.
#[derive(Debug)]
pub struct Load(pub(super) Origin<FileLoad, ReleaseLoad>);

/// What came of a [`Load`].
#[derive(Debug)]
pub struct Loaded(pub(super) Origin<FileLoaded, ReleaseLoaded>);

/// Tells what is being loaded from what may be loaded beside it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// A file, by its plugin's name.
    File(String),
    /// A release.
    Release(JobType, Digest),
}

/// Something of a file or of a release.
#[derive(Debug)]
pub(super) enum Origin<F, R> {
    File(F),
    Release(R),
}

impl Load {
    /// The plugin's name, or the job type of the release.
    pub fn name(&self) -> &str {
        match &self.0 {
            Origin::File(load) => &load.name,
            Origin::Release(load) => load.job_type.as_str(),
        }
    }

    /// What is loaded here.
    pub fn key(&self) -> Key {
        match &self.0 {
            Origin::File(load) => Key::File(load.name.clone()),
            Origin::Release(load) => Key::Release(load.job_type.clone(), load.version.digest),
        }
    }

    /// The component that it needs from the database, to be [`given`](Self::give) before it is run.
    pub fn needs(&self) -> Option<Digest> {
        match &self.0 {
            Origin::File(_) => None,
            Origin::Release(load) => Some(load.version.digest),
        }
    }

    /// Gives it what the database had: the bytes, nothing, or why it could not be asked.
    pub fn give(&mut self, bytes: Result<Option<Vec<u8>>, String>) {
        if let Origin::Release(load) = &mut self.0 {
            load.bytes = Some(bytes);
        }
    }

    /// Reads, compiles and checks it on this thread: seconds for a large component.
    pub fn run(self, engine: &Engine, config: &Config) -> Loaded {
        Loaded(match self.0 {
            Origin::File(load) => Origin::File(load.run(engine, config)),
            Origin::Release(load) => Origin::Release(load.run(engine, config)),
        })
    }
}

/// A plugin that can serve, and what compiling it took, in milliseconds.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) plugin: Arc<Plugin>,
    pub(super) compile_ms: u64,
}

/// Whether a component may serve as a plugin with these rules.
pub(super) fn trusted(
    bytes: &[u8],
    signature: Option<&str>,
    rules: &PluginRules,
) -> Result<Trusted, Refusal> {
    trust::check(bytes, signature, &rules.trust)
        .map_err(|distrust| Refusal::new(distrust.cause, distrust.remedy))
}

/// A component as this plugin: let in, compiled, and able to start. Runners and commands that check ask the same.
///
/// # Errors
/// Says why it cannot serve, and what to do.
pub fn vet(
    engine: &Engine,
    name: &str,
    rules: &PluginRules,
    bytes: &[u8],
    signature: Option<&str>,
) -> Result<(Handler, Trusted), Refusal> {
    // Before the compiler sees it, and before the cache is asked.
    let trusted = trusted(bytes, signature, rules)?;
    let handler = engine.compile(bytes, rules.limits.fuel.is_some())?;
    engine.check_start(name, &handler, rules)?;
    Ok((handler, trusted))
}

/// Makes a plugin of a component.
pub(super) fn make(
    engine: &Engine,
    config: &Config,
    source: Source,
    name: &str,
    bytes: &[u8],
    signature: Option<&str>,
) -> Result<Made, Refusal> {
    let rules = config.plugin(name);
    let started = Instant::now();
    let (handler, _) = vet(engine, name, &rules, bytes, signature)?;
    let compile_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let plugin = Plugin {
        source,
        name: name.to_owned(),
        signature: signature.map(str::to_owned),
        grants: engine.grants(name, &rules),
        handler: Arc::new(handler),
        rules,
    };
    Ok(Made {
        plugin: Arc::new(plugin),
        compile_ms,
    })
}
