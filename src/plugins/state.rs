//! How plugins stand, for people and programs.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// How a file of the folder, or a release of the fleet, stands on this runner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PluginState {
    /// Where it comes from.
    pub source: Source,
    /// The file's name without `.wasm`, or the job type of the release.
    pub name: String,
    /// The file; `None` for a release.
    pub file: Option<PathBuf>,
    /// What it serves, or would.
    pub job_types: Vec<String>,
    /// SHA-256 of the newest content, in hexadecimal digits.
    pub digest: String,
    /// Of the newest content, in bytes.
    pub size: u64,
    /// How it stands. What served before serves on while it is compiled, refused or conflicting.
    pub state: State,
    /// Why it does not serve.
    pub reason: Option<String>,
    /// SHA-256 of the content that serves, when that is not the newest.
    pub serving: Option<String>,
    /// How long it has stood like this, in seconds.
    pub since_seconds: f64,
    /// Attempts that run now, by the digest of their version.
    pub in_flight: Vec<(String, u64)>,
    /// What compiling took, or loading what was compiled before, in milliseconds.
    pub compile_ms: u64,
    /// Whether it had been compiled before.
    pub cached: bool,
}

/// Where a plugin comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A file of the plugins folder.
    Folder,
    /// A release of the fleet.
    Fleet,
}

/// How a plugin stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It runs jobs.
    Serving,
    /// It runs a share of the jobs, on trial.
    Canary,
    /// It is waited for, fetched, compiled or checked.
    Compiling,
    /// It cannot serve.
    Refused,
    /// Other files claim its job types as well.
    Conflicting,
    /// The fleet has a release for its job types, which goes first.
    Overridden,
}

impl State {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Canary => "canary",
            Self::Compiling => "compiling",
            Self::Refused => "refused",
            Self::Conflicting => "conflicting",
            Self::Overridden => "overridden",
        }
    }
}

/// As its name, so that it can be held against one.
impl PartialEq<&str> for State {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}
