//! What people do with the queue: cancel and retry jobs, pause job types, subscribe them to topics. All of it through the SQL
//! functions that everybody else calls.

use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::PgRow;

use super::{Error, Store};
use crate::job::JobId;

/// How long jobs that ended in a state are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// `done`, `failed` or `cancelled`.
    pub state: String,
    /// Zero: not at all.
    pub keep: Duration,
}

impl Store {
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

    /// Subscribes a job type to a topic, or with `false` unsubscribes it. Returns whether that changed anything.
    ///
    /// # Errors
    /// [`Error::Refused`] for an empty or too long name.
    pub async fn subscribe(&self, topic: &str, job_type: &str, to: bool) -> Result<bool, Error> {
        let text = if to {
            include_str!("sql/subscribe.sql")
        } else {
            include_str!("sql/unsubscribe.sql")
        };
        let row = self
            .one(sqlx::query(text).bind(topic).bind(job_type))
            .await?;
        Ok(row.try_get("changed")?)
    }

    /// Topics and the job types that are subscribed to each, in order.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn topics(&self) -> Result<Vec<(String, String)>, Error> {
        let rows = self
            .all(sqlx::query(include_str!("sql/topics.sql")))
            .await?;
        rows.iter()
            .map(|row| Ok((row.try_get("topic")?, row.try_get("job_type")?)))
            .collect()
    }

    /// Pauses a job type on all runners, or with `false` resumes it. Returns whether that changed anything.
    ///
    /// # Errors
    /// [`Error::Refused`] for an empty or too long name.
    pub async fn pause(&self, job_type: &str, to: bool) -> Result<bool, Error> {
        let text = if to {
            include_str!("sql/pause.sql")
        } else {
            include_str!("sql/resume.sql")
        };
        let row = self.one(sqlx::query(text).bind(job_type)).await?;
        Ok(row.try_get("changed")?)
    }

    /// Starts a failed or cancelled job anew. Returns the state that it has from now on; `None` when there is no such job.
    ///
    /// # Errors
    /// [`Error::Refused`] when another job has taken its unique key.
    pub async fn retry(&self, id: JobId) -> Result<Option<String>, Error> {
        let row = self
            .one(sqlx::query(include_str!("sql/retry.sql")).bind(id.0))
            .await?;
        Ok(row.try_get("state")?)
    }

    /// Starts failed (or cancelled) jobs anew, all or those of one type, the oldest first. Returns how many.
    ///
    /// # Errors
    /// [`Error::Refused`] for another state.
    pub async fn retry_all(
        &self,
        job_type: Option<&str>,
        state: &str,
        most: u32,
    ) -> Result<i64, Error> {
        let row = self
            .one(
                sqlx::query(include_str!("sql/retry_all.sql"))
                    .bind(job_type)
                    .bind(state)
                    .bind(i32::try_from(most).unwrap_or(i32::MAX)),
            )
            .await?;
        Ok(row.try_get("started")?)
    }

    /// Cancels the job that has a unique key, and its chain. Returns how many jobs were cancelled.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn cancel_by_key(&self, job_type: &str, unique_key: &str) -> Result<i64, Error> {
        let row = self
            .one(
                sqlx::query(include_str!("sql/cancel_by_key.sql"))
                    .bind(job_type)
                    .bind(unique_key),
            )
            .await?;
        Ok(row.try_get("cancelled")?)
    }

    /// How long ended jobs are kept, for each state.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn retention(&self) -> Result<Vec<Retention>, Error> {
        let rows = self
            .all(sqlx::query(include_str!("sql/retention.sql")))
            .await?;
        let line = |row: &PgRow| {
            let seconds: f64 = row.try_get("keep_seconds")?;
            Ok::<_, sqlx::Error>(Retention {
                state: row.try_get("state")?,
                keep: Duration::try_from_secs_f64(seconds).unwrap_or_default(),
            })
        };
        Ok(rows.iter().map(line).collect::<Result<_, _>>()?)
    }

    /// From now on keeps jobs that ended in `state` this long; zero keeps none. Returns whether that changed anything.
    ///
    /// # Errors
    /// [`Error::Refused`] for another state, or more than 100 years.
    pub async fn keep(&self, state: &str, keep: Duration) -> Result<bool, Error> {
        let row = self
            .one(
                sqlx::query(include_str!("sql/keep.sql"))
                    .bind(state)
                    .bind(keep.as_secs_f64()),
            )
            .await?;
        Ok(row.try_get("changed")?)
    }
}
