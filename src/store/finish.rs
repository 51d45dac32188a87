//! The finish: what one attempt came to, as it is to be written.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgRow;

use super::round::{count, pair, whole};
use super::{Error, Store};
use crate::job::{ClaimToken, FailureClass, FollowUp, JobId, Usage};

/// What becomes of the job.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It ends well, with this JSON text as its result.
    Done(Option<String>),
    /// It ends.
    Failed,
    /// It runs again.
    Again {
        /// Not before this much later.
        delay: Duration,
        /// The attempt does not count.
        refund: bool,
    },
}

/// One attempt's end.
#[derive(Clone, Debug)]
pub struct Finish {
    /// The job.
    pub id: JobId,
    /// The fence.
    pub claim: ClaimToken,
    /// What becomes of the job.
    pub verdict: Verdict,
    /// Why the attempt came to nothing, when it did.
    pub failure: Option<(FailureClass, String)>,
    /// Enqueued together with [`Verdict::Done`].
    pub follow_ups: Vec<FollowUp>,
    /// What the attempt used.
    pub usage: Usage,
    /// What the guest printed.
    pub output: Option<String>,
    /// The newest progress that was not written yet: percent and message.
    pub progress: Option<(u8, String)>,
    /// SHA-256 of the component that ran.
    pub plugin: [u8; 32],
}

/// How the job of an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By what this attempt came to.
    Written,
    /// It was cancelled while the attempt ran.
    Cancelled,
}

impl Store {
    /// How the jobs of these attempts ended, where it was during them.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn ends(
        &self,
        attempts: &[(JobId, ClaimToken)],
    ) -> Result<HashMap<(JobId, ClaimToken), Ended>, Error> {
        let (ids, claims) = pairs(attempts);
        let query = sqlx::query(include_str!("sql/ends.sql"))
            .bind(ids)
            .bind(claims);
        let end = |row: &PgRow| {
            let ended = if row.try_get("cancelled")? {
                Ended::Cancelled
            } else {
                Ended::Written
            };
            Ok((pair(row)?, ended))
        };
        Ok(self
            .all(query)
            .await?
            .iter()
            .map(end)
            .collect::<Result<_, sqlx::Error>>()?)
    }

    /// Cancels a job. Returns the state that it has from now on, `cancelled` unless it had ended before; `None` when there
    /// is no such job.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn cancel(&self, id: JobId) -> Result<Option<String>, Error> {
        let row = self
            .one(sqlx::query(include_str!("sql/cancel.sql")).bind(id.0))
            .await?;
        Ok(row.try_get("state")?)
    }

    /// Which of these running attempts are void: their row is gone, or someone else's. True: their job was cancelled.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn void(
        &self,
        attempts: &[(JobId, ClaimToken)],
    ) -> Result<Vec<((JobId, ClaimToken), bool)>, Error> {
        let (ids, claims) = pairs(attempts);
        let query = sqlx::query(include_str!("sql/void.sql"))
            .bind(ids)
            .bind(claims);
        let line = |row: &PgRow| Ok((pair(row)?, row.try_get("cancelled")?));
        Ok(self
            .all(query)
            .await?
            .iter()
            .map(line)
            .collect::<Result<_, sqlx::Error>>()?)
    }

    /// Completes the record of an attempt whose job was cancelled while it ran.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn record_cancelled(&self, finish: &Finish) -> Result<(), Error> {
        let usage = &finish.usage;
        let query = sqlx::query(include_str!("sql/record_cancelled.sql"))
            .bind(finish.id.0)
            .bind(finish.claim.0)
            .bind(finish.plugin.as_slice())
            .bind(whole(usage.run.as_micros()))
            .bind(whole(usage.cpu.as_micros()))
            .bind(usage.fuel.map(|fuel| whole(fuel.into())))
            .bind(whole(usage.peak_memory.into()))
            .bind(usage.http.map(|http| count(http.calls)))
            .bind(usage.http.map(|http| whole(http.bytes.into())))
            .bind(usage.http.map(|http| whole(http.time.as_micros())))
            .bind(finish.output.as_deref());
        self.run(query).await
    }

    /// Writes checkpoints, each of another attempt. Returns the jobs whose checkpoint was not written, being stale.
    ///
    /// # Errors
    /// [`Error::Refused`] when one of the values is nothing that `jsonb` takes; then none is written.
    pub async fn save_checkpoints(&self, saves: &[Save]) -> Result<Vec<JobId>, Error> {
        let texts = |text: fn(&Save) -> &str| saves.iter().map(text).collect::<Vec<_>>();
        let query = sqlx::query(include_str!("sql/save_checkpoints.sql"))
            .bind(saves.iter().map(|save| save.id.0).collect::<Vec<_>>())
            .bind(saves.iter().map(|save| save.claim.0).collect::<Vec<_>>())
            .bind(texts(|save| &save.name))
            .bind(texts(|save| &save.json));
        let written = self
            .all(query)
            .await?
            .iter()
            .map(|row| row.try_get("id").map(JobId))
            .collect::<Result<HashSet<_>, _>>()?;
        let ids = saves.iter().map(|save| save.id);
        Ok(ids.filter(|id| !written.contains(id)).collect())
    }
}

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

fn pairs(attempts: &[(JobId, ClaimToken)]) -> (Vec<i64>, Vec<i64>) {
    attempts.iter().map(|(id, claim)| (id.0, claim.0)).unzip()
}
