//! Schedules: what their rows say, and the one statement that makes a tick a job.

use std::time::Duration;

use serde::Serialize;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::link::Query;
use super::{Error, Store};
use crate::job::{JobId, Timestamp};

/// A schedule to make; what is `None` takes the default of `piecework.schedule`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewSchedule {
    /// Its name.
    pub name: String,
    /// Of its jobs.
    pub job_type: String,
    /// JSON text.
    pub payload: String,
    /// 1 first to 4 last.
    pub priority: Option<i32>,
    /// How often a job may be tried.
    pub max_attempts: Option<i32>,
    /// Jobs with the same key run one after another.
    pub ordering_key: Option<String>,
    /// One of this and `every`.
    pub cron: Option<String>,
    /// Of the cron expression.
    pub zone: Option<String>,
    /// A fixed interval.
    pub every: Option<Duration>,
    /// `skip` or `once`.
    pub missed: Option<String>,
    /// `allow` or `skip`.
    pub overlap: Option<String>,
    /// The payload has the tick under this name.
    pub tick_as: Option<String>,
}

/// A schedule that wants something of a runner: a tick is near, or none is computed yet.
#[derive(Clone, Debug)]
pub struct DueSchedule {
    /// Its name.
    pub name: String,
    /// Changes with its times.
    pub revision: i64,
    /// One of this and `every`.
    pub cron: Option<String>,
    /// Of the cron expression.
    pub zone: String,
    /// Seconds.
    pub every: Option<f64>,
    /// One job for all ticks that were missed.
    pub once: bool,
    /// The next tick, if it is computed.
    pub next_tick: Option<Timestamp>,
    /// The database's clock when the row was read.
    pub now: Timestamp,
    /// Seconds until the next tick.
    pub seconds: Option<f64>,
}

/// What became of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fired {
    /// It is this job.
    Job(JobId),
    /// No job: that of an earlier tick has not ended.
    Busy,
    /// No job was asked for, or the tick had been fired before; the schedule goes on.
    Moved,
    /// Another runner was first, or the schedule was changed.
    NotOurs,
}

/// One schedule in a list.
#[derive(Clone, Debug, Serialize)]
pub struct ScheduleLine {
    /// Its name.
    pub name: String,
    /// `active`, `paused`, `undeclared` (no live runner has it in its settings any more) or `refused`.
    pub state: String,
    /// `file` or `sql`.
    pub source: String,
    /// Of its jobs.
    pub job_type: String,
    /// The cron expression.
    pub cron: Option<String>,
    /// Its time zone.
    pub zone: Option<String>,
    /// The fixed interval, in seconds.
    pub every_seconds: Option<f64>,
    /// RFC 3339.
    pub next_tick: Option<String>,
    /// RFC 3339.
    pub last_tick: Option<String>,
    /// The newest job.
    pub last_job: Option<JobId>,
    /// Why it cannot tick.
    pub problem: Option<String>,
    /// `skip` or `once`.
    pub missed: String,
    /// `allow` or `skip`.
    pub overlap: String,
    /// JSON.
    pub payload: Box<serde_json::value::RawValue>,
    /// 1 first to 4 last.
    pub priority: i16,
    /// How often a job may be tried.
    pub max_attempts: i32,
    /// Jobs with the same key run one after another.
    pub ordering_key: Option<String>,
    /// The payload has the tick under this name.
    pub tick_as: Option<String>,
}

