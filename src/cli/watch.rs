//! `piecework dev --watch`: builds a project again whenever a file of it is saved, waits until the new version serves, and runs the
//! last job anew.
//!
//! The folder is looked at a few times a second: a project's own files are few, and a look misses nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::value::RawValue;

use super::{Misuse, print};
use crate::engine::{digest, hex};
use crate::store::{NewJob, Store};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);
/// Folders that hold no sources, beside hidden ones and those that .gitignore names.
const PRODUCTS: [&str; 5] = ["plugins", "build", "target", "node_modules", "__pycache__"];
/// Files that builds write among the sources.
const LOCKS: [&str; 3] = ["package-lock.json", "go.sum", "Cargo.lock"];

/// The project's files, and what tells that one has changed.
type Sources = BTreeMap<PathBuf, (Option<SystemTime>, u64)>;

/// A project that is being worked on.
#[derive(Debug)]
pub(super) struct Project {
    folder: PathBuf,
    plugins: PathBuf,
    ignored: BTreeSet<String>,
}

impl Project {
    /// The project in this folder, whose build puts components into `plugins`.
    pub(super) fn open(folder: &Path, plugins: &Path) -> anyhow::Result<Self> {
        let build = folder.join("build.sh");
        if !build.is_file() {
            return Err(Misuse(format!(
                "there is no `{}` to build with: give the folder of a project, such as `piecework new` lays out",
                build.display()
            ))
            .into());
        }
        let ignored = fs::read_to_string(folder.join(".gitignore")).unwrap_or_default();
        let ignored = ignored.lines().map(|line| line.trim().trim_matches('/'));
        Ok(Self {
            folder: folder.to_owned(),
            plugins: plugins.to_owned(),
            ignored: ignored
                .filter(|name| !name.is_empty() && !name.contains(['*', '/', '#', '!']))
                .map(str::to_owned)
                .collect(),
        })
    }

    /// Builds now and after each save, until dropped.
    pub(super) async fn watch(&self, store: &Store) -> anyhow::Result<Infallible> {
        loop {
            let built_from = self.sources();
            if let Err(error) = self.round(store, &built_from).await? {
                print::line(&format!("watch: {error}"))?;
            }
            // A save in the middle of the round has ended it already.
            while self.sources() == built_from {
                tokio::time::sleep(LOOK).await;
            }
            self.settled().await;
        }
    }

    /// A build, and a job by what it made. The inner error is the project's, or says that it was overtaken.
    async fn round(&self, store: &Store, sources: &Sources) -> anyhow::Result<Result<(), String>> {
        let before = self.components();
        let begun = Instant::now();
        print::line(&format!("watch: building {}", self.folder.display()))?;
        let Some((status, said)) = self.build(sources).await? else {
            return Ok(Err("saved again, building anew".to_owned()));
        };
        if !status.success() {
            for line in said.lines() {
                print::line(&print::plain(line))?;
            }
            return Ok(Err(format!(
                "the build failed ({status}); what served before serves on"
            )));
        }
        let took = begun.elapsed();
        let new: Vec<_> = self
            .components()
            .into_iter()
            .filter(|(name, digest)| before.get(name) != Some(digest))
            .collect();
        if new.is_empty() && !before.is_empty() {
            return Ok(Err(format!(
                "built in {took:.1?}: the component is the same"
            )));
        }
        for (name, digest) in new {
            print::line(&format!("watch: built {name} in {took:.1?}"))?;
            let job_types = match self.serves(store, &digest, sources).await? {
                Ok(job_types) => job_types,
                Err(reason) => return Ok(Err(format!("{name} does not serve: {reason}"))),
            };
            for job_type in job_types {
                self.again(store, &job_type, sources).await?;
            }
        }
        Ok(Ok(()))
    }

