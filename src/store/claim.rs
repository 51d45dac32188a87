//! The claim: what a runner asks for, and the one statement that takes it.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};

use super::link::within;
use super::{Error, Store, rows};
use crate::job::{Claimed, JobType, Priority, RunnerId, Timestamp};

/// One index-ordered look at the jobs of one type and priority.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// The job type.
    pub job_type: JobType,
    /// The priority.
    pub priority: Priority,
    /// Free slots of the job type; the same at each of its priorities.
    pub want: u32,
    /// Jobs at or before this place were claimed before.
    pub mark: (Timestamp, i64),
}

/// What a runner can start now.
#[derive(Clone, Debug)]
pub struct Demand {
    /// Who claims.
    pub runner: RunnerId,
    /// In the order in which they are to be served.
    pub picks: Vec<Pick>,
    /// Most jobs in all.
    pub total: u32,
    /// How long after the claim a job counts as lost even though its runner lives.
    pub deadlines: BTreeMap<JobType, Duration>,
}

impl Store {
    /// Claims due jobs, in the order in which they are to be started. Committed when it returns.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn claim(&self, demand: &Demand) -> Result<Vec<Claimed>, Error> {
        let mut link = self.link().await?;
        let limit = link.limit;
        let work = within(limit, claim(link.connection(), demand)).await;
        link.settle(work)
    }
}

pub(super) async fn claim(
    connection: &mut PgConnection,
    demand: &Demand,
) -> Result<Vec<Claimed>, sqlx::Error> {
    let rows = bind(include_str!("sql/claim.sql"), demand)
        .fetch_all(connection)
        .await?;
    let mut claimed = rows
        .iter()
        .map(rows::claimed)
        .collect::<Result<Vec<_>, _>>()?;
    // RETURNING has no order of its own.
    claimed.sort_unstable_by_key(|job| (job.priority, job.due_at, job.id));
    Ok(claimed)
}

/// The plan of the claim, in a transaction that takes its setting back.
pub(super) async fn plan(
    connection: &mut PgConnection,
    demand: &Demand,
    generic: bool,
) -> Result<Vec<String>, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let mode = if generic {
        "force_generic_plan"
    } else {
        "force_custom_plan"
    };
    sqlx::query("select set_config('plan_cache_mode', $1, true)")
        .bind(mode)
        .execute(&mut *transaction)
        .await?;
    let text = concat!("explain (costs off) ", include_str!("sql/claim.sql"));
    let rows = bind(text, demand).fetch_all(&mut *transaction).await?;
    transaction.rollback().await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

fn bind<'q>(
    text: &'static str,
    demand: &'q Demand,
) -> sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments> {
    let picks = &demand.picks;
    let mut deadlines = serde_json::Map::new();
    for (job_type, limit) in &demand.deadlines {
        deadlines.insert(job_type.as_str().to_owned(), limit.as_secs_f64().into());
    }
    sqlx::query(text)
        .bind(
            picks
                .iter()
                .map(|pick| pick.job_type.as_str())
                .collect::<Vec<_>>(),
        )
        .bind(picks.iter().map(|pick| pick.priority.0).collect::<Vec<_>>())
        .bind(
            picks
                .iter()
                .map(|pick| count(pick.want))
                .collect::<Vec<_>>(),
        )
        .bind(picks.iter().map(|pick| pick.mark.0).collect::<Vec<_>>())
        .bind(picks.iter().map(|pick| pick.mark.1).collect::<Vec<_>>())
        .bind(serde_json::Value::Object(deadlines).to_string())
        .bind(count(demand.total))
        .bind(demand.runner.0)
}

fn count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
