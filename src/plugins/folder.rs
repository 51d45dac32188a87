//! The plugins folder. It is compared by what the paths resolve to and by content, so that symlink swaps, renames and network file
//! systems work; a file that changes is taken once it has stopped changing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, Metadata, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::fs::OFlags;

use super::load::{Made, make, trusted};
use super::signature::{path_of, read_signature};
use super::{Plugin, PluginState, Source, State};
use crate::config::Config;
use crate::engine::{Engine, Refusal, digest, hex};
use crate::job::JobType;
use crate::store::LARGEST_COMPONENT;

/// A plugins folder and what was loaded from it.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    files: BTreeMap<String, File>,
    scanned: bool,
    /// How long a file must have stayed the same before it is taken.
    settle: Duration,
    /// Which file serves each job type.
    offered: HashMap<JobType, String>,
    /// The conflicts that a warning has been given of.
    warned: BTreeMap<String, Vec<String>>,
}

/// What the folder has under a name.
#[derive(Debug)]
struct Seen {
    path: PathBuf,
    fingerprint: Fingerprint,
    /// Why it cannot serve, whatever it contains.
    unfit: Option<String>,
}

/// Of the file, and of its signature if it has one.
type Fingerprint = (Stamp, Option<Stamp>);

/// Size, time of the last change of content or inode, inode and device: when these stay the same, so does the content, also
/// where a copy keeps the time of its original.
type Stamp = (u64, i64, i64, u64, u64);

#[derive(Debug)]
struct File {
    path: PathBuf,
    /// The job types that it is for.
    claims: Vec<String>,
    seen: Fingerprint,
    /// Since when it has been the same.
    since: Instant,
    /// It has been the same for long enough.
    steady: bool,
    /// It cannot serve, whatever it contains.
    unfit: bool,
    /// How often in a row its end was not there when it was taken: it is waited for longer.
    cut_off: u32,
    /// The fingerprint that `digest` and the outcome below belong to.
    loaded: Option<Fingerprint>,
    digest: [u8; 32],
    compile_ms: u64,
    cached: bool,
    /// Why the newest content does not serve.
    refused: Option<String>,
    /// The newest content that loaded.
    plugin: Option<Arc<Plugin>>,
}

/// A file to be loaded.
#[derive(Debug)]
pub(super) struct FileLoad {
    pub(super) name: String,
    path: PathBuf,
    fingerprint: Fingerprint,
    /// What serves.
    plugin: Option<Arc<Plugin>>,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct FileLoaded {
    name: String,
    fingerprint: Fingerprint,
    found: Found,
}

#[derive(Debug)]
enum Found {
    /// It changes under our hands.
    Moving,
    Unreadable(String),
    /// The content that serves already.
    Same([u8; 32]),
    Refused([u8; 32], Refusal),
    Fit(Made),
}

impl Folder {
    /// A folder, not looked at yet.
    ///
    /// # Errors
    /// When it is not there.
    pub(super) fn open(path: &Path, settle: Duration) -> anyhow::Result<Self> {
        if !path.is_dir() {
            anyhow::bail!(
                "the plugins folder `{}` is not there: create it and put the .wasm files of your handlers in, or set `plugins_folder` under `[runner]` in runner.toml",
                path.display()
            );
        }
        Ok(Self {
            path: path.into(),
            files: BTreeMap::new(),
            scanned: false,
            settle,
            offered: HashMap::new(),
            warned: BTreeMap::new(),
        })
    }

