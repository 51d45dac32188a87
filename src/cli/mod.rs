//! The commands. Each is a struct with its arguments (whose comments are the help text) and a `run`.
//!
//! Exit codes: 0 done, 1 failed, 2 bad usage or configuration.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::{self, Config};
use crate::dev::Cluster;
use crate::store::{self, Store};
use crate::telemetry::{self, LogFormat};

mod batch;
mod bench;
mod check;
mod compile;
mod componentize;
mod demo;
mod dev;
mod enqueue;
mod fleet;
mod invoke;
mod jobs;
mod listing;
mod migrate;
mod new;
mod plugins;
mod print;
mod queue;
mod retention;
mod run;
mod schedules;
mod status;
mod watch;

/// A job runner on PostgreSQL whose handlers are WebAssembly components.
#[derive(Debug, Parser)]
#[command(name = "piecework", version, max_term_width = 100)]
pub struct Cli {
    /// The settings file; `runner.toml` in the current folder when not given and there
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How log records on standard error look
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        env = "PIECEWORK_LOG_FORMAT"
    )]
    log_format: LogFormat,
    /// What is logged when RUST_LOG does not say: error, warn, info, debug, trace [default: info for run and dev, else warn]
    #[arg(long, global = true, value_name = "LEVEL")]
    log_level: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    Dev(dev::Dev),
    Demo(demo::Demo),
    Migrate(migrate::Migrate),
    Enqueue(enqueue::Enqueue),
    EnqueueBatch(batch::EnqueueBatch),
    Publish(queue::Publish),
    Jobs(jobs::Jobs),
    Pause(queue::Pause),
    Resume(queue::Resume),
    Topics(queue::Topics),
    Retention(retention::Retention),
    Schedules(schedules::Schedules),
    Plugins(plugins::Plugins),
    New(new::New),
    Invoke(invoke::Invoke),
    Componentize(componentize::Componentize),
    Status(status::Status),
    Bench(bench::Bench),
    #[command(hide = true)]
    CompileComponent(compile::CompileComponent),
}

/// How a command ended, when it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Done,
    /// It did its work, and the answer is no: a job that failed, a plugin that is refused.
    Failed,
}

/// Wrong usage or configuration: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Misuse(String);

/// Parses the command line, runs the command, prints the error, and returns the exit code.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors.
            let code = u8::from(error.use_stderr()) * 2;
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let chatty = matches!(cli.command, Command::Run(_) | Command::Dev(_));
    let level = cli
        .log_level
        .clone()
        .unwrap_or_else(|| if chatty { "info" } else { "warn" }.into());
    telemetry::init(cli.log_format, &level);
    match cli.run() {
        Ok(Ending::Done) => ExitCode::SUCCESS,
        Ok(Ending::Failed) => ExitCode::FAILURE,
        Err(error) => {
            use std::io::Write as _;
            let _ = writeln!(
                std::io::stderr(),
                "error: {}",
                print::plain(&format!("{error:#}"))
            );
            ExitCode::from(code(&error))
        }
    }
}

fn code(error: &anyhow::Error) -> u8 {
    let misuse = error.is::<Misuse>()
        || error.is::<config::Error>()
        || matches!(
            error.downcast_ref::<store::Error>(),
            Some(store::Error::Schema(_) | store::Error::Denied(_))
        );
    if misuse { 2 } else { 1 }
}

impl Cli {
    fn run(self) -> anyhow::Result<Ending> {
        // Where the child runs there may be anybody's settings, which are not its parent's.
        if let Command::CompileComponent(command) = self.command {
            return command.run();
        }
        // Nor do these heed any.
        if let Command::New(command) = &self.command {
            return command.run();
        }
        if let Command::Componentize(command) = &self.command {
            return command.run();
        }
        let mut config = Config::load(self.config.as_deref())?;
        config.program = compile::own_program();
        match self.command {
            Command::Run(command) => command.run(config),
            Command::Dev(command) => command.run(config),
            Command::Demo(command) => command.run(config),
            Command::Migrate(command) => command.run(&config),
            Command::Enqueue(command) => command.run(&config),
            Command::EnqueueBatch(command) => command.run(&config),
            Command::Publish(command) => command.run(&config),
            Command::Jobs(command) => command.run(&config),
            Command::Pause(command) => command.run(&config),
            Command::Resume(command) => command.run(&config),
            Command::Topics(command) => command.run(&config),
            Command::Retention(command) => command.run(&config),
            Command::Schedules(command) => command.run(&config),
            Command::Plugins(command) => command.run(&config),
            Command::New(command) => command.run(),
            Command::Invoke(command) => command.run(&config),
            Command::Componentize(command) => command.run(),
            Command::Status(command) => command.run(&config),
            Command::Bench(command) => command.run(config),
            Command::CompileComponent(command) => command.run(),
        }
    }
}

/// Runs a command on the runtime of claims, leases, timers and everything else that is not a guest.
fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("control")
        .enable_all()
        .build()?;
    let ended = runtime.block_on(command);
    // A component that is being compiled must not keep the process from ending.
    runtime.shutdown_timeout(std::time::Duration::from_millis(100));
    ended
}

/// The queue's database: the one that was configured, or the private one of a `piecework dev` that runs now.
fn database(config: &Config) -> anyhow::Result<config::Database> {
    let mut settings = config.database.clone();
    if settings.url.is_empty() {
        settings.url = Cluster::find_running(folder(&settings).as_deref()).ok_or_else(|| {
            Misuse("there is no database: set DATABASE_URL or `url` under `[database]` in runner.toml, or start `piecework dev` in another terminal".into())
        })?;
    }
    Ok(settings)
}

/// The database for commands that start a private one where none is configured. Keep the cluster as long as it is used.
fn database_or_private(config: &Config) -> anyhow::Result<(config::Database, Option<Cluster>)> {
    let mut settings = config.database.clone();
    if !settings.url.is_empty() {
        return Ok((settings, None));
    }
    let options = crate::dev::Options {
        folder: folder(&settings),
        fast: settings.fast,
        settings: Vec::new(),
    };
    let cluster = Cluster::start(&options)?;
    settings.url = cluster.url().to_owned();
    Ok((settings, Some(cluster)))
}

fn folder(settings: &config::Database) -> Option<PathBuf> {
    (!settings.folder.as_os_str().is_empty()).then(|| settings.folder.clone())
}

/// Opens the database and checks that its schema fits.
async fn open(settings: &config::Database) -> anyhow::Result<Store> {
    let store = Store::open(settings).map_err(|error| Misuse(error.to_string()))?;
    store.check_schema().await?;
    Ok(store)
}

/// The same for a role that may do one thing, to enqueue or to cancel, and so cannot look at the schema: what does not fit shows
/// itself in the call.
async fn open_narrow(settings: &config::Database) -> anyhow::Result<Store> {
    match open(settings).await {
        Err(error) if matches!(error.downcast_ref(), Some(store::Error::Denied(_))) => {
            Ok(Store::open(settings)?)
        }
        answer => answer,
    }
}
