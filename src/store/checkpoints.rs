//! Checkpoints of running attempts, written at once and fenced.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::postgres::PgRow;

use super::finish::column;
use super::{Error, Store};
use crate::job::{ClaimToken, JobId};

/// A checkpoint to write.
#[derive(Clone, Debug)]
pub struct Save {
    /// The job.
    pub id: JobId,
    /// The fence.
    pub claim: ClaimToken,
    /// Of the checkpoint.
    pub name: String,
    /// JSON text.
    pub json: String,
}

/// What became of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// It is kept.
    Written,
    /// Another transaction has locked the job's row: nothing was written, it may be tried again.
    Locked,
    /// The job was cancelled or taken over.
    Stale,
}

impl Store {
    /// Writes checkpoints, each of another attempt. Returns what became of each, in their order.
    ///
    /// # Errors
    /// [`Error::Refused`] when one of the values is nothing that `jsonb` takes; then none is written.
    pub async fn save_checkpoints(&self, saves: &[Save]) -> Result<Vec<Saved>, Error> {
        let query = sqlx::query(include_str!("sql/save_checkpoints.sql"))
            .bind(column(saves, |save| save.id.0))
            .bind(column(saves, |save| save.claim.0))
            .bind(column(saves, |save| save.name.as_str()))
            .bind(column(saves, |save| save.json.as_str()));
        let line = |row: &PgRow| {
            let saved = match row.try_get("came_to")? {
                "written" => Saved::Written,
                _ => Saved::Locked,
            };
            Ok((JobId(row.try_get("id")?), saved))
        };
        let known: HashMap<JobId, Saved> = self
            .all(query)
            .await?
            .iter()
            .map(line)
            .collect::<Result<_, sqlx::Error>>()?;
        let of = |save: &Save| known.get(&save.id).copied().unwrap_or(Saved::Stale);
        Ok(saves.iter().map(of).collect())
    }
}