    /// Compares the folder with what is loaded, and loads nothing. Returns whether anything changed; what is gone serves no more.
    ///
    /// # Errors
    /// When the folder cannot be read; what serves goes on serving.
    pub(super) fn look(&mut self, config: &Config) -> anyhow::Result<bool> {
        let found = self.list()?;
        let now = Instant::now();
        let mut changed = self.files.len() != found.len();
        self.files.retain(|name, _| found.contains_key(name));
        for (name, seen) in found {
            let fingerprint = seen.fingerprint;
            let file = self.files.entry(name.clone()).or_insert_with(|| File {
                path: seen.path,
                claims: Vec::new(),
                since: now,
                // At the start nothing is being copied in; later a new file must stay the same for a while.
                seen: if self.scanned {
                    Fingerprint::default()
                } else {
                    fingerprint
                },
                steady: false,
                unfit: false,
                cut_off: 0,
                loaded: None,
                digest: [0; 32],
                compile_ms: 0,
                cached: false,
                refused: None,
                plugin: None,
            });
            let waited = file.waits();
            file.claims = config.plugin(&name).job_types;
            if let Some(reason) = seen.unfit {
                changed |= file.is_unfit(&name, fingerprint, reason);
                continue;
            }
            file.unfit = false;
            let same = file.seen == fingerprint;
            if !same {
                file.since = now;
            }
            file.seen = fingerprint;
            file.steady = same
                && (file.steady
                    || !self.scanned
                    || now.saturating_duration_since(file.since) >= file.settle(self.settle));
            changed |= file.waits() && !waited;
        }
        changed |= !std::mem::replace(&mut self.scanned, true);
        Ok(changed)
    }

    /// In what time the next look is worth it, when a file has been seen to change: it may be complete by then.
    pub(super) fn next_look(&self) -> Option<Duration> {
        let moving = self
            .files
            .values()
            .filter(|file| !file.steady && !file.unfit);
        let left = |file: &File| {
            file.settle(self.settle)
                .saturating_sub(file.since.elapsed())
        };
        moving.map(left).min()
    }

    /// The folders in which a change may be one of a file: this one, and those that links lead to.
    pub(super) fn places(&self) -> BTreeSet<PathBuf> {
        let files = self.files.values().map(|file| &file.path);
        let linked = files
            .filter(|path| path.is_symlink())
            .filter_map(|path| Some(fs::canonicalize(path).ok()?.parent()?.to_owned()));
        linked.chain(fs::canonicalize(&self.path).ok()).collect()
    }

    /// The files to be loaded now. Small ones first: the compiler may be at a large one for long.
    pub(super) fn loads(&self) -> impl Iterator<Item = FileLoad> {
        let mut loads: Vec<_> = self.files.iter().filter(|(_, file)| file.waits()).collect();
        loads.sort_by_key(|(_, file)| file.seen.0.0);
        loads.into_iter().map(|(name, file)| file.load(name))
    }

    /// Takes in what was loaded; returns whether anything changed for those who look.
    pub(super) fn put(&mut self, loaded: FileLoaded) -> bool {
        // It was removed meanwhile.
        let Some(file) = self.files.get_mut(&loaded.name) else {
            return false;
        };
        file.take(loaded)
    }

    /// The plugins that are loaded, each with its file.
    pub(super) fn loaded(&self) -> impl Iterator<Item = (&Arc<Plugin>, &PathBuf)> {
        let files = self.files.values();
        files.filter_map(|file| Some((file.plugin.as_ref()?, &file.path)))
    }

    /// Lets other plugins take their place, and what was refused be tried again.
    pub(super) fn swap(&mut self, swap: &dyn Fn(&mut Arc<Plugin>)) {
        for file in self.files.values_mut() {
            file.plugin.iter_mut().for_each(swap);
            if file.refused.is_some() {
                file.loaded = None;
            }
        }
    }

