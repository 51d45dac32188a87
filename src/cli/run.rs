//! `piecework run`: one runner of the fleet.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Ending, Misuse, block_on, database, open};
use crate::config::Config;
use crate::runner::{Runner, SettingsFile};
use crate::store::Store;

/// Run jobs until SIGTERM or Ctrl-C; a second signal skips the wait for running handlers
#[derive(Debug, Args)]
pub(super) struct Run {
    #[command(flatten)]
    overrides: Overrides,
    /// Migrate the database first, if it needs it
    #[arg(long)]
    migrate: bool,
}

/// Settings that are often given on the command line.
#[derive(Debug, Args)]
pub(super) struct Overrides {
    /// Most jobs at once [runner.slots]
    #[arg(long)]
    slots: Option<u32>,
    /// The folder with the plugins [runner.plugins_folder]
    #[arg(long, value_name = "FOLDER")]
    plugins: Option<PathBuf>,
}

impl Overrides {
    pub(super) fn apply(&self, config: &mut Config) -> anyhow::Result<()> {
        if let Some(slots) = self.slots {
            if !(1..=10_000).contains(&slots) {
                return Err(Misuse(format!("--slots is {slots}, it must be 1 to 10000")).into());
            }
            config.runner.slots = slots;
        }
        if let Some(plugins) = &self.plugins {
            config.runner.plugins_folder = plugins.clone();
        }
        Ok(())
    }
}

impl Run {
    pub(super) fn run(self, mut config: Config) -> anyhow::Result<Ending> {
        self.overrides.apply(&mut config)?;
        let overrides = self.overrides;
        let file = settings_file(&config, move |config| overrides.apply(config));
        let settings = database(&config)?;
        require_folder(&config)?;
        block_on(async {
            let mut signals = Signals::with_hangup()?;
            let prepare = async {
                if self.migrate {
                    migrated(&settings).await?;
                }
                open(&settings).await
            };
            let store = tokio::select! {
                store = prepare => store?,
                // Nothing was begun yet.
                () = signals.next() => return Ok(Ending::Done),
            };
            Box::pin(serve(config, file, store, signals)).await
        })
    }
}

/// Where the settings of a runner can be read again; `over` applies what wins over the file.
pub(super) fn settings_file(
    config: &Config,
    over: impl Fn(&mut Config) -> anyhow::Result<()> + Send + Sync + 'static,
) -> Option<SettingsFile> {
    let path = config.file()?.to_owned();
    let named = path.clone();
    let read = move |text: &str| {
        let mut config = Config::parse(text, &named)?;
        config.take_environment();
        over(&mut config)?;
        Ok(config)
    };
    Some(SettingsFile {
        path,
        read: Arc::new(read),
    })
}

/// Says what to do about a missing folder before anything is started.
pub(super) fn require_folder(config: &Config) -> anyhow::Result<()> {
    if !config.runner.plugins_from.folder() {
        return Ok(());
    }
    crate::plugins::require_folder(&config.runner.plugins_folder)
        .map_err(|error| Misuse(error.to_string()).into())
}

/// Migrates and says so.
pub(super) async fn migrated(settings: &crate::config::Database) -> anyhow::Result<Store> {
    let store = Store::open(settings).map_err(|error| Misuse(error.to_string()))?;
    let migrated = store.migrate().await?;
    if migrated.from < migrated.to {
        tracing::info!(from = migrated.from, to = migrated.to, "database migrated");
    }
    Ok(store)
}

/// SIGTERM and SIGINT, and SIGHUP where it is wanted, heard from the moment this is made.
#[derive(Debug)]
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Option<Signal>,
}

/// What a signal asks for.
enum Heard {
    Stop,
    /// To read the settings again.
    Reload,
}

impl Signals {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("listen for SIGINT")?,
            hangup: None,
        })
    }

    /// With SIGHUP, which otherwise ends the process: what was started in a terminal ends with it.
    fn with_hangup() -> anyhow::Result<Self> {
        let hangup = signal(SignalKind::hangup()).context("listen for SIGHUP")?;
        Ok(Self {
            hangup: Some(hangup),
            ..Self::new()?
        })
    }

    /// Waits for any of them.
    async fn either(&mut self) -> Heard {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => Heard::Stop,
            _ = self.interrupt.recv() => Heard::Stop,
            _ = hangup => Heard::Reload,
        }
    }

    /// Waits for a signal to stop.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Runs until a signal, and then to the end of the stop.
pub(super) async fn serve(
    config: Config,
    file: Option<SettingsFile>,
    store: Store,
    mut signals: Signals,
) -> anyhow::Result<Ending> {
    let runner = tokio::select! {
        runner = Box::pin(Runner::start_with(config, store.clone(), file)) => runner?,
        // Nothing was claimed yet.
        () = signals.next() => return Ok(Ending::Done),
    };
    for plugin in runner
        .plugins()
        .iter()
        .filter(|plugin| plugin.reason.is_some())
    {
        tracing::warn!(
            plugin = plugin.name,
            state = plugin.state.as_str(),
            reason = plugin.reason,
            "plugin does not serve"
        );
    }
    if runner.plugins().is_empty() {
        tracing::warn!(folder = %runner.plugins_folder().display(), "there are no plugins yet; jobs wait for a .wasm file in the plugins folder, or for `piecework plugins push`");
    }
    let ending = loop {
        tokio::select! {
            signal = signals.either() => match signal {
                Heard::Reload => runner.reload(),
                Heard::Stop => {
                    tracing::info!("signal received, stopping");
                    break Ending::Done;
                }
            },
            () = runner.stopping() => {
                tracing::error!("the runner stopped by a fault of its own; start it again");
                break Ending::Failed;
            }
        }
    };
    runner.drain();
    let halt = runner.halter();
    let join = runner.join();
    tokio::pin!(join);
    tokio::select! {
        () = &mut join => {}
        () = signals.next() => {
            tracing::info!("second signal, not waiting");
            halt();
            join.await;
        }
    }
    store.close().await;
    tracing::info!("stopped");
    Ok(ending)
}
