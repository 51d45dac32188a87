//! The settings of a runner: the whole of `runner.toml`, with its defaults. Read once into rich types; no other module
//! parses settings, and each service takes its own section.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

mod layers;
mod load;
mod reload;
mod schedules;
mod secrets;
mod source;
mod trust;
mod units;

pub use layers::{
    Ceiling, HttpCeiling, HttpDefaults, HttpSettings, PluginDefaults, PluginSettings,
};
pub use load::Error;
pub use schedules::{Missed, Overlap, ScheduleSettings};
pub use secrets::{Hidden, Secret, SecretSettings};
pub use trust::{Key, Pins, Trust, TrustRules};
pub use units::{Size, Span};

use crate::backoff::Backoff;
use crate::policy::Policy;
use source::Source;

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
    /// What all HTTP calls of handlers share.
    pub http: Http,
    /// What holds for every plugin that does not say otherwise.
    pub defaults: PluginDefaults,
    /// What no plugin may exceed.
    pub ceiling: Ceiling,
    /// Which components may serve.
    pub trust: Trust,
    /// Secrets by name: `[secrets.NAME]`.
    pub secrets: BTreeMap<String, SecretSettings>,
    /// Single plugins by name: `[plugins.NAME]` is about `NAME.wasm`.
    pub plugins: BTreeMap<String, PluginSettings>,
    /// Jobs by the clock: `[schedules.NAME]`.
    pub schedules: BTreeMap<String, ScheduleSettings>,
    /// The program of this process, when it is `piecework`: it compiles large components in processes of their own. Without it they
    /// are compiled in this one.
    #[serde(skip)]
    pub program: Option<PathBuf>,
    /// The secrets' values, once [`open_secrets`](Self::open_secrets) has read them.
    #[serde(skip)]
    opened: BTreeMap<String, Secret>,
    /// The file that all this stands in.
    #[serde(skip)]
    source: Source,
}

/// `[database]`
#[derive(Clone, PartialEq, Serialize, Deserialize)]
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

/// Without the address, which may hold a password.
impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database")
            .field("connections", &self.connections)
            .field("connect_timeout", &self.connect_timeout)
            .field("call_timeout", &self.call_timeout)
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
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
    /// Where plugins are taken from.
    pub plugins_from: PluginsFrom,
    /// How often the folder, and what the fleet wants, are compared with what is loaded.
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
            plugins_from: PluginsFrom::Both,
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

/// Where a runner takes its plugins from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PluginsFrom {
    /// From its folder and from the fleet; where both serve a job type, the fleet goes first.
    Both,
    /// From its folder only.
    Folder,
    /// From the fleet only.
    Fleet,
}

impl PluginsFrom {
    /// Whether the fleet is asked.
    pub fn fleet(self) -> bool {
        self != Self::Folder
    }

    /// Whether the folder is looked at.
    pub fn folder(self) -> bool {
        self != Self::Fleet
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
    /// Call stack of an attempt.
    pub stack: Size,
    /// Linear memory of all attempts together; 0 for no limit.
    pub memory: Size,
    /// Accept components that need WebAssembly GC and exceptions (Kotlin, Dart, OCaml).
    pub gc: bool,
    /// Where compiled components are kept; empty for the usual place, `off` for nowhere.
    pub cache: PathBuf,
    /// Memory of the process that compiles a large component.
    pub compile_memory: Size,
    /// The longest that it may take.
    pub compile_timeout: Span,
}

impl Default for Engine {
    fn default() -> Self {
        Self {
            threads: 0,
            pooling: true,
            tick: Span::millis(5),
            stack: Size::kib(512),
            memory: Size(0),
            gc: false,
            cache: PathBuf::new(),
            compile_memory: Size::mib(2048),
            compile_timeout: Span::secs(300),
        }
    }
}

/// `[http]`: what all HTTP calls of handlers share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Certificates (PEM) that are trusted beside those of the system; empty for none.
    pub ca_file: PathBuf,
    /// How long a connection is kept for the next call.
    pub idle: Span,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            ca_file: PathBuf::new(),
            idle: Span::secs(30),
        }
    }
}

/// What holds for one plugin: its own settings over the defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginRules {
    /// The job types that the plugin serves.
    pub job_types: Vec<String>,
    /// Limits of an attempt.
    pub limits: Limits,
    /// HTTP calls.
    pub http: HttpRules,
    /// Which components may serve.
    pub trust: TrustRules,
    /// What the plugin reads from `wasi:config/store`.
    pub config: BTreeMap<String, String>,
    /// The secrets that are granted to it and have been opened.
    pub secrets: Vec<Secret>,
    /// Most jobs of one job type at once in this process.
    pub concurrency: Option<u32>,
    /// Limits of each job type over all runners.
    pub fleet: FleetLimits,
    /// How long retries wait.
    pub backoff: Backoff,
}

/// Limits of a job type that hold for all runners together; 0 for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetLimits {
    /// Jobs that run at once.
    pub running: u32,
    /// Jobs of one group that run at once.
    pub group_running: u32,
    /// Starts in any `per`.
    pub starts: u32,
    /// Starts of one group in any `per`.
    pub group_starts: u32,
    /// The interval of the starts.
    pub per: Duration,
}

impl FleetLimits {
    /// Whether anything is limited.
    pub fn any(&self) -> bool {
        self.counts_running() || self.starts > 0 || self.group_starts > 0
    }

    /// Whether running jobs are counted.
    pub fn counts_running(&self) -> bool {
        self.running > 0 || self.group_running > 0
    }
}