    /// How each file stands, but for what the fleet changes about it.
    pub(super) fn states(&self, config: &Config) -> Vec<PluginState> {
        let (conflicts, all) = (
            self.conflicts(File::has_loaded),
            self.conflicts(File::counts),
        );
        self.files
            .iter()
            .map(|(name, file)| {
                let job_types = config.plugin(name).job_types;
                let conflict = job_types.iter().find_map(|job_type| {
                    // A file that may turn out to be no good does not touch the one that serves.
                    let serves = self.offered.get(&JobType::from(job_type.as_str())) == Some(name);
                    let conflicts = if serves { &conflicts } else { &all };
                    let names = conflicts.get(job_type.as_str())?;
                    names.contains(&name.as_str()).then(|| {
                        format!("the job type `{job_type}` is claimed by {}: set `job_types` under `[plugins.NAME]`, or remove all but one", names.join(", "))
                    })
                });
                let (state, reason) = match (&file.refused, conflict) {
                    _ if file.waits() || file.is_new() => (State::Compiling, None),
                    (Some(reason), _) => (State::Refused, Some(reason.clone())),
                    (None, Some(reason)) => (State::Conflicting, Some(reason)),
                    (None, None) => (State::Serving, None),
                };
                let digest = hex(&file.digest);
                let serving = file.plugin.as_ref().map(|plugin| hex(&plugin.handler.digest()));
                PluginState {
                    source: Source::Folder,
                    name: name.clone(),
                    file: Some(file.path.clone()),
                    job_types,
                    size: file.seen.0.0,
                    state,
                    reason,
                    serving: serving.filter(|serving| *serving != digest),
                    digest,
                    since_seconds: 0.0,
                    in_flight: Vec::new(),
                    compile_ms: file.compile_ms,
                    cached: file.cached,
                }
            })
            .collect()
    }

    fn list(&self) -> anyhow::Result<BTreeMap<String, Seen>> {
        let mut found = BTreeMap::new();
        let entries = fs::read_dir(&self.path)
            .with_context(|| format!("read the plugins folder `{}`", self.path.display()))?;
        for entry in entries {
            let path = entry
                .with_context(|| format!("read the plugins folder `{}`", self.path.display()))?
                .path();
            let Some(stem) = path.file_stem() else {
                continue;
            };
            if path.extension().is_none_or(|extension| extension != "wasm")
                || stem.as_encoded_bytes().starts_with(b".")
            {
                continue;
            }
            let (name, mut unfit) = match stem.to_str() {
                Some(name) => (name.to_owned(), None),
                None => (
                    // With escapes, so that two such names stay two.
                    format!("{stem:?}").trim_matches('"').to_owned(),
                    Some("its name is not UTF-8; rename it".to_owned()),
                ),
            };
            // Follows links. What vanished between the two looks is gone; what cannot be looked at now is as it was.
            let seen = match fs::metadata(&path) {
                Ok(metadata) if metadata.is_file() => Some(fingerprint(&path, &metadata)),
                Ok(_) => None,
                Err(error)
                    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
                {
                    None
                }
                Err(error) => match self.files.get(&name) {
                    Some(file) if !file.unfit => Some(file.seen),
                    _ => {
                        unfit.get_or_insert_with(|| format!("it cannot be looked at: {error}"));
                        Some(Fingerprint::default())
                    }
                },
            };
            if let Some(fingerprint) = seen {
                let seen = Seen {
                    path,
                    fingerprint,
                    unfit,
                };
                found.insert(name, seen);
            }
        }
        Ok(found)
    }

    /// Job types that more than one of these files claims, with the files.
    fn conflicts(&self, counts: impl Fn(&File) -> bool) -> HashMap<&str, Vec<&str>> {
        let mut claims: HashMap<&str, Vec<&str>> = HashMap::new();
        for (name, file) in self.files.iter().filter(|(_, file)| counts(file)) {
            for job_type in file.claims() {
                claims.entry(job_type).or_default().push(name);
            }
        }
        claims.retain(|_, names| names.len() > 1);
        claims
    }

