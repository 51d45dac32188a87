//! Questions about the queue, for people and programs. Lists never load payloads.

use serde::Serialize;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::{Error, Store};
use crate::job::{JobId, RunnerId, Timestamp};

/// One job in a list.
#[derive(Clone, Debug, Serialize)]
pub struct JobLine {
    /// The job.
    pub id: JobId,
    /// Its type.
    pub job_type: String,
    /// `pending`, `running`, `done`, `failed` or `cancelled`.
    pub state: String,
    /// 1 first to 4 last.
    pub priority: i16,
    /// RFC 3339.
    pub due_at: String,
    /// Attempts begun.
    pub attempt: i32,
    /// Attempts it may use.
    pub max_attempts: i32,
    /// RFC 3339.
    pub enqueued_at: String,
    /// RFC 3339.
    pub started_at: Option<String>,
    /// RFC 3339.
    pub finished_at: Option<String>,
    /// Who runs it, or ran it last.
    pub runner: Option<RunnerId>,
    /// Class of the last failure, for jobs that ended.
    pub failure: Option<String>,
    /// Text of the last failure.
    pub last_error: Option<String>,
}

/// How one job stands.
#[derive(Clone, Debug, Serialize)]
pub struct JobState {
    /// `pending`, `running`, `done`, `failed` or `cancelled`.
    pub state: String,
    /// Attempts begun.
    pub attempt: i32,
    /// Class of the last failure, for jobs that ended.
    pub failure: Option<String>,
    /// Text of the last failure.
    pub last_error: Option<String>,
    /// JSON text.
    pub result: Option<String>,
}

/// Pending and running jobs of one type.
#[derive(Clone, Debug, Serialize)]
pub struct TypeLine {
    /// The job type.
    pub job_type: String,
    /// Pending and due.
    pub due: i64,
    /// Pending and due, behind an earlier job of their ordering key.
    pub blocked: i64,
    /// Pending, for later.
    pub later: i64,
    /// Running.
    pub running: i64,
    /// How long the oldest due job has waited, in seconds.
    pub oldest_due_seconds: Option<f64>,
    /// Which of `due`, `blocked` and `later` are too many to count, and estimated.
    pub estimated: Vec<String>,
    /// False: no live runner has a plugin for it.
    pub served: bool,
    /// None of them is started until it is resumed.
    pub paused: bool,
}

/// Jobs of one type that ended lately.
#[derive(Clone, Debug, Serialize)]
pub struct FinishedLine {
    /// The job type.
    pub job_type: String,
    /// Ended well.
    pub done: i64,
    /// Failed for good.
    pub failed: i64,
    /// Were cancelled.
    pub cancelled: i64,
    /// Which of the three are too many to count, and estimated.
    pub estimated: Vec<String>,
}

/// One runner.
#[derive(Clone, Debug, Serialize)]
pub struct RunnerLine {
    /// The runner.
    pub id: RunnerId,
    /// Its name for people.
    pub name: String,
    /// Of the program.
    pub version: String,
    /// `live`, `stopping`, `stopped` or `dead`.
    pub state: String,
    /// Most jobs at once.
    pub slots: i32,
    /// What it serves.
    pub job_types: Vec<String>,
    /// Sleeps until it is notified.
    pub waiting: bool,
    /// What is left of its lease; negative when it ran out.
    pub lease_seconds: f64,
    /// Jobs it runs.
    pub running: i64,
}

/// What the queue's users hold in the database.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LocksHeld {
    /// Transactions older than asked for.
    pub old_transactions: i64,
    /// The oldest transaction, in seconds.
    pub oldest_seconds: f64,
    /// Row-level lock modes on the job table that those transactions hold.
    pub row_locks: i64,
}

impl Store {
    /// Jobs, newest first.
    ///
    /// # Errors
    /// [`Error::Refused`] for an unknown state.
    pub async fn jobs_list(
        &self,
        state: Option<&str>,
        job_type: Option<&str>,
        most: u32,
    ) -> Result<Vec<JobLine>, Error> {
        // Not one statement for all: it would be planned for any state, and look through all of the history for 50 failed jobs.
        let query = match state {
            None => sqlx::query(include_str!("sql/jobs_list.sql")),
            Some(state @ ("pending" | "running")) => {
                sqlx::query(include_str!("sql/jobs_list_waiting.sql")).bind(state)
            }
            Some(state) => sqlx::query(include_str!("sql/jobs_list_ended.sql")).bind(state),
        };
        let query = query
            .bind(job_type)
            .bind(i32::try_from(most).unwrap_or(i32::MAX));
        let rows = self.all(query).await?;
        Ok(rows.iter().map(job_line).collect::<Result<_, _>>()?)
    }

