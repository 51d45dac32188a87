//! `piecework dev`: a private PostgreSQL, migrated, with a runner on it.

use std::path::PathBuf;

use clap::Args;

use super::run::{Overrides, Signals, migrated, require_folder, serve, settings_file};
use super::watch::Project;
use super::{Ending, Misuse, block_on, database_or_private, print};
use crate::config::Config;

/// Start a private PostgreSQL (unless a database is configured), migrate it, and run jobs
#[derive(Debug, Args)]
pub(super) struct Dev {
    #[command(flatten)]
    overrides: Overrides,
    /// The private PostgreSQL's data folder [database.folder]
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Start only the database, for psql, tests and applications
    #[arg(long)]
    database_only: bool,
    /// Build the project in this folder (the current one when none is given) with its build.sh now and whenever a file of it is
    /// saved, and run the last job anew with the new version; plugins are then those of FOLDER/plugins
    #[arg(
        long,
        value_name = "FOLDER",
        num_args = 0..=1,
        default_missing_value = ".",
        conflicts_with = "database_only"
    )]
    watch: Option<PathBuf>,
}

impl Dev {
    pub(super) fn run(self, mut config: Config) -> anyhow::Result<Ending> {
        let Self {
            overrides,
            data,
            database_only,
            watch,
        } = self;
        let built_to = watch.as_ref().map(|folder| match folder.to_str() {
            Some(".") => PathBuf::from("plugins"),
            _ => folder.join("plugins"),
        });
        let over = move |config: &mut Config| {
            if let Some(plugins) = &built_to {
                config.runner.plugins_folder.clone_from(plugins);
            }
            if let Some(data) = &data {
                config.database.folder.clone_from(data);
            }
            overrides.apply(config)
        };
        over(&mut config)?;
        let file = settings_file(&config, over);
        let project = match &watch {
            Some(folder) => {
                let plugins = &config.runner.plugins_folder;
                let project = Project::open(folder, plugins)?;
                // A new project has none before its first build.
                std::fs::create_dir_all(plugins).map_err(|error| {
                    Misuse(format!("cannot make `{}`: {error}", plugins.display()))
                })?;
                Some(project)
            }
            None => None,
        };
        if !database_only {
            require_folder(&config)?;
        }
        let (settings, cluster) = database_or_private(&config)?;
        let ending = block_on(async {
            let mut signals = Signals::new()?;
            let store = tokio::select! {
                store = migrated(&settings) => store?,
                () = signals.next() => return Ok(Ending::Done),
            };
            print::line(&format!("DATABASE_URL={}", settings.url))?;
            if database_only {
                store.close().await;
                signals.next().await;
                return Ok(Ending::Done);
            }
            let serving = Box::pin(serve(config, file, store.clone(), signals));
            match project {
                None => serving.await,
                Some(project) => tokio::select! {
                    ending = serving => ending,
                    fault = Box::pin(project.watch(&store)) => match fault? {},
                },
            }
        });
        // The server stops last, whatever happened.
        if let Some(cluster) = cluster {
            cluster.stop()?;
        }
        ending
    }
}
