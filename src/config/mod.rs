//! The settings of a runner: the whole of `runner.toml`, with its defaults. Read once into rich types; no other module
//! parses settings, and each service takes its own section.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

mod load;
mod units;

pub use load::Error;
pub use units::{Size, Span};

use crate::backoff::Backoff;

/// All settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The queue's database.
    pub database: Database,
    /// This process.
    pub runner: Runner,
    /// The WebAssembly engine.
    pub engine: Engine,
    /// What holds for every plugin that does not say otherwise.
    pub defaults: PluginDefaults,
    /// Single plugins by name: `[plugins.NAME]` is about `NAME.wasm`.
    pub plugins: BTreeMap<String, PluginSettings>,
}

/// `[database]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Database {
    /// Where the queue is; the environment's `DATABASE_URL` wins. Empty: `dev` and `demo` start a private PostgreSQL.
    pub url: String,
    /// Connections, whatever the number of slots; one more listens.
    pub connections: u32,
    /// Longest wait for a connection.
    pub connect_timeout: Span,
    /// Longest that one call to the database may take; well below the lease.
    pub call_timeout: Span,
    /// The private PostgreSQL's data folder; empty for the usual place.
    pub folder: PathBuf,
    /// The private PostgreSQL answers before a commit is on disk: faster, and a crash of the machine may lose the last jobs.
    pub fast: bool,
}

impl Default for Database {
    fn default() -> Self {
        Self {
            url: String::new(),
            connections: 4,
            connect_timeout: Span::secs(5),
            call_timeout: Span::secs(8),
            folder: PathBuf::new(),
            fast: false,
        }
    }
}

/// `[runner]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Runner {
    /// A name for people; empty for host name and process id.
    pub name: String,
    /// Most jobs that run at once in this process.
    pub slots: u32,
    /// The folder with the plugins.
    pub plugins_folder: PathBuf,
    /// How often the folder is compared with what is loaded.
    pub plugins_interval: Span,
    /// How long the runner's promise to be alive holds; its jobs are taken back when it ends.
    pub lease: Span,
    /// How often the promise is renewed; at most a third of the lease.
    pub beat: Span,
    /// How often any runner looks for runners that died.
    pub reap_interval: Span,
    /// Longest sleep between two looks at the table while LISTEN works.
    pub poll: Span,
    /// The same while it does not.
    pub poll_without_listen: Span,
    /// Wake up by LISTEN and NOTIFY. Switch it off behind a transaction pooler: polling remains.
    pub listen: bool,
    /// How long running handlers may go on after a stop signal.
    pub stop_grace: Span,
}

impl Default for Runner {
    fn default() -> Self {
        Self {
            name: String::new(),
            slots: 128,
            plugins_folder: "plugins".into(),
            plugins_interval: Span::secs(2),
            lease: Span::secs(20),
            beat: Span::secs(5),
            reap_interval: Span::secs(3),
            poll: Span::secs(5),
            poll_without_listen: Span::secs(1),
            listen: true,
            stop_grace: Span::secs(25),
        }
    }
}

/// `[engine]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Engine {
    /// Threads that run guests; 0 for one a core.
    pub threads: usize,
    /// Keep the memory of instances in a pool: three times faster per attempt. Falls back by itself where the system refuses.
    pub pooling: bool,
    /// How often a computing guest yields and its limits are checked.
    pub tick: Span,
    /// Accept components that need WebAssembly GC and exceptions (Kotlin, Dart, OCaml).
    pub gc: bool,
}

impl Default for Engine {
    fn default() -> Self {
        Self {
            threads: 0,
            pooling: true,
            tick: Span::millis(5),
            gc: false,
        }
    }
}

/// `[defaults]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PluginDefaults {
    /// Wall-clock limit of an attempt: computing, sleeping and host calls together.
    pub timeout: Span,
    /// Linear memory of an attempt, summed over all memories of the component.
    pub memory: Size,
    /// Fuel of an attempt, a repeatable work budget; 0 for none. It has its price: code up to 1.9 times slower.
    pub fuel: u64,
    /// Most jobs of a job type that run at once in this process; 0 for no limit but the slots.
    pub concurrency: u32,
    /// Delay after the first failed attempt.
    pub retry_base: Span,
    /// What each further attempt multiplies the delay by.
    pub retry_factor: f64,
    /// Longest delay.
    pub retry_max: Span,
    /// Share of the delay that is added at random, 0 to 1.
    pub retry_jitter: f64,
}

impl Default for PluginDefaults {
    fn default() -> Self {
        Self {
            timeout: Span::secs(30),
            memory: Size::mib(64),
            fuel: 0,
            concurrency: 0,
            retry_base: Span::secs(5),
            retry_factor: 2.0,
            retry_max: Span::secs(3600),
            retry_jitter: 0.2,
        }
    }
}

/// `[plugins.NAME]`: what is given here wins over `[defaults]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PluginSettings {
    /// The job types that the plugin serves; its name when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_types: Option<Vec<String>>,
    /// See [`PluginDefaults::timeout`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    /// See [`PluginDefaults::memory`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    /// See [`PluginDefaults::fuel`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fuel: Option<u64>,
    /// See [`PluginDefaults::concurrency`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// See [`PluginDefaults::retry_base`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_base: Option<Span>,
    /// See [`PluginDefaults::retry_factor`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_factor: Option<f64>,
    /// See [`PluginDefaults::retry_max`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_max: Option<Span>,
    /// See [`PluginDefaults::retry_jitter`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_jitter: Option<f64>,
}

/// What holds for one plugin: its own settings over the defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginRules {
    /// The job types that the plugin serves.
    pub job_types: Vec<String>,
    /// Limits of an attempt.
    pub limits: Limits,
    /// Most jobs of one job type at once in this process.
    pub concurrency: Option<u32>,
    /// How long retries wait.
    pub backoff: Backoff,
}

/// The limits of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Wall clock.
    pub timeout: Duration,
    /// Linear memory in bytes.
    pub memory: u64,
    /// Fuel, when the plugin has a budget.
    pub fuel: Option<u64>,
}

impl Config {
    /// What holds for the plugin of this name.
    pub fn plugin(&self, name: &str) -> PluginRules {
        let none = PluginSettings::default();
        let own = self.plugins.get(name).unwrap_or(&none);
        let defaults = &self.defaults;
        let or_zero = |value: u64| (value > 0).then_some(value);
        PluginRules {
            job_types: own
                .job_types
                .clone()
                .unwrap_or_else(|| vec![name.to_owned()]),
            limits: Limits {
                timeout: own.timeout.unwrap_or(defaults.timeout).0,
                memory: own.memory.unwrap_or(defaults.memory).0,
                fuel: or_zero(own.fuel.unwrap_or(defaults.fuel)),
            },
            concurrency: Some(own.concurrency.unwrap_or(defaults.concurrency))
                .filter(|limit| *limit > 0),
            backoff: Backoff {
                base: own.retry_base.unwrap_or(defaults.retry_base).0,
                factor: own.retry_factor.unwrap_or(defaults.retry_factor),
                max: own.retry_max.unwrap_or(defaults.retry_max).0,
                jitter: own.retry_jitter.unwrap_or(defaults.retry_jitter),
            },
        }
    }
}
