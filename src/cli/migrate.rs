//! `piecework migrate`

use clap::Args;

use super::{Ending, Misuse, block_on, database, print};
use crate::config::Config;
use crate::store::Store;

/// Bring the database's schema to this version; safe while runners work
#[derive(Debug, Args)]
pub(super) struct Migrate {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Migrate {
    pub(super) fn run(self, config: &Config) -> anyhow::Result<Ending> {
        let settings = database(config)?;
        block_on(async {
            let store = Store::open(&settings).map_err(|error| Misuse(error.to_string()))?;
            let migrated = store.migrate().await?;
            if self.json {
                print::json(&serde_json::json!({ "from": migrated.from, "to": migrated.to }))?;
            } else if migrated.from == migrated.to {
                print::line(&format!("the schema is at version {} already", migrated.to))?;
            } else {
                print::line(&format!(
                    "migrated from version {} to {}",
                    migrated.from, migrated.to
                ))?;
            }
            Ok(Ending::Done)
        })
    }
}
