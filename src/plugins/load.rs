//! From a folder to the serving map. The folder is compared by what the paths resolve to and by content, so that symlink
//! swaps, renames and network file systems work; a file that changes is taken once it has stopped changing.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;

use super::{FileState, Plugin, Registry};
use crate::config::Config;
use crate::engine::{Engine, digest, hex};
use crate::job::JobType;

/// A plugins folder and what was loaded from it.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    files: BTreeMap<String, File>,
    scanned: bool,
}

/// Size, time of the last change of content or inode, inode and device: when these stay the same, so does the content, also
/// where a copy keeps the time of its original.
type Fingerprint = (u64, i64, i64, u64, u64);

#[derive(Debug)]
struct File {
    path: PathBuf,
    seen: Fingerprint,
    /// The fingerprint that `digest` and the outcome below belong to.
    loaded: Option<Fingerprint>,
    digest: [u8; 32],
    compile_ms: u64,
    /// Why the newest content does not serve.
    refused: Option<String>,
    /// The newest content that loaded.
    plugin: Option<Arc<Plugin>>,
}

impl Folder {
    /// A folder, not looked at yet.
    ///
    /// # Errors
    /// When it is not there.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
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
        })
    }

    /// Compares the folder with what is loaded, compiles what is new, and replaces the serving map if anything changed.
    /// Returns whether it did. Compiles on this thread: seconds for a large component.
    ///
    /// # Errors
    /// When the folder cannot be read; what serves goes on serving.
    pub fn scan(
        &mut self,
        engine: &Engine,
        config: &Config,
        registry: &Registry,
    ) -> anyhow::Result<bool> {
        let found = self.list()?;
        let mut changed = self.files.len() != found.len();
        self.files.retain(|name, _| found.contains_key(name));
        for (name, (path, fingerprint)) in found {
            let file = self.files.entry(name.clone()).or_insert_with(|| File {
                path: path.clone(),
                // At the start nothing is being copied in; later a new file must stay the same for one interval.
                seen: if self.scanned {
                    (0, 0, 0, 0, 0)
                } else {
                    fingerprint
                },
                loaded: None,
                digest: [0; 32],
                compile_ms: 0,
                refused: None,
                plugin: None,
            });
            let steady = file.seen == fingerprint;
            file.seen = fingerprint;
            if steady && file.loaded != Some(fingerprint) {
                changed |= file.load(&name, fingerprint, engine, config);
            }
        }
        let first = !std::mem::replace(&mut self.scanned, true);
        if changed || first {
            registry.replace(self.serving(registry));
        }
        Ok(changed || first)
    }

    /// How each file stands.
    pub fn states(&self, config: &Config) -> Vec<FileState> {
        let conflicts = self.conflicts();
        self.files
            .iter()
            .map(|(name, file)| {
                let job_types = config.plugin(name).job_types;
                let conflict = job_types.iter().find_map(|job_type| {
                    let names = conflicts.get(job_type.as_str())?;
                    names.contains(&name.as_str()).then(|| {
                        format!("the job type `{job_type}` is claimed by {}: set `job_types` under `[plugins.NAME]`, or remove all but one", names.join(", "))
                    })
                });
                let (state, reason) = match (&file.refused, conflict) {
                    (Some(reason), _) => ("refused", Some(reason.clone())),
                    (None, Some(reason)) => ("conflicting", Some(reason)),
                    (None, None) => ("serving", None),
                };
                FileState {
                    file: file.path.clone(),
                    job_types,
                    digest: hex(&file.digest),
                    size: file.seen.0,
                    state,
                    reason,
                    compile_ms: file.compile_ms,
                }
            })
            .collect()
    }

    fn list(&self) -> anyhow::Result<BTreeMap<String, (PathBuf, Fingerprint)>> {
        let mut found = BTreeMap::new();
        let entries = fs::read_dir(&self.path)
            .with_context(|| format!("read the plugins folder `{}`", self.path.display()))?;
        for entry in entries {
            let path = entry
                .with_context(|| format!("read the plugins folder `{}`", self.path.display()))?
                .path();
            let Some(name) = path.file_stem().and_then(|name| name.to_str()) else {
                continue;
            };
            if path.extension().is_none_or(|extension| extension != "wasm") || name.starts_with('.')
            {
                continue;
            }
            // Follows links. What vanished between the two looks is gone.
            let Ok(metadata) = fs::metadata(&path) else {
                continue;
            };
            if metadata.is_file() {
                let fingerprint = (
                    metadata.len(),
                    metadata.ctime(),
                    metadata.ctime_nsec(),
                    metadata.ino(),
                    metadata.dev(),
                );
                found.insert(name.to_owned(), (path.clone(), fingerprint));
            }
        }
        Ok(found)
    }

    /// Job types that more than one file claims, with the files.
    fn conflicts(&self) -> HashMap<&str, Vec<&str>> {
        let mut claims: HashMap<&str, Vec<&str>> = HashMap::new();
        for (name, file) in &self.files {
            for job_type in file
                .plugin
                .iter()
                .flat_map(|plugin| &plugin.rules.job_types)
            {
                claims.entry(job_type).or_default().push(name);
            }
        }
        claims.retain(|_, names| names.len() > 1);
        claims
    }

    /// The new map. Two files for one job type: the one that serves it stays, else neither serves.
    fn serving(&self, registry: &Registry) -> HashMap<JobType, Arc<Plugin>> {
        let conflicts = self.conflicts();
        let before = registry.serving();
        let mut serving = HashMap::new();
        for plugin in self.files.values().filter_map(|file| file.plugin.as_ref()) {
            for job_type in &plugin.rules.job_types {
                let key = JobType::from(job_type.as_str());
                let incumbent = before
                    .get(&key)
                    .is_some_and(|served| served.name == plugin.name);
                if !conflicts.contains_key(job_type.as_str()) || incumbent {
                    serving.insert(key, plugin.clone());
                } else {
                    tracing::warn!(
                        job_type,
                        files = conflicts[job_type.as_str()].join(", "),
                        "several plugins claim one job type"
                    );
                }
            }
        }
        serving
    }
}

