//! `piecework dev`: a private PostgreSQL, migrated, with a runner on it.

use std::path::PathBuf;

use clap::Args;

use super::run::{Overrides, Signals, migrated, require_folder, serve, settings_file};
use super::{Ending, block_on, database_or_private, print};
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
}

impl Dev {
    pub(super) fn run(self, mut config: Config) -> anyhow::Result<Ending> {
        let Self {
            overrides,
            data,
            database_only,
        } = self;
        let over = move |config: &mut Config| {
            if let Some(data) = &data {
                config.database.folder.clone_from(data);
            }
            overrides.apply(config)
        };
        over(&mut config)?;
        let file = settings_file(&config, over);
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
            Box::pin(serve(config, file, store, signals)).await
        });
        // The server stops last, whatever happened.
        if let Some(cluster) = cluster {
            cluster.stop()?;
        }
        ending
    }
}
