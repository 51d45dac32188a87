//! The program as a process: started, watched by its log, stopped, killed.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use piecework::job::JobId;
use rustix::process::{Pid, Signal, kill_process};

use super::db::Db;
use super::{LONGEST, until};

/// The settings of the field cases (lease 5 s, beat 1 s, sweep 1 s, stop grace 5 s, 4 slots, retry base 1 s). More lines
/// may follow: they are about `[defaults]`.
pub(crate) const SHORT: &str = "
[database]
call_timeout = '3s'
[runner]
slots = 4
lease = '5s'
beat = '1s'
reap_interval = '1s'
stop_grace = '5s'
[defaults]
retry_base = '1s'
";

/// A running `piecework run`, killed when dropped.
pub(crate) struct Host {
    child: Child,
    settings: PathBuf,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Host {
    /// Starts a runner on a database with a plugins folder; `settings` is the text of its runner.toml.
    pub(crate) fn start(db: &Db, plugins: &Path, settings: &str) -> Self {
        Self::start_on(db.url(), plugins, settings, &[])
    }

    /// The same on any address, with more arguments for `run`.
    pub(crate) fn start_on(url: &str, plugins: &Path, settings: &str, more: &[&str]) -> Self {
        let level = "info,piecework=debug,guest=debug,sqlx=warn";
        Self::start_logging(url, plugins, settings, more, level)
    }

    /// The same with a log of another level.
    pub(crate) fn start_logging(
        url: &str,
        plugins: &Path,
        settings: &str,
        more: &[&str],
        level: &str,
    ) -> Self {
        let file = plugins.join(format!("runner-{:08x}.toml", fastrand::u32(..)));
        std::fs::write(&file, settings).unwrap();
        let mut child = command()
            .args(["--log-format", "json", "--log-level", level, "--config"])
            .arg(&file)
            .args(["run", "--plugins"])
            .arg(plugins)
            .args(more)
            .env("DATABASE_URL", url)
            .env_remove("RUST_LOG")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (reader, into) = (BufReader::new(child.stderr.take().unwrap()), lines.clone());
        std::thread::spawn(move || {
            for line in reader.lines().map_while(Result::ok) {
                into.lock().unwrap().push(line);
            }
        });
        Self {
            child,
            settings: file,
            lines,
        }
    }

    /// Its settings file.
    pub(crate) fn settings(&self) -> &Path {
        &self.settings
    }

    /// Everything it has logged so far, one JSON object a line.
    pub(crate) fn log(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// How many log lines have this message.
    pub(crate) fn count(&self, message: &str) -> usize {
        let wanted = format!("\"message\":\"{message}\"");
        self.lines
            .lock()
            .unwrap()
            .iter()
            .filter(|line| line.contains(&wanted))
            .count()
    }

    /// Waits until this many log lines have this message: what a host logs is read a moment after it was done.
    pub(crate) async fn reaches(&self, message: &str, count: usize) {
        until(message, || async {
            (self.count(message) >= count).then_some(())
        })
        .await;
        assert_eq!(self.count(message), count, "{message}");
    }

    /// Its log records with this message.
    pub(crate) fn records(&self, message: &str) -> Vec<serde_json::Value> {
        let records = self
            .log()
            .into_iter()
            .filter_map(|line| serde_json::from_str(&line).ok());
        records
            .filter(|record: &serde_json::Value| record["message"] == message)
            .collect()
    }

    /// How many attempts at this job it has started.
    pub(crate) fn starts(&self, id: JobId) -> usize {
        let id = id.to_string();
        self.records("attempt started")
            .iter()
            .filter(|record| record["job"] == id)
            .count()
    }

    /// The id under which it registered last.
    pub(crate) fn runner(&self) -> i64 {
        self.records("runner registered").last().unwrap()["runner"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap()
    }

    /// Waits for a log line that contains this text.
    pub(crate) async fn says(&self, text: &str) -> String {
        until(text, || async {
            self.log().into_iter().find(|line| line.contains(text))
        })
        .await
    }

    /// Waits until it is registered and works.
    pub(crate) async fn ready(&self) {
        self.says("runner registered").await;
    }

    /// The most memory that it has had so far, in bytes, as the system counts it.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1));
        kib.unwrap().parse::<u64>().unwrap() * 1024
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// `kill -9`, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }

    /// Waits for its end.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(
                begun.elapsed() < LONGEST,
                "the host did not end; its log:\n{}",
                self.log().join("\n")
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!(
                "log of host {}:\n{}",
                self.child.id(),
                self.log().join("\n")
            );
        }
    }
}

/// The program.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_piecework"));
    // Not the cache of whoever runs the tests.
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command
}