    /// What the folder has for each job type. Two files for one job type: the one that serves it stays, else neither serves. A file
    /// that is still to be loaded counts, so that it does not matter which of two new ones is loaded first.
    pub(super) fn offer(&mut self) -> HashMap<JobType, Arc<Plugin>> {
        let conflicts = self.conflicts(File::counts);
        let mut offer = HashMap::new();
        for plugin in self.files.values().filter_map(|file| file.plugin.as_ref()) {
            for job_type in &plugin.rules.job_types {
                let key = JobType::from(job_type.as_str());
                let incumbent = self.offered.get(&key) == Some(&plugin.name);
                if !conflicts.contains_key(job_type.as_str()) || incumbent {
                    offer.insert(key, plugin.clone());
                }
            }
        }
        self.offered = offer
            .iter()
            .map(|(job_type, plugin)| (job_type.clone(), plugin.name.clone()))
            .collect();
        self.warn();
        offer
    }

    /// Warns of conflicts between files that have loaded, once each.
    fn warn(&mut self) {
        let conflicts = self.conflicts(File::has_loaded).into_iter();
        let conflicts: BTreeMap<String, Vec<String>> = conflicts
            .map(|(job_type, names)| {
                let names = names.into_iter().map(str::to_owned).collect();
                (job_type.to_owned(), names)
            })
            .collect();
        for (job_type, names) in &conflicts {
            if self.warned.get(job_type) != Some(names) {
                let files = names.join(", ");
                let serves = self.offered.get(&JobType::from(job_type.as_str()));
                tracing::warn!(
                    job_type,
                    files,
                    serves,
                    "several plugins claim one job type"
                );
            }
        }
        self.warned = conflicts;
    }
}

fn fingerprint(path: &Path, metadata: &Metadata) -> Fingerprint {
    let signature = fs::metadata(path_of(path)).ok();
    (stamp(metadata), signature.as_ref().map(stamp))
}

impl File {
    /// It has stopped changing, and its content is not loaded.
    fn waits(&self) -> bool {
        self.steady && !self.unfit && self.loaded != Some(self.seen)
    }

    fn has_loaded(&self) -> bool {
        self.plugin.is_some()
    }

    /// Its claims count, so that what serves does not depend on which file is loaded first.
    fn counts(&self) -> bool {
        let may_load = self.refused.is_none() || self.loaded != Some(self.seen);
        self.has_loaded() || may_load && !self.unfit
    }

    fn claims(&self) -> &[String] {
        match &self.plugin {
            Some(plugin) => &plugin.rules.job_types,
            None => &self.claims,
        }
    }

    /// Nothing came of it yet.
    fn is_new(&self) -> bool {
        self.plugin.is_none() && self.refused.is_none()
    }

    /// For how long it must have stayed the same. A copy that stalls is asked less and less often, up to four times as long: a new
    /// version is to serve within 3 s of its last byte.
    fn settle(&self, usual: Duration) -> Duration {
        usual * (1 << self.cut_off.min(2))
    }

    /// It cannot serve, whatever it contains. Returns whether that is news.
    fn is_unfit(&mut self, name: &str, seen: Fingerprint, reason: String) -> bool {
        self.seen = seen;
        self.unfit = true;
        self.refuse(name, reason)
    }

    /// Keeps why the newest content does not serve, and warns if that is news; returns whether it is.
    fn refuse(&mut self, name: &str, reason: String) -> bool {
        let news = self.refused.as_ref() != Some(&reason);
        if news {
            self.warn_refused(name, &reason);
            self.refused = Some(reason);
        }
        news
    }

    fn warn_refused(&self, name: &str, reason: &str) {
        let keeps = self.has_loaded();
        tracing::warn!(plugin = name, reason, keeps, "plugin refused");
    }

    fn load(&self, name: &str) -> FileLoad {
        FileLoad {
            name: name.to_owned(),
            path: self.path.clone(),
            fingerprint: self.seen,
            plugin: self.plugin.clone(),
        }
    }

