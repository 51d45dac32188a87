//! Leases: one row a runner, renewed by one small update, judged by the clock of the database alone.

use std::time::Duration;

use sqlx::Row;

use super::{Error, Store};
use crate::job::{ClaimToken, JobId, JobType, Priority, RunnerId};

/// A job that was taken back from a runner that is gone.
#[derive(Clone, Debug, PartialEq)]
pub struct Reaped {
    /// The job.
    pub id: JobId,
    /// Its type.
    pub job_type: JobType,
    /// True when no attempt was left, so that it failed for good.
    pub failed: bool,
}

impl Store {
    /// Registers a runner with the schedules of its settings; its lease begins now.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn register(
        &self,
        name: &str,
        slots: u32,
        job_types: &[JobType],
        lease: Duration,
        schedules: &[&str],
    ) -> Result<RunnerId, Error> {
        let row = self
            .one(
                sqlx::query(include_str!("sql/register.sql"))
                    .bind(name)
                    .bind(env!("CARGO_PKG_VERSION"))
                    .bind(i32::try_from(slots).unwrap_or(i32::MAX))
                    .bind(texts(job_types))
                    .bind(lease.as_secs_f64())
                    .bind(schedules),
            )
            .await;
        Ok(RunnerId(row?.try_get("id")?))
    }

    /// Renews the lease. False: the runner was declared dead and its claims are void.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn renew(
        &self,
        runner: RunnerId,
        lease: Duration,
        job_types: &[JobType],
    ) -> Result<bool, Error> {
        let row = self
            .optional(
                sqlx::query(include_str!("sql/renew.sql"))
                    .bind(runner.0)
                    .bind(lease.as_secs_f64())
                    .bind(texts(job_types)),
            )
            .await;
        Ok(row?.is_some())
    }

    /// Says which schedules the runner's settings have now.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn runner_schedules(
        &self,
        runner: RunnerId,
        schedules: &[&str],
    ) -> Result<(), Error> {
        self.run(
            sqlx::query(include_str!("sql/runner_schedules.sql"))
                .bind(runner.0)
                .bind(schedules),
        )
        .await
    }

    /// Says that the runner waits for a NOTIFY, and returns how long until its next job is due, if any is scheduled.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn rest(
        &self,
        runner: RunnerId,
        job_types: &[JobType],
    ) -> Result<Option<Duration>, Error> {
        let (mut types, mut priorities) = (Vec::new(), Vec::new());
        for job_type in job_types {
            for priority in Priority::ALL {
                types.push(job_type.as_str());
                priorities.push(priority.0);
            }
        }
        let row = self
            .one(
                sqlx::query(include_str!("sql/rest.sql"))
                    .bind(runner.0)
                    .bind(types)
                    .bind(priorities),
            )
            .await;
        let seconds: Option<f64> = row?.try_get("seconds")?;
        Ok(seconds
            .map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)))
    }

    /// Says that the runner looks at the table by itself.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn awake(&self, runner: RunnerId) -> Result<(), Error> {
        self.run(sqlx::query(include_str!("sql/awake.sql")).bind(runner.0))
            .await
    }

    /// Says that the runner takes no more jobs (`ended` false) or is gone (true).
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn sign_off(&self, runner: RunnerId, ended: bool) -> Result<(), Error> {
        self.run(
            sqlx::query(include_str!("sql/sign_off.sql"))
                .bind(runner.0)
                .bind(if ended { "stopped" } else { "stopping" }),
        )
        .await
    }

    /// Declares runners dead whose lease ran out; returns them with their names.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn lapse(&self) -> Result<Vec<(RunnerId, String)>, Error> {
        let rows = self.all(sqlx::query(include_str!("sql/lapse.sql"))).await?;
        rows.iter()
            .map(|row| Ok((RunnerId(row.try_get("id")?), row.try_get("name")?)))
            .collect()
    }

    /// Takes back jobs of runners that are gone and jobs past their deadline, `most` at once.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn reap(&self, most: u32) -> Result<Vec<Reaped>, Error> {
        let rows = self
            .all(
                sqlx::query(include_str!("sql/reap.sql"))
                    .bind(i32::try_from(most).unwrap_or(i32::MAX)),
            )
            .await?;
        rows.iter()
            .map(|row| {
                Ok(Reaped {
                    id: JobId(row.try_get("id")?),
                    job_type: row.try_get::<&str, _>("job_type")?.into(),
                    failed: row.try_get("failed")?,
                })
            })
            .collect()
    }

    /// Wakes the runners that wait for these job types: something was put back for them.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn wake(&self, job_types: &[JobType]) -> Result<(), Error> {
        self.run(sqlx::query(include_str!("sql/wake.sql")).bind(texts(job_types)))
            .await
    }

    /// Gives back jobs that `runner` claimed at least `age` ago without knowing it; returns how many.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn release_strays(
        &self,
        runner: RunnerId,
        known: &[i64],
        age: Duration,
    ) -> Result<usize, Error> {
        let rows = self
            .all(
                sqlx::query(include_str!("sql/release_strays.sql"))
                    .bind(runner.0)
                    .bind(known)
                    .bind(age.as_secs_f64()),
            )
            .await?;
        Ok(rows.len())
    }

    /// Writes how far attempts are: job, fence, percent, message. Returns the jobs whose claim was stale.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn progress(
        &self,
        reports: &[(JobId, ClaimToken, u8, String)],
    ) -> Result<Vec<JobId>, Error> {
        let rows = self
            .all(
                sqlx::query(include_str!("sql/progress.sql"))
                    .bind(reports.iter().map(|report| report.0.0).collect::<Vec<_>>())
                    .bind(reports.iter().map(|report| report.1.0).collect::<Vec<_>>())
                    .bind(
                        reports
                            .iter()
                            .map(|report| i32::from(report.2))
                            .collect::<Vec<_>>(),
                    )
                    .bind(
                        reports
                            .iter()
                            .map(|report| report.3.clone())
                            .collect::<Vec<_>>(),
                    ),
            )
            .await?;
        let written = rows
            .iter()
            .map(|row| row.try_get("id").map(JobId))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(reports
            .iter()
            .map(|report| report.0)
            .filter(|id| !written.contains(id))
            .collect())
    }
}

fn texts(job_types: &[JobType]) -> Vec<&str> {
    job_types.iter().map(JobType::as_str).collect()
}
