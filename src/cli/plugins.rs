//! `piecework plugins`

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::fleet::Fleet;
use super::{Ending, Misuse, check, listing, print};
use crate::config::Config;
use crate::engine::Engine;
use crate::plugins::{Registry, Shelf};

/// List and check plugins, which needs no database, and manage those of the fleet
#[derive(Debug, Args)]
pub(super) struct Plugins {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the plugins of the runners that work now, or without a database the files of the folder; exit 1 when one does not serve
    List {
        /// Look at this folder here, and ask no runner [without a database: runner.plugins_folder]
        #[arg(long, value_name = "FOLDER")]
        plugins: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Check whether files can serve, and why not
    Check {
        /// The .wasm files
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    #[command(flatten)]
    Fleet(Fleet),
}

impl Plugins {
    pub(super) fn run(self, config: &Config) -> anyhow::Result<Ending> {
        let engine = || Engine::new(config, 1);
        match self.command {
            Command::List {
                plugins: None,
                json,
            } if super::database(config).is_ok() => listing::running(config, json),
            Command::List { plugins, json } => list(&engine()?, config, plugins, json),
            Command::Check { files, json } => check::run(&engine()?, config, &files, json),
            Command::Fleet(command) => command.run(config),
        }
    }
}

fn list(
    engine: &Engine,
    config: &Config,
    folder: Option<PathBuf>,
    json: bool,
) -> anyhow::Result<Ending> {
    let path = folder.unwrap_or_else(|| config.runner.plugins_folder.clone());
    let mut shelf = Shelf::open(&path).map_err(|error| Misuse(error.to_string()))?;
    shelf.scan(engine, config, &Registry::default())?;
    let states = shelf.states(config);
    if json {
        print::json(&states)?;
    } else {
        let mut rows = vec![
            ["FILE", "JOB TYPES", "STATE", "VERSION", "BYTES", "REASON"]
                .map(str::to_owned)
                .to_vec(),
        ];
        rows.extend(states.iter().map(|file| {
            vec![
                print::plain(&file.file.as_ref().unwrap_or(&path).display().to_string()),
                print::plain(&file.job_types.join(",")),
                file.state.as_str().to_owned(),
                print::version(&file.digest),
                file.size.to_string(),
                print::plain(file.reason.as_deref().unwrap_or_default()),
            ]
        }));
        print::table(&rows)?;
    }
    Ok(if states.iter().all(|file| file.state == "serving") {
        Ending::Done
    } else {
        Ending::Failed
    })
}
