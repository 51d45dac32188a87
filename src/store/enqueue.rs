//! Enqueueing, through the same SQL functions that everybody else calls.

use std::time::Duration;

use sqlx::Row;

use super::{Error, Store};
use crate::job::JobId;

/// A job to enqueue; what is `None` takes the default of `piecework.enqueue`.
#[derive(Clone, Debug, Default)]
pub struct NewJob {
    /// Chooses the plugin.
    pub job_type: String,
    /// JSON text.
    pub payload: String,
    /// Not before this time, as PostgreSQL reads it. Not together with `delay`.
    pub due_at: Option<String>,
    /// Not before this much later.
    pub delay: Option<Duration>,
    /// 1 first to 4 last.
    pub priority: Option<i32>,
    /// How often it may be tried.
    pub max_attempts: Option<i32>,
    /// At most one pending or running job of the type has this key.
    pub unique_key: Option<String>,
    /// The key stays taken this long, also when its job has ended by then.
    pub unique_for: Option<Duration>,
    /// Jobs with the same key run one after another, in the order of their ids.
    pub ordering_key: Option<String>,
    /// Whom the job is for: jobs of a type take turns between groups.
    pub group_key: Option<String>,
}

impl Store {
    /// Enqueues one job. With a unique key that some job has already, the answer is that job's id.
    ///
    /// # Errors
    /// [`Error::Refused`] says what is wrong with the job.
    pub async fn enqueue(&self, job: &NewJob) -> Result<JobId, Error> {
        let row = self
            .one(
                sqlx::query(include_str!("sql/enqueue.sql"))
                    .bind(&job.job_type)
                    .bind(&job.payload)
                    .bind(&job.due_at)
                    .bind(job.delay.map(|delay| delay.as_secs_f64()))
                    .bind(job.priority)
                    .bind(job.max_attempts)
                    .bind(None::<i64>)
                    .bind(&job.unique_key)
                    .bind(job.unique_for.map(|window| window.as_secs_f64()))
                    .bind(&job.ordering_key)
                    .bind(&job.group_key),
            )
            .await;
        Ok(JobId(row?.try_get("id")?))
    }

    /// Enqueues the jobs of a JSON array, all or none; returns their ids in its order.
    ///
    /// # Errors
    /// [`Error::Refused`] names the element and says what is wrong with it.
    pub async fn enqueue_many(&self, jobs: &str) -> Result<Vec<JobId>, Error> {
        let rows = self
            .all(sqlx::query(include_str!("sql/enqueue_many.sql")).bind(jobs))
            .await?;
        rows.iter()
            .map(|row| Ok(JobId(row.try_get("id")?)))
            .collect()
    }

    /// Enqueues the jobs of a JSON array and one, an object, that starts when all of them have ended; returns the id of that one.
    ///
    /// # Errors
    /// [`Error::Refused`] names the job and says what is wrong with it.
    pub async fn enqueue_batch(&self, jobs: &str, and_then: &str) -> Result<JobId, Error> {
        let row = self
            .one(
                sqlx::query(include_str!("sql/enqueue_batch.sql"))
                    .bind(jobs)
                    .bind(and_then),
            )
            .await?;
        Ok(JobId(row.try_get("id")?))
    }

    /// Enqueues a job for each job type that is subscribed to a topic; `job.job_type` is not looked at. Returns how many.
    ///
    /// # Errors
    /// [`Error::Refused`] says what is wrong with the job.
    pub async fn publish(&self, topic: &str, job: &NewJob) -> Result<i64, Error> {
        let row = self
            .one(
                sqlx::query(include_str!("sql/publish.sql"))
                    .bind(topic)
                    .bind(&job.payload)
                    .bind(&job.due_at)
                    .bind(job.delay.map(|delay| delay.as_secs_f64()))
                    .bind(job.priority)
                    .bind(job.max_attempts)
                    .bind(&job.unique_key)
                    .bind(job.unique_for.map(|window| window.as_secs_f64()))
                    .bind(&job.ordering_key)
                    .bind(&job.group_key),
            )
            .await?;
        Ok(row.try_get("jobs")?)
    }
}
