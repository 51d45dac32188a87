//! What a runner may take of job types that have limits over all runners, or jobs with group keys.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::config::FleetLimits;
use crate::job::{JobType, Priority, Timestamp};

/// What is wanted of one such job type.
#[derive(Clone, Debug)]
pub struct Quota {
    /// The job type.
    pub job_type: JobType,
    /// Free slots of it.
    pub want: u32,
    /// In the order in which they are to be served.
    pub priorities: Vec<Priority>,
    /// Low-water marks of its jobs without a group key, by priority; none: look at all.
    pub marks: Vec<(Priority, (Timestamp, i64))>,
    /// Its limits.
    pub limits: FleetLimits,
    /// What the last answer about it said.
    pub known: Known,
}

/// What one answer tells the next call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Known {
    /// The group that was served last, by priority.
    pub cursors: BTreeMap<String, String>,
    /// None of its jobs that count has a smaller claim.
    pub oldest: Option<i64>,
}

/// What an answer says about a job type.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Note {
    /// It has jobs with a group key.
    pub groups: bool,
    /// There may be more to take.
    pub more: bool,
    /// The time of some has come: they are to be [settled](super::Store::settle).
    pub due: bool,
    /// The type as a whole is at its limit.
    pub full: bool,
    /// Seconds after which a limit may allow more.
    pub again: Option<f64>,
    /// For the next call.
    #[serde(flatten)]
    pub known: Known,
}

impl Note {
    /// How long until a limit may allow more.
    pub fn again(&self) -> Option<Duration> {
        let seconds = self.again?;
        Some(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::from_secs(1)))
    }
}

/// The parameter of `piecework.take`.
pub(super) fn wanted(quotas: &[Quota]) -> String {
    let quotas: Vec<_> = quotas
        .iter()
        .map(|quota| {
            let marks: serde_json::Map<_, _> = quota
                .marks
                .iter()
                .filter(|(_, (at, _))| *at != Timestamp::MIN)
                .map(|(priority, (at, id))| {
                    (priority.0.to_string(), serde_json::json!({ "at": at.0, "id": id }))
                })
                .collect();
            serde_json::json!({
                "job_type": quota.job_type,
                "want": quota.want,
                "priorities": quota.priorities.iter().map(|priority| priority.0).collect::<Vec<_>>(),
                "marks": marks,
                "cursors": quota.known.cursors,
                "oldest": quota.known.oldest,
                "running": quota.limits.running,
                "group_running": quota.limits.group_running,
                "starts": quota.limits.starts,
                "group_starts": quota.limits.group_starts,
                "starts_per": quota.limits.per.as_secs_f64(),
            })
        })
        .collect();
    serde_json::Value::Array(quotas).to_string()
}

/// A row of `round.sql` with a note.
pub(super) fn note(row: &PgRow, text: &str) -> Result<(JobType, Note), sqlx::Error> {
    let note = serde_json::from_str(text).map_err(|error| sqlx::Error::Decode(error.into()))?;
    Ok((row.try_get::<&str, _>("job_type")?.into(), note))
}