impl File {
    /// Loads the content; returns whether anything changed for those who look.
    fn load(
        &mut self,
        name: &str,
        fingerprint: Fingerprint,
        engine: &Engine,
        config: &Config,
    ) -> bool {
        let bytes = match fs::read(&self.path) {
            Ok(bytes) if bytes.len() as u64 == fingerprint.0 => bytes,
            // It changes under our hands: next time.
            Ok(_) => return false,
            Err(error) => {
                self.refused = Some(format!("it cannot be read: {error}"));
                return true;
            }
        };
        self.loaded = Some(fingerprint);
        let content = digest(&bytes);
        if self
            .plugin
            .as_ref()
            .is_some_and(|plugin| plugin.handler.digest() == content)
        {
            self.digest = content;
            return self.refused.take().is_some();
        }
        self.digest = content;
        let rules = config.plugin(name);
        let started = Instant::now();
        match engine.compile(&bytes, rules.limits.fuel.is_some()) {
            Ok(handler) => {
                self.compile_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
                tracing::info!(
                    plugin = name,
                    version = handler.version(),
                    job_types = rules.job_types.join(","),
                    compile_ms = self.compile_ms,
                    "plugin loaded"
                );
                self.plugin = Some(Arc::new(Plugin {
                    name: name.to_owned(),
                    handler,
                    grants: engine.grants(name, &rules),
                    rules,
                }));
                self.refused = None;
            }
            Err(refusal) => {
                tracing::warn!(plugin = name, reason = %refusal, keeps = self.plugin.is_some(), "plugin refused");
                self.refused = Some(refusal.to_string());
            }
        }
        true
    }
}
