//! A database, a plugins folder with the probe, and a runner in this process, for the field cases.

use std::io::Write as _;
use std::process::{Output, Stdio};

use piecework::config::{Config, Span};
use piecework::job::JobId;
use piecework::runner::Runner;
use piecework::store::NewJob;

use super::db::Db;
use super::guests::Folder;
use super::process::command;

pub(crate) struct Field {
    pub(crate) db: Db,
    pub(crate) folder: Folder,
}

impl Field {
    pub(crate) async fn new() -> Self {
        Self {
            db: Db::new().await,
            folder: Folder::with(&[("probe", "probe")]),
        }
    }

    /// Four slots and quick retries; everything else by default.
    pub(crate) fn config(&self) -> Config {
        let mut config = self.db.config(self.folder.path());
        config.runner.slots = 4;
        config.defaults.retry_base = Span::millis(20);
        config.defaults.retry_max = Span::millis(50);
        config
    }

    pub(crate) async fn start(&self) -> Runner {
        self.start_with(self.config()).await
    }

    pub(crate) async fn start_with(&self, config: Config) -> Runner {
        Runner::start(config, self.db.store.clone()).await.unwrap()
    }

    /// Waits for a job's end; the state it ended in.
    pub(crate) async fn ended(&self, id: JobId) -> String {
        super::until("the job's end", || async {
            let state = self.db.state(id).await;
            (state != "pending" && state != "running").then_some(state)
        })
        .await
    }

    pub(crate) async fn end(self, runner: Runner) {
        runner.halt();
        runner.join().await;
        self.db.drop().await;
    }
}

/// A job for the probe.
pub(crate) fn probe(payload: impl Into<String>) -> NewJob {
    NewJob {
        job_type: "probe".into(),
        payload: payload.into(),
        ..NewJob::default()
    }
}

/// The program with these arguments and this on its standard input, of which it may read as little as it likes.
pub(crate) fn piecework(url: &str, arguments: &[&str], input: &str) -> Output {
    let mut child = command()
        .args(arguments)
        .env("DATABASE_URL", url)
        .env_remove("RUST_LOG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may close the pipe before it has all.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// What it printed, of a command that went well.
#[track_caller]
pub(crate) fn printed(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned()
}

/// Exit code 2, and one line on standard error that holds these words.
#[track_caller]
pub(crate) fn misused(output: &Output, words: &[&str]) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    for word in words {
        assert!(error.contains(word), "no `{word}` in: {error}");
    }
    assert!(output.stdout.is_empty());
}