    /// Runs build.sh; none when a file was saved meanwhile.
    async fn build(&self, sources: &Sources) -> anyhow::Result<Option<(ExitStatus, String)>> {
        let log = std::env::temp_dir().join(format!("piecework-build-{}", std::process::id()));
        let output = File::create(&log).context("keep the build's output")?;
        let mut command = Command::new("./build.sh");
        command
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // With whatever it starts, to be ended together.
            .process_group(0);
        // The scripts of a project call `piecework`: this one, unless they are told of another.
        if std::env::var_os("PIECEWORK").is_none()
            && let Ok(program) = std::env::current_exe()
        {
            command.env("PIECEWORK", program);
        }
        let child = command
            .spawn()
            .with_context(|| format!("run `{}`", self.folder.join("build.sh").display()))?;
        let mut build = Build(child);
        let status = loop {
            if let Some(status) = build.0.try_wait()? {
                break Some(status);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            if self.sources() != *sources {
                break None;
            }
        };
        drop(build);
        let said = fs::read(&log).unwrap_or_default();
        let _ = fs::remove_file(&log);
        Ok(status.map(|status| (status, String::from_utf8_lossy(&said).trim_end().to_owned())))
    }

    /// Waits until a component serves on the runner here; returns its job types, or why it does not serve.
    async fn serves(
        &self,
        store: &Store,
        digest: &str,
        sources: &Sources,
    ) -> anyhow::Result<Result<Vec<String>, String>> {
        loop {
            let runners = store.runner_plugins().await?;
            let plugins = runners.into_iter().flat_map(|runner| runner.plugins);
            let plugin = plugins.filter(|plugin| plugin.digest == digest);
            for plugin in plugin {
                match plugin.state.as_str() {
                    "serving" => return Ok(Ok(plugin.job_types)),
                    "compiling" => {}
                    state => {
                        let reason = plugin.reason.unwrap_or_default();
                        return Ok(Err(format!("{state}: {reason}")));
                    }
                }
            }
            if self.sources() != *sources {
                return Ok(Err("saved again, building anew".to_owned()));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Runs the newest job of a type once more, with one attempt, and shows what came of it.
    async fn again(&self, store: &Store, job_type: &str, sources: &Sources) -> anyhow::Result<()> {
        let last = store.jobs_list(None, Some(job_type), 1).await?;
        let shown = match last.first() {
            Some(job) => store.job_show(job.id).await?,
            None => None,
        };
        let Some(shown) = shown else {
            return print::line(&format!(
                "watch: `{job_type}` serves; its first job is up to you: piecework enqueue {job_type} '{{...}}' --wait"
            ));
        };
        let last: Shown = serde_json::from_str(&shown).context("read the last job")?;
        let job = NewJob {
            job_type: job_type.to_owned(),
            payload: last.payload.get().to_owned(),
            max_attempts: Some(1),
            ..NewJob::default()
        };
        let id = store.enqueue(&job).await?;
        print::line(&format!(
            "watch: job {id}, again with {}",
            print::plain(last.payload.get())
        ))?;
        loop {
            let shown = store.job_show(id).await?;
            let job: Option<Shown> = shown
                .map(|shown| serde_json::from_str(&shown))
                .transpose()?;
            match job {
                Some(job) if !matches!(job.state.as_str(), "pending" | "running") => {
                    return job.print(id.0);
                }
                Some(_) => {}
                None => return print::line(&format!("watch: job {id} is gone")),
            }
            if self.sources() != *sources {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until the files stay the same from one look to the next.
    async fn settled(&self) {
        let mut before = self.sources();
        loop {
            tokio::time::sleep(LOOK).await;
            let now = self.sources();
            if now == before {
                return;
            }
            before = now;
        }
    }

    fn sources(&self) -> Sources {
        let mut sources = Sources::new();
        // What vanishes while it is looked at is not there.
        let _ = self.gather(&self.folder, &mut sources);
        sources
    }

    fn gather(&self, folder: &Path, sources: &mut Sources) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let product = PRODUCTS.contains(&name.as_str()) || LOCKS.contains(&name.as_str());
            if name.starts_with('.') || product || self.ignored.contains(&name) {
                continue;
            }
            // Through links: an SDK may be one.
            let Ok(metadata) = fs::metadata(entry.path()) else {
                continue;
            };
            if metadata.is_dir() && !entry.file_type()?.is_symlink() {
                self.gather(&entry.path(), sources)?;
            } else if metadata.is_file() {
                sources.insert(entry.path(), (metadata.modified().ok(), metadata.len()));
            }
        }
        Ok(())
    }

    /// The components in the plugins folder, by name, with their digests in hex.
    fn components(&self) -> BTreeMap<String, String> {
        let entries = fs::read_dir(&self.plugins).into_iter().flatten().flatten();
        let wasm = entries
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == "wasm"));
        wasm.filter_map(|path| {
            let name = path.file_stem()?.to_str()?.to_owned();
            Some((name, hex(&digest(&fs::read(&path).ok()?))))
        })
        .collect()
    }
}

/// A build that runs, with whatever it has started; ended when dropped.
struct Build(Child);

impl Drop for Build {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
            let _ = self.0.wait();
        }
    }
}

/// What `job_show` says of a job, as far as it is shown here.
#[derive(serde::Deserialize)]
struct Shown {
    state: String,
    payload: Box<RawValue>,
    result: Option<Box<RawValue>>,
    failure: Option<String>,
    last_error: Option<String>,
    output: Option<String>,
    run_us: Option<u64>,
}

impl Shown {
    fn print(&self, id: i64) -> anyhow::Result<()> {
        for line in self.output.iter().flat_map(|output| output.lines()) {
            print::line(&format!("  {}", print::plain(line)))?;
        }
        let took = Duration::from_micros(self.run_us.unwrap_or_default());
        print::line(&match (&self.failure, &self.result) {
            (Some(failure), _) => format!(
                "watch: job {id} {} in {took:?} ({failure}): {}",
                self.state,
                print::plain(self.last_error.as_deref().unwrap_or_default())
            ),
            (None, result) => format!(
                "watch: job {id} {} in {took:?}: {}",
                self.state,
                print::plain(result.as_ref().map_or("null", |result| result.get()))
            ),
        })
    }
}
