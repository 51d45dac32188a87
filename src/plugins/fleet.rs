//! Releases of the fleet: what the database says shall serve, and what was loaded of it on this runner.
//!
//! A version that is not loaded yet, or is refused, never displaces the one that serves.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::load::{Made, make};
use super::{Canary, Plugin, PluginState, Served, Source, State};
use crate::config::Config;
use crate::engine::{Engine, hex};
use crate::job::JobType;
use crate::store::{Digest, Version, Wanted};

/// Between two tries to fetch a component.
const AGAIN: Duration = Duration::from_secs(2);

/// What the fleet wants, and what of it is ready.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    releases: BTreeMap<JobType, Wanted>,
    versions: BTreeMap<(JobType, Digest), Loading>,
    /// What serves of each type, as long as the wanted version does not.
    serving: HashMap<JobType, Arc<Plugin>>,
}

/// A version of a job type on this runner.
#[derive(Debug)]
struct Loading {
    version: Version,
    outcome: Outcome,
}

#[derive(Debug)]
enum Outcome {
    /// It is to be fetched and compiled, from this moment on; why the last try failed.
    Waiting(Instant, Option<String>),
    Refused(String),
    Ready(Made),
}

/// A version to be loaded.
#[derive(Debug)]
pub(super) struct ReleaseLoad {
    pub(super) job_type: JobType,
    pub(super) version: Version,
    /// What the database gave for it.
    pub(super) bytes: Option<Fetched>,
}

/// The bytes of a component; `None`: the database has none; or why it could not be asked.
pub(super) type Fetched = Result<Option<Vec<u8>>, String>;

/// What came of it.
#[derive(Debug)]
pub(super) struct ReleaseLoaded {
    job_type: JobType,
    version: Version,
    found: Found,
}

#[derive(Debug)]
enum Found {
    /// Try again later.
    NotFetched(String),
    Refused(String),
    Fit(Made),
}

impl Fleet {
    /// Takes in what the database says now. Returns whether anything changed.
    pub(super) fn want(&mut self, wanted: Vec<Wanted>) -> bool {
        let releases: BTreeMap<_, _> = wanted
            .into_iter()
            .map(|wanted| (wanted.job_type.clone(), wanted))
            .collect();
        if releases == self.releases {
            return false;
        }
        let mut named = BTreeSet::new();
        for (job_type, wanted) in &releases {
            let canary = wanted.canary.as_ref().map(|(version, _)| version);
            let moved =
                self.releases.get(job_type).map(|before| before.revision) != Some(wanted.revision);
            for version in std::iter::once(&wanted.stable).chain(canary) {
                let key = (job_type.clone(), version.digest);
                let loading = self
                    .versions
                    .entry(key.clone())
                    .or_insert_with(|| Loading::new(version));
                // Somebody changed the release, its signature, or put back what was deleted: a refusal may be over.
                let ready = matches!(loading.outcome, Outcome::Ready(_));
                if loading.version != *version || moved && !ready {
                    let signed = loading.version.signature == version.signature;
                    loading.version = version.clone();
                    if !(ready && signed) {
                        loading.outcome = Outcome::Waiting(Instant::now(), None);
                    }
                }
                named.insert(key);
            }
        }
        self.versions.retain(|key, _| named.contains(key));
        self.serving
            .retain(|job_type, _| releases.contains_key(job_type));
        self.releases = releases;
        true
    }

    /// The versions to be loaded now, stable ones first.
    pub(super) fn loads(&self) -> impl Iterator<Item = ReleaseLoad> {
        let now = Instant::now();
        let mut loads: Vec<_> = self
            .versions
            .iter()
            .filter(|(_, loading)| matches!(loading.outcome, Outcome::Waiting(at, _) if at <= now))
            .map(|((job_type, _), loading)| ReleaseLoad {
                job_type: job_type.clone(),
                version: loading.version.clone(),
                bytes: None,
            })
            .collect();
        loads.sort_by_key(|load| self.is_canary(&load.job_type, &load.version.digest));
        loads.into_iter()
    }

    /// Takes in what was loaded; returns whether anything changed for those who look.
    pub(super) fn put(&mut self, loaded: ReleaseLoaded) -> bool {
        let ReleaseLoaded {
            job_type,
            version,
            found,
        } = loaded;
        let key = (job_type, version.digest);
        // Nobody wants it any more, or it is another signature by now.
        let Some(loading) = self
            .versions
            .get_mut(&key)
            .filter(|loading| loading.version == version)
        else {
            return false;
        };
        let job_type = key.0.as_str();
        loading.outcome = match found {
            Found::NotFetched(reason) => {
                if !matches!(&loading.outcome, Outcome::Waiting(_, Some(before)) if *before == reason)
                {
                    tracing::warn!(
                        job_type,
                        version = short(&version),
                        reason,
                        "a component of the fleet could not be fetched; it is tried again"
                    );
                }
                Outcome::Waiting(Instant::now() + AGAIN, Some(reason))
            }
            Found::Refused(reason) => {
                tracing::warn!(
                    job_type,
                    version = short(&version),
                    reason,
                    keeps = self.serving.contains_key(&key.0),
                    "release refused"
                );
                Outcome::Refused(reason)
            }
            Found::Fit(made) => {
                tracing::info!(
                    job_type,
                    version = short(&version),
                    compile_ms = made.compile_ms,
                    cached = made.plugin.handler.cached(),
                    "release loaded"
                );
                Outcome::Ready(made)
            }
        };
        true
    }