    /// Returns whether anything changed for those who look.
    fn take(&mut self, loaded: FileLoaded) -> bool {
        if matches!(loaded.found, Found::Moving) {
            // It must stay the same once more.
            self.steady = false;
            self.since = Instant::now();
            return true;
        }
        let before = self.loaded.replace(loaded.fingerprint);
        let cut_off = std::mem::take(&mut self.cut_off);
        match loaded.found {
            Found::Moving => {}
            Found::Unreadable(reason) => {
                self.refuse(&loaded.name, reason);
            }
            Found::Same(digest) => {
                self.digest = digest;
                self.refused = None;
            }
            Found::Refused(digest, refusal) => {
                self.digest = digest;
                let reason = refusal.to_string();
                if refusal.is_cut_off() {
                    self.cut_off = cut_off.saturating_add(1);
                }
                let grew = before.is_some_and(|before| before.0.0 < loaded.fingerprint.0.0);
                if cut_off > 0 && self.cut_off > 0 && grew {
                    // The same copy has stalled again.
                    tracing::debug!(plugin = loaded.name, "a copy is still not complete");
                } else {
                    self.warn_refused(&loaded.name, &reason);
                }
                self.refused = Some(reason);
            }
            Found::Fit(Made { plugin, compile_ms }) => {
                self.digest = plugin.handler.digest();
                self.compile_ms = compile_ms;
                self.cached = plugin.handler.cached();
                tracing::info!(
                    plugin = loaded.name,
                    version = plugin.handler.version(),
                    job_types = plugin.rules.job_types.join(","),
                    compile_ms,
                    cached = self.cached,
                    "plugin loaded"
                );
                self.plugin = Some(plugin);
                self.refused = None;
            }
        }
        true
    }
}

impl FileLoad {
    pub(super) fn run(self, engine: &Engine, config: &Config) -> FileLoaded {
        FileLoaded {
            found: self.find(engine, config),
            name: self.name,
            fingerprint: self.fingerprint,
        }
    }

    fn find(&self, engine: &Engine, config: &Config) -> Found {
        // Before any of it is in memory.
        let size = self.fingerprint.0.0;
        if size > LARGEST_COMPONENT as u64 {
            return Found::Unreadable(format!(
                "it has {size} bytes, the limit is {LARGEST_COMPONENT}: build it smaller"
            ));
        }
        let bytes = match self.read() {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Found::Moving,
            Err(error) => return Found::Unreadable(format!("it cannot be read: {error}")),
        };
        let rules = config.plugin(&self.name);
        if let Some(job_type) = rules.job_types.iter().find(|name| !JobType::fits(name)) {
            let (length, most) = (job_type.chars().count(), JobType::LONGEST);
            return Found::Unreadable(format!(
                "its name has {length} characters, and a job type {most} at most; rename it, or set `job_types` under `[plugins.NAME]` in runner.toml"
            ));
        }
        let digest = digest(&bytes);
        let found = read_signature(&self.path, &rules.trust).and_then(|signature| {
            let signature = signature.as_deref();
            let same = |plugin: &Arc<Plugin>| plugin.handler.digest() == digest;
            if self.plugin.as_ref().is_some_and(same) {
                // The same content may have another signature now.
                trusted(&bytes, signature, &rules)?;
                return Ok(Found::Same(digest));
            }
            let source = Source::Folder;
            make(engine, config, source, &self.name, &bytes, signature).map(Found::Fit)
        });
        found.unwrap_or_else(|refusal| Found::Refused(digest, refusal))
    }

    /// All of the file, unless it is another one by now or changes meanwhile.
    fn read(&self) -> std::io::Result<Option<Vec<u8>>> {
        // A pipe that has taken the file's place must not hold up the open.
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(&self.path)?;
        if stamp(&file.metadata()?) != self.fingerprint.0 {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let same = stamp(&file.metadata()?) == self.fingerprint.0;
        Ok((same && bytes.len() as u64 == self.fingerprint.0.0).then_some(bytes))
    }
}

fn stamp(metadata: &Metadata) -> Stamp {
    (
        metadata.len(),
        metadata.ctime(),
        metadata.ctime_nsec(),
        metadata.ino(),
        metadata.dev(),
    )
}