/// The limits of one attempt. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Wall clock.
    pub timeout: Duration,
    /// Computing time.
    pub cpu: Duration,
    /// Linear memory.
    pub memory: u64,
    /// Fuel, when the plugin has a budget.
    pub fuel: Option<u64>,
    /// Elements of one table.
    pub table_elements: usize,
    /// Core instances.
    pub instances: usize,
    /// What crosses between guest and host in one call.
    pub host_call: usize,
    /// Handles at once.
    pub handles: usize,
    /// Random bytes in one call.
    pub random: u64,
    /// The result.
    pub result: usize,
    /// The text of an error.
    pub error_text: usize,
    /// A progress message.
    pub progress: usize,
    /// All checkpoints together.
    pub checkpoint: usize,
    /// How often an attempt may save a checkpoint.
    pub checkpoint_saves: u32,
    /// Captured output.
    pub output: usize,
    /// Jobs that an attempt may enqueue.
    pub follow_ups: usize,
}

/// Where a plugin's HTTP calls may go, and their limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRules {
    /// Its own list.
    pub allow: Policy,
    /// The operator's list for all plugins.
    pub ceiling: Policy,
    /// Where its own list stands in the settings, for people.
    pub allow_at: String,
    /// Where the operator's list stands, for people.
    pub ceiling_at: String,
    /// Limits of an attempt's calls.
    pub limits: HttpLimits,
}

/// Limits of an attempt's HTTP calls. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// Calls in an attempt.
    pub calls: u32,
    /// Calls that are open at once.
    pub concurrent: u32,
    /// Body of an answer.
    pub response: u64,
    /// Body of a request.
    pub request: u64,
    /// All headers of a request or an answer.
    pub headers: u64,
    /// Name lookup, TCP and TLS together.
    pub connect_timeout: Duration,
    /// Until the head of the answer is there.
    pub first_byte_timeout: Duration,
    /// In all.
    pub timeout: Duration,
}

impl Config {
    /// The name of the plugin whose settings hold for a component that the fleet serves a job type with: the section whose `job_types`
    /// has it, else the one that is called like it, whether there is one or not.
    pub fn plugin_of<'a>(&'a self, job_type: &'a str) -> &'a str {
        let serves = |settings: &PluginSettings| {
            let types = settings.job_types.as_ref();
            types.is_some_and(|types| types.iter().any(|own| own == job_type))
        };
        self.plugins
            .iter()
            .find_map(|(name, settings)| serves(settings).then_some(name.as_str()))
            .unwrap_or(job_type)
    }

    /// What holds for the plugin of this name.
    pub fn plugin(&self, name: &str) -> PluginRules {
        let none = PluginSettings::default();
        let own = self.plugins.get(name).unwrap_or(&none);
        let all = self.defaults.under(own);
        let size = |size: Size| usize::try_from(size.0).unwrap_or(usize::MAX);
        let count = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
        PluginRules {
            job_types: own
                .job_types
                .clone()
                .unwrap_or_else(|| vec![name.to_owned()]),
            limits: Limits {
                timeout: all.timeout.0,
                cpu: Some(all.cpu.0)
                    .filter(|cpu| !cpu.is_zero())
                    .unwrap_or(all.timeout.0),
                memory: all.memory.0,
                fuel: Some(all.fuel).filter(|fuel| *fuel > 0),
                table_elements: count(all.table_elements),
                instances: count(all.instances),
                host_call: size(all.host_call),
                handles: count(all.handles),
                random: all.random.0,
                result: size(all.result),
                error_text: size(all.error_text),
                progress: size(all.progress),
                checkpoint: size(all.checkpoint),
                checkpoint_saves: all.checkpoint_saves,
                output: size(all.output),
                follow_ups: count(all.follow_ups),
            },
            http: self.http_rules(name, own, &all.http),
            trust: self.trust_rules(name),
            config: own.config.clone(),
            secrets: own
                .secrets
                .iter()
                .filter_map(|name| self.opened.get(name).cloned())
                .collect(),
            concurrency: Some(all.concurrency).filter(|limit| *limit > 0),
            fleet: FleetLimits {
                running: all.fleet_concurrency,
                group_running: all.group_concurrency,
                starts: all.starts,
                group_starts: all.group_starts,
                per: all.starts_per.0,
            },
            backoff: Backoff {
                base: all.retry_base.0,
                factor: all.retry_factor,
                max: all.retry_max.0,
                jitter: all.retry_jitter,
            },
        }
    }

    fn http_rules(&self, name: &str, own: &PluginSettings, http: &HttpDefaults) -> HttpRules {
        // A plugin without a list of its own is given one, rather than the list of all being widened.
        let inherits = own.http.allow.is_none() && !self.defaults.http.allow.0.is_empty();
        let allow_at = if inherits {
            self.source.place(&["defaults", "http", "allow"])
        } else {
            self.source.place(&["plugins", name, "http", "allow"])
        };
        HttpRules {
            allow: http.allow.clone(),
            ceiling: self.ceiling.http.allow.clone(),
            allow_at,
            ceiling_at: self.source.place(&["ceiling", "http", "allow"]),
            limits: HttpLimits {
                calls: http.calls,
                concurrent: http.concurrent,
                response: http.response.0,
                request: http.request.0,
                headers: http.headers.0,
                connect_timeout: http.connect_timeout.0,
                first_byte_timeout: http.first_byte_timeout.0,
                timeout: http.timeout.0,
            },
        }
    }
}