    /// Everything about one job, as JSON text; `None` when there is no such job.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn job_show(&self, id: JobId) -> Result<Option<String>, Error> {
        let row = self
            .optional(sqlx::query(include_str!("sql/job_show.sql")).bind(id.0))
            .await?;
        Ok(row.map(|row| row.try_get("job")).transpose()?)
    }

    /// How one job stands; `None` when there is no such job.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn job_state(&self, id: JobId) -> Result<Option<JobState>, Error> {
        let row = self
            .optional(sqlx::query(include_str!("sql/job_state.sql")).bind(id.0))
            .await?;
        let state = |row: PgRow| {
            Ok::<_, sqlx::Error>(JobState {
                state: row.try_get("state")?,
                attempt: row.try_get("attempt")?,
                failure: row.try_get("failure")?,
                last_error: row.try_get("last_error")?,
                result: row.try_get("result")?,
            })
        };
        Ok(row.map(state).transpose()?)
    }

    /// Jobs that ended in the time until now, by type. Where there are many the figures come from a sample.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn status_finished(
        &self,
        within: std::time::Duration,
    ) -> Result<Vec<FinishedLine>, Error> {
        let query = sqlx::query(include_str!("sql/status_finished.sql")).bind(within.as_secs_f64());
        let rows = self.all(query).await?;
        let line = |row: &PgRow| {
            Ok::<_, sqlx::Error>(FinishedLine {
                job_type: row.try_get("job_type")?,
                done: row.try_get("done")?,
                failed: row.try_get("failed")?,
                cancelled: row.try_get("cancelled")?,
                estimated: row.try_get("estimated")?,
            })
        };
        Ok(rows.iter().map(line).collect::<Result<_, _>>()?)
    }

    /// Pending and running jobs by type. Many jobs are not counted one by one: see [`TypeLine::estimated`].
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn status_jobs(&self) -> Result<Vec<TypeLine>, Error> {
        let rows = self
            .all(sqlx::query(include_str!("sql/status_jobs.sql")))
            .await?;
        let line = |row: &PgRow| {
            Ok::<_, sqlx::Error>(TypeLine {
                job_type: row.try_get("job_type")?,
                due: row.try_get("due")?,
                blocked: row.try_get("blocked")?,
                later: row.try_get("later")?,
                running: row.try_get("running")?,
                oldest_due_seconds: row.try_get("oldest_due_seconds")?,
                estimated: row.try_get("estimated")?,
                served: row.try_get("served")?,
                paused: row.try_get("paused")?,
            })
        };
        Ok(rows.iter().map(line).collect::<Result<_, _>>()?)
    }

    /// The runners that are alive, or were an hour ago.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn status_runners(&self) -> Result<Vec<RunnerLine>, Error> {
        let rows = self
            .all(sqlx::query(include_str!("sql/status_runners.sql")))
            .await?;
        let line = |row: &PgRow| {
            Ok::<_, sqlx::Error>(RunnerLine {
                id: RunnerId(row.try_get("id")?),
                name: row.try_get("name")?,
                version: row.try_get("version")?,
                state: row.try_get("state")?,
                slots: row.try_get("slots")?,
                job_types: row.try_get("job_types")?,
                waiting: row.try_get("waiting")?,
                lease_seconds: row.try_get("lease_seconds")?,
                running: row.try_get("running")?,
            })
        };
        Ok(rows.iter().map(line).collect::<Result<_, _>>()?)
    }

    /// What other sessions hold: transactions older than `age`, and their row locks on the job table.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn locks_held(&self, age: std::time::Duration) -> Result<LocksHeld, Error> {
        let row = self
            .one(sqlx::query(include_str!("sql/locks_held.sql")).bind(age.as_secs_f64()))
            .await?;
        Ok(LocksHeld {
            old_transactions: row.try_get("old_transactions")?,
            oldest_seconds: row.try_get("oldest_seconds")?,
            row_locks: row.try_get("row_locks")?,
        })
    }
}

fn job_line(row: &PgRow) -> Result<JobLine, sqlx::Error> {
    let time = |name: &str| {
        row.try_get::<Option<Timestamp>, _>(name)
            .map(|time| time.map(|time| time.to_string()))
    };
    Ok(JobLine {
        id: JobId(row.try_get("id")?),
        job_type: row.try_get("job_type")?,
        state: row.try_get("state")?,
        priority: row.try_get("priority")?,
        due_at: time("due_at")?.unwrap_or_default(),
        attempt: row.try_get("attempt")?,
        max_attempts: row.try_get("max_attempts")?,
        enqueued_at: time("enqueued_at")?.unwrap_or_default(),
        started_at: time("started_at")?,
        finished_at: time("finished_at")?,
        runner: row.try_get::<Option<i64>, _>("runner")?.map(RunnerId),
        failure: row.try_get("failure")?,
        last_error: row.try_get("last_error")?,
    })
}
