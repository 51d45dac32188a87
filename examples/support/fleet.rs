//! Runners as processes, and the database that they share.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// A database: one that was given, or a private server for the time of this value.
pub(crate) struct Database {
    pub(crate) url: String,
    server: Option<Child>,
}

impl Database {
    pub(crate) fn open(given: Option<String>, folder: &Path) -> Result<Self> {
        if let Some(url) = given {
            return Ok(Self { url, server: None });
        }
        let mut server = program()?
            .args(["dev", "--database-only", "--data"])
            .arg(folder)
            .stdout(Stdio::piped())
            .spawn()
            .context("start `piecework dev`")?;
        let said = server.stdout.take().context("its output")?;
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        let url = line.trim().strip_prefix("DATABASE_URL=").map(str::to_owned);
        Ok(Self {
            url: url.context("`piecework dev` did not say where its database is")?,
            server: Some(server),
        })
    }

    pub(crate) fn migrate(&self) -> Result<()> {
        let status = program()?
            .arg("migrate")
            .env("DATABASE_URL", &self.url)
            .stdout(Stdio::null())
            .status()?;
        ensure!(status.success(), "`piecework migrate` failed");
        Ok(())
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            end(server);
        }
    }
}

/// `piecework` as it was built together with this program; `PIECEWORK` may name another.
fn program() -> Result<Command> {
    let path = match std::env::var_os("PIECEWORK") {
        Some(path) => PathBuf::from(path),
        None => super::built()?.join("piecework"),
    };
    ensure!(
        path.exists(),
        "there is no {}: run cargo build first",
        path.display()
    );
    let mut command = Command::new(path);
    command.stdin(Stdio::null()).env_remove("DATABASE_URL");
    Ok(command)
}

/// Runners with the same settings on one database.
pub(crate) struct Fleet {
    url: String,
    settings: PathBuf,
    plugins: PathBuf,
    runners: Vec<Child>,
    kill_every: Option<Duration>,
    killed_at: Instant,
    pub(crate) kills: u32,
}

impl Fleet {
    pub(crate) fn start(
        size: usize,
        url: &str,
        settings: PathBuf,
        plugins: PathBuf,
        kill_every: Option<Duration>,
    ) -> Result<Self> {
        let mut fleet = Self {
            url: url.to_owned(),
            settings,
            plugins,
            runners: Vec::new(),
            kill_every,
            killed_at: Instant::now(),
            kills: 0,
        };
        for _ in 0..size {
            let runner = fleet.spawn()?;
            fleet.runners.push(runner);
        }
        Ok(fleet)
    }

    fn spawn(&self) -> Result<Child> {
        program()?
            .args(["--log-level", "error", "--config"])
            .arg(&self.settings)
            .args(["run", "--plugins"])
            .arg(&self.plugins)
            .env("DATABASE_URL", &self.url)
            .spawn()
            .context("start a runner")
    }

    /// Kills a runner with SIGKILL and starts another, if it is time.
    ///
    /// # Errors
    /// When one has ended by itself: its own error was printed.
    pub(crate) fn disturb(&mut self) -> Result<()> {
        for runner in &mut self.runners {
            if let Some(status) = runner.try_wait()? {
                bail!("a runner has ended by itself: {status}");
            }
        }
        if self
            .kill_every
            .is_none_or(|every| self.killed_at.elapsed() < every)
        {
            return Ok(());
        }
        self.killed_at = Instant::now();
        let victim = fastrand::usize(..self.runners.len());
        self.runners[victim].kill()?;
        self.runners[victim].wait()?;
        self.runners[victim] = self.spawn()?;
        self.kills += 1;
        Ok(())
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for runner in &mut self.runners {
            let _ = kill_process(Pid::from_child(runner), Signal::TERM);
        }
        for runner in &mut self.runners {
            end(runner);
        }
    }
}

fn end(child: &mut Child) {
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
    let _ = child.wait();
}
