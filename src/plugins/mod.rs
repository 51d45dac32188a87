//! Which component serves which job type. The map is replaced whole, never changed: an attempt keeps the version that it
//! started with, and a file that does not load never displaces the version that serves.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use serde::Serialize;

use crate::config::PluginRules;
use crate::engine::{Grants, Handler};
use crate::job::JobType;

mod load;

pub use load::{Folder, Load, Loaded};

/// One loaded component with its rules.
#[derive(Debug)]
pub struct Plugin {
    /// The file's name without `.wasm`.
    pub name: String,
    /// Runs the jobs.
    pub handler: Handler,
    /// Retries, concurrency, and what the grants were made of.
    pub rules: PluginRules,
    /// Limits, HTTP and settings of its attempts.
    pub grants: Grants,
}

/// What serves now.
#[derive(Debug, Default)]
pub struct Registry {
    serving: ArcSwap<HashMap<JobType, Arc<Plugin>>>,
}

impl Registry {
    /// The plugin of a job type; the attempt that asks keeps it to its end.
    pub fn find(&self, job_type: &JobType) -> Option<Arc<Plugin>> {
        self.serving.load().get(job_type).cloned()
    }

    /// Everything that serves, as one consistent map.
    pub fn serving(&self) -> Arc<HashMap<JobType, Arc<Plugin>>> {
        self.serving.load_full()
    }

    /// The job types that are served, in order.
    pub fn job_types(&self) -> Vec<JobType> {
        let mut job_types: Vec<_> = self.serving.load().keys().cloned().collect();
        job_types.sort();
        job_types
    }

    fn replace(&self, serving: HashMap<JobType, Arc<Plugin>>) {
        self.serving.store(Arc::new(serving));
    }
}

/// How a file in the plugins folder stands.
#[derive(Clone, Debug, Serialize)]
pub struct FileState {
    /// The file.
    pub file: PathBuf,
    /// What it serves, or would.
    pub job_types: Vec<String>,
    /// SHA-256 of the newest content, in hexadecimal digits.
    pub digest: String,
    /// Of the newest content, in bytes.
    pub size: u64,
    /// `serving`, `compiling`, `refused` or `conflicting`. What served before serves on in each of them.
    pub state: &'static str,
    /// Why it does not serve.
    pub reason: Option<String>,
    /// What compiling took, or loading what was compiled before, in milliseconds.
    pub compile_ms: u64,
    /// Whether it had been compiled before.
    pub cached: bool,
}
