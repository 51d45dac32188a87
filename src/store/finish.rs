//! The finish: what one attempt came to, as it is to be written.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgRow;

use super::link::Query;
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
    /// The job's ordering key: when the job ends, the next one with the key may start.
    pub ordering_key: Option<String>,
    /// The batch that the job belongs to: its last job may start when it ends.
    pub batch: Option<JobId>,
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

    /// Completes the records of attempts whose jobs were cancelled while they ran.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn record_cancelled(&self, finishes: &[Finish]) -> Result<(), Error> {
        let query = sqlx::query(include_str!("sql/record_cancelled.sql"))
            .bind(column(finishes, |finish| finish.id.0))
            .bind(column(finishes, |finish| finish.claim.0))
            .bind(column(finishes, |finish| finish.plugin.as_slice()));
        let query =
            bind_usage(query, finishes).bind(column(finishes, |finish| finish.output.as_deref()));
        self.run(query).await
    }
}

/// What attempts used, in the order of the statements: run and computing time, fuel, memory, HTTP calls, their bytes and time.
pub(super) fn bind_usage<'q>(query: Query<'q>, finishes: &'q [Finish]) -> Query<'q> {
    let used = |value: fn(&Usage) -> Option<i64>| column(finishes, |finish| value(&finish.usage));
    query
        .bind(used(|usage| Some(whole(usage.run.as_micros()))))
        .bind(used(|usage| Some(whole(usage.cpu.as_micros()))))
        .bind(used(|usage| usage.fuel.map(|fuel| whole(fuel.into()))))
        .bind(used(|usage| Some(whole(usage.peak_memory.into()))))
        .bind(column(finishes, |finish| {
            finish.usage.http.map(|http| count(http.calls))
        }))
        .bind(used(|usage| {
            usage.http.map(|http| whole(http.bytes.into()))
        }))
        .bind(used(|usage| {
            usage.http.map(|http| whole(http.time.as_micros()))
        }))
}

/// One column of the arrays of a statement.
pub(super) fn column<'a, R, T>(rows: &'a [R], value: impl Fn(&'a R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}

fn pairs(attempts: &[(JobId, ClaimToken)]) -> (Vec<i64>, Vec<i64>) {
    attempts.iter().map(|(id, claim)| (id.0, claim.0)).unzip()
}