impl Store {
    /// Schedules that have no next tick yet, or whose next tick is less than `ahead` away, the most urgent first.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn schedules_due(
        &self,
        ahead: Duration,
        most: u32,
    ) -> Result<Vec<DueSchedule>, Error> {
        let rows = self
            .all(
                sqlx::query(include_str!("sql/schedules_due.sql"))
                    .bind(ahead.as_secs_f64())
                    .bind(i32::try_from(most).unwrap_or(i32::MAX)),
            )
            .await?;
        let due = |row: &PgRow| {
            Ok::<_, sqlx::Error>(DueSchedule {
                name: row.try_get("name")?,
                revision: row.try_get("revision")?,
                cron: row.try_get("cron")?,
                zone: row.try_get("zone")?,
                every: row.try_get("every")?,
                once: row.try_get::<&str, _>("missed")? == "once",
                next_tick: row.try_get("next_tick")?,
                now: row.try_get("now")?,
                seconds: row.try_get("seconds")?,
            })
        };
        Ok(rows.iter().map(due).collect::<Result<_, _>>()?)
    }

    /// Makes a tick of a schedule a job and moves the schedule on, or with `tick` `None` only moves it on. Does nothing when the
    /// row is not any more what was read.
    ///
    /// # Errors
    /// [`Error::Refused`] when the job cannot be enqueued, now or ever.
    pub async fn schedule_fire(
        &self,
        read: &DueSchedule,
        tick: Option<Timestamp>,
        next: Timestamp,
    ) -> Result<Fired, Error> {
        let row = self
            .optional(
                sqlx::query(include_str!("sql/schedule_fire.sql"))
                    .bind(&read.name)
                    .bind(read.revision)
                    .bind(read.next_tick)
                    .bind(tick)
                    .bind(next),
            )
            .await?;
        let Some(row) = row else {
            return Ok(Fired::NotOurs);
        };
        Ok(match row.try_get::<Option<i64>, _>("job")? {
            Some(job) => Fired::Job(JobId(job)),
            None if row.try_get("busy")? => Fired::Busy,
            None => Fired::Moved,
        })
    }

    /// Says why a schedule cannot tick.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn schedule_refuse(&self, read: &DueSchedule, why: &str) -> Result<(), Error> {
        self.run(
            sqlx::query(include_str!("sql/schedule_refuse.sql"))
                .bind(&read.name)
                .bind(read.revision)
                .bind(why),
        )
        .await
    }

    /// Puts a schedule of the settings into the table. False: the name belongs to one that was made by SQL.
    ///
    /// # Errors
    /// [`Error::Refused`] for values that no schedule can have.
    pub async fn schedule_declare(&self, schedule: &NewSchedule) -> Result<bool, Error> {
        let query = sqlx::query(include_str!("sql/schedule_declare.sql"));
        Ok(self.optional(bound(query, schedule)).await?.is_some())
    }

    /// Makes or changes a schedule. False: it stood there just like this.
    ///
    /// # Errors
    /// [`Error::Refused`] for values that no schedule can have, or when a runner has it in its settings.
    pub async fn schedule(&self, schedule: &NewSchedule) -> Result<bool, Error> {
        let query = sqlx::query(include_str!("sql/schedule.sql"));
        Ok(self.one(bound(query, schedule)).await?.try_get("changed")?)
    }

    /// Removes a schedule. False: there is none of this name.
    ///
    /// # Errors
    /// [`Error::Refused`] when a runner has it in its settings.
    pub async fn unschedule(&self, name: &str) -> Result<bool, Error> {
        let query = sqlx::query(include_str!("sql/unschedule.sql")).bind(name);
        Ok(self.one(query).await?.try_get("changed")?)
    }

    /// Pauses a schedule, or with `false` resumes it. Returns whether that changed anything.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn pause_schedule(&self, name: &str, to: bool) -> Result<bool, Error> {
        let text = if to {
            include_str!("sql/pause_schedule.sql")
        } else {
            include_str!("sql/resume_schedule.sql")
        };
        let row = self.one(sqlx::query(text).bind(name)).await?;
        Ok(row.try_get("changed")?)
    }

    /// Forgets schedules that no settings declare any more, and old ticks; returns the names of the schedules.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn schedules_prune(&self) -> Result<Vec<String>, Error> {
        let rows = self
            .all(sqlx::query(include_str!("sql/schedules_prune.sql")))
            .await?;
        let names = rows.iter().map(|row| row.try_get("name"));
        Ok(names.collect::<Result<_, _>>()?)
    }

    /// All schedules, by name.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn schedules_list(&self) -> Result<Vec<ScheduleLine>, Error> {
        let rows = self
            .all(sqlx::query(include_str!("sql/schedules_list.sql")))
            .await?;
        Ok(rows.iter().map(line).collect::<Result<_, _>>()?)
    }
}

/// The arguments that `schedule.sql` and `schedule_declare.sql` share.
fn bound<'q>(query: Query<'q>, schedule: &'q NewSchedule) -> Query<'q> {
    query
        .bind(&schedule.name)
        .bind(&schedule.job_type)
        .bind(&schedule.payload)
        .bind(schedule.priority)
        .bind(schedule.max_attempts)
        .bind(&schedule.ordering_key)
        .bind(&schedule.cron)
        .bind(&schedule.zone)
        .bind(schedule.every.map(|every| every.as_secs_f64()))
        .bind(&schedule.missed)
        .bind(&schedule.overlap)
        .bind(&schedule.tick_as)
}

fn line(row: &PgRow) -> Result<ScheduleLine, sqlx::Error> {
    let time = |name: &str| {
        row.try_get::<Option<Timestamp>, _>(name)
            .map(|time| time.map(|time| time.to_string()))
    };
    let payload = row.try_get::<String, _>("payload")?;
    Ok(ScheduleLine {
        name: row.try_get("name")?,
        state: row.try_get("state")?,
        source: row.try_get("source")?,
        job_type: row.try_get("job_type")?,
        cron: row.try_get("cron")?,
        zone: row.try_get("zone")?,
        every_seconds: row.try_get("every")?,
        next_tick: time("next_tick")?,
        last_tick: time("last_tick")?,
        last_job: row.try_get::<Option<i64>, _>("last_job")?.map(JobId),
        problem: row.try_get("problem")?,
        missed: row.try_get("missed")?,
        overlap: row.try_get("overlap")?,
        payload: serde_json::value::RawValue::from_string(payload)
            .map_err(|error| sqlx::Error::Decode(error.into()))?,
        priority: row.try_get("priority")?,
        max_attempts: row.try_get("max_attempts")?,
        ordering_key: row.try_get("ordering_key")?,
        tick_as: row.try_get("tick_as")?,
    })
}