    /// What the fleet has for each job type: the wanted version if it is ready, else the one before.
    pub(super) fn offer(&mut self) -> HashMap<JobType, Served> {
        let mut offer = HashMap::new();
        for (job_type, wanted) in &self.releases {
            if let Some(ready) = self.ready(job_type, &wanted.stable.digest) {
                self.serving.insert(job_type.clone(), ready);
            }
            let Some(plugin) = self.serving.get(job_type).cloned() else {
                continue;
            };
            let canary = wanted.canary.as_ref().and_then(|(version, share)| {
                Some(Canary {
                    plugin: self.ready(job_type, &version.digest)?,
                    share: *share,
                    revision: wanted.revision,
                })
            });
            offer.insert(job_type.clone(), Served { plugin, canary });
        }
        offer
    }

    /// The plugins that are loaded, each with its job type.
    pub(super) fn loaded(&self) -> impl Iterator<Item = (&JobType, &Arc<Plugin>)> {
        let ready =
            self.versions
                .iter()
                .filter_map(|((job_type, _), loading)| match &loading.outcome {
                    Outcome::Ready(made) => Some((job_type, &made.plugin)),
                    Outcome::Waiting(..) | Outcome::Refused(_) => None,
                });
        ready.chain(&self.serving)
    }

    /// Lets other plugins take their place, and what was refused be tried again.
    pub(super) fn swap(&mut self, swap: &dyn Fn(&mut Arc<Plugin>)) {
        for loading in self.versions.values_mut() {
            match &mut loading.outcome {
                Outcome::Ready(made) => swap(&mut made.plugin),
                Outcome::Refused(_) => loading.outcome = Outcome::Waiting(Instant::now(), None),
                Outcome::Waiting(..) => {}
            }
        }
        self.serving.values_mut().for_each(swap);
    }

    /// How each version stands.
    pub(super) fn states(&self) -> Vec<PluginState> {
        let state = |((job_type, digest), loading): (&(JobType, Digest), &Loading)| {
            let canary = self.is_canary(job_type, digest);
            let (state, reason, made) = match &loading.outcome {
                Outcome::Waiting(_, reason) => (State::Compiling, reason.clone(), None),
                Outcome::Refused(reason) => (State::Refused, Some(reason.clone()), None),
                Outcome::Ready(made) if canary => (State::Canary, None, Some(made)),
                Outcome::Ready(made) => (State::Serving, None, Some(made)),
            };
            let serving = self.serving.get(job_type).filter(|_| !canary);
            PluginState {
                source: Source::Fleet,
                name: job_type.as_str().to_owned(),
                file: None,
                job_types: vec![job_type.as_str().to_owned()],
                digest: hex(digest),
                size: loading.version.size,
                state,
                reason,
                serving: serving
                    .map(|plugin| plugin.handler.digest())
                    .filter(|serving| serving != digest)
                    .map(|serving| hex(&serving)),
                since_seconds: 0.0,
                in_flight: Vec::new(),
                compile_ms: made.map_or(0, |made| made.compile_ms),
                cached: made.is_some_and(|made| made.plugin.handler.cached()),
            }
        };
        self.versions.iter().map(state).collect()
    }

    fn ready(&self, job_type: &JobType, digest: &Digest) -> Option<Arc<Plugin>> {
        match &self.versions.get(&(job_type.clone(), *digest))?.outcome {
            Outcome::Ready(made) => Some(made.plugin.clone()),
            Outcome::Waiting(..) | Outcome::Refused(_) => None,
        }
    }

    fn is_canary(&self, job_type: &JobType, digest: &Digest) -> bool {
        self.releases
            .get(job_type)
            .and_then(|wanted| wanted.canary.as_ref())
            .is_some_and(|(version, _)| version.digest == *digest)
    }
}

impl Loading {
    fn new(version: &Version) -> Self {
        Self {
            version: version.clone(),
            outcome: Outcome::Waiting(Instant::now(), None),
        }
    }
}

impl ReleaseLoad {
    pub(super) fn run(self, engine: &Engine, config: &Config) -> ReleaseLoaded {
        ReleaseLoaded {
            found: self.find(engine, config),
            job_type: self.job_type,
            version: self.version,
        }
    }

    fn find(&self, engine: &Engine, config: &Config) -> Found {
        let bytes = match &self.bytes {
            Some(Ok(Some(bytes))) => bytes,
            Some(Ok(None)) => {
                return Found::Refused(
                    "the database has no component of this digest: push it again".to_owned(),
                );
            }
            Some(Err(reason)) => return Found::NotFetched(reason.clone()),
            None => return Found::NotFetched("it was not fetched".to_owned()),
        };
        // Whoever can write to the table is not thereby believed: what runs is what the release names.
        if crate::engine::digest(bytes) != self.version.digest {
            return Found::Refused(
                "its bytes are not those of its digest: push it again".to_owned(),
            );
        }
        let job_type = self.job_type.as_str();
        let name = config.plugin_of(job_type);
        let signature = self.version.signature.as_deref();
        match make(engine, config, Source::Fleet, name, bytes, signature) {
            Ok(made) => Found::Fit(made),
            Err(refusal) => Found::Refused(refusal.to_string()),
        }
    }
}

fn short(version: &Version) -> String {
    hex(&version.digest[..6])
}
