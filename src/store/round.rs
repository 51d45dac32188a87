//! One round of a runner: outcomes written many at once and fenced, and due jobs claimed, in one statement.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection, Row};

use super::claim::Demand;
use super::finish::{Finish, Verdict, bind_usage, column};
use super::link::{Query, within};
use super::{Error, Note, Store, quota, rows};
use crate::job::{ClaimToken, Claimed, FailureClass, FollowUp, JobId, JobType};

/// What one round of writing and claiming came to.
#[derive(Debug, Default)]
pub struct Cycle {
    /// The finishes that were stale: their claim was not the row's any more, and nothing of them was written.
    pub stale: Vec<(JobId, ClaimToken)>,
    /// The jobs to start, in this order.
    pub claimed: Vec<Claimed>,
    /// There are keyed jobs to [`settle`](Store::settle).
    pub unsettled: bool,
    /// What the claim says about job types with limits over all runners, and of those that turned out to have groups.
    pub notes: Vec<(JobType, Note)>,
    /// The finishes whose rows another transaction has locked: nothing of them was written, try again later.
    pub held: Vec<(JobId, ClaimToken)>,
    /// The finishes were written, and the claim failed; should its answer only have been lost, its jobs are found by
    /// [`release_strays`](Store::release_strays).
    pub claim_failed: Option<Error>,
    /// What the round took.
    pub took: Duration,
}

impl Store {
    /// Writes `finishes` and claims by `demand`. Either may be empty.
    ///
    /// Data that the database refuses (a result that no check foresaw) never strands the others: the finish it belongs to
    /// is written as a failure instead.
    ///
    /// # Errors
    /// As every call to the database. The call may be repeated: should only its answer have been lost, what it wrote comes
    /// back as stale ([`ends`](Self::ends) tells it apart), and what it claimed is found by
    /// [`release_strays`](Self::release_strays).
    pub async fn round(
        &self,
        finishes: &[Finish],
        demand: Option<&Demand>,
    ) -> Result<Cycle, Error> {
        match self.try_round(finishes, demand).await {
            Err(Error::Refused { .. }) if !finishes.is_empty() => {
                let written = match self.try_round(finishes, None).await {
                    // It was the claim that was refused, then.
                    Ok(cycle) => cycle,
                    Err(Error::Refused { message }) => Cycle {
                        stale: self.salvage(finishes, &message).await?,
                        ..Cycle::default()
                    },
                    Err(error) => return Err(error),
                };
                Ok(self.claim_after(written, demand).await)
            }
            Err(Error::Locked(_)) if !finishes.is_empty() => {
                let held = self.locked(finishes).await?;
                if held.is_empty() {
                    let written = self.apart(finishes).await?;
                    return Ok(self.claim_after(written, demand).await);
                }
                let free: Vec<_> = finishes
                    .iter()
                    .filter(|finish| !held.contains(&finish.id))
                    .cloned()
                    .collect();
                let mut written = self.try_round(&free, None).await?;
                written.held = finishes
                    .iter()
                    .filter(|finish| held.contains(&finish.id))
                    .map(|finish| (finish.id, finish.claim))
                    .collect();
                Ok(self.claim_after(written, demand).await)
            }
            answer => answer,
        }
    }

    /// The claim of a round whose finishes were written by themselves.
    async fn claim_after(&self, mut written: Cycle, demand: Option<&Demand>) -> Cycle {
        if demand.is_some() {
            match self.try_round(&[], demand).await {
                Ok(claim) => {
                    written = Cycle {
                        stale: written.stale,
                        held: written.held,
                        ..claim
                    }
                }
                Err(error) => written.claim_failed = Some(error),
            }
        }
        written
    }

    /// None of the rows is locked, so what is waited for is a unique key of a follow-up that somebody is enqueueing, or an
    /// ordering key: halves, until those that wait are alone. They are held.
    async fn apart(&self, finishes: &[Finish]) -> Result<Cycle, Error> {
        if let [finish] = finishes {
            return Ok(Cycle {
                held: vec![(finish.id, finish.claim)],
                ..Cycle::default()
            });
        }
        let (left, right) = finishes.split_at(finishes.len() / 2);
        let mut written = Box::pin(self.round(left, None)).await?;
        let other = Box::pin(self.round(right, None)).await?;
        written.stale.extend(other.stale);
        written.held.extend(other.held);
        Ok(written)
    }

    /// Which of these jobs' rows are locked by other transactions.
    async fn locked(&self, finishes: &[Finish]) -> Result<Vec<JobId>, Error> {
        let ids: Vec<_> = finishes.iter().map(|finish| finish.id.0).collect();
        let rows = self
            .all(sqlx::query(include_str!("sql/locked.sql")).bind(ids))
            .await?;
        let id = |row: &PgRow| row.try_get("id").map(JobId);
        Ok(rows.iter().map(id).collect::<Result<_, _>>()?)
    }

    async fn try_round(
        &self,
        finishes: &[Finish],
        demand: Option<&Demand>,
    ) -> Result<Cycle, Error> {
        let mut link = self.link().await?;
        let limit = link.limit;
        let work = within(limit, write(link.connection(), finishes, demand)).await;
        link.settle(work)
    }

    /// Finds the finishes that the database refuses, by halves, and writes them as failures. Returns the stale ones.
    async fn salvage(
        &self,
        finishes: &[Finish],
        message: &str,
    ) -> Result<Vec<(JobId, ClaimToken)>, Error> {
        if let [finish] = finishes {
            let spoiled = Finish {
                verdict: Verdict::Failed,
                failure: Some((
                    FailureClass::BadResult,
                    format!("the outcome cannot be stored: {message}"),
                )),
                follow_ups: Vec::new(),
                output: None,
                ..finish.clone()
            };
            return Ok(self.try_round(&[spoiled], None).await?.stale);
        }
        let (left, right) = finishes.split_at(finishes.len() / 2);
        let mut stale = Box::pin(self.round(left, None)).await?.stale;
        stale.extend(Box::pin(self.round(right, None)).await?.stale);
        Ok(stale)
    }
}

async fn write(
    connection: &mut PgConnection,
    finishes: &[Finish],
    demand: Option<&Demand>,
) -> Result<Cycle, sqlx::Error> {
    let begun = Instant::now();
    let text = include_str!("sql/round.sql");
    let alone = |finish: &Finish| finish.follow_ups.is_empty() && finish.ordering_key.is_none();
    let mut cycle = if finishes.iter().all(alone) {
        let rows = bind(text, finishes, demand).fetch_all(connection).await?;
        answer(finishes, &rows)?
    } else {
        // A claim under a limit makes others wait for the end of its transaction, which may itself wait for somebody's keys.
        let limited = |demand: &&Demand| demand.quotas.iter().any(|quota| quota.limits.any());
        let with = demand.filter(|demand| !limited(demand));
        let mut transaction = connection.begin().await?;
        let rows = bind(text, finishes, with)
            .fetch_all(&mut *transaction)
            .await?;
        let mut cycle = answer(finishes, &rows)?;
        enqueue_follow_ups(&mut transaction, finishes, &cycle.stale).await?;
        unblock(&mut transaction, finishes, &cycle.stale).await?;
        transaction.commit().await?;
        if with.is_none() && demand.is_some() {
            match bind(text, &[], demand).fetch_all(connection).await {
                Ok(rows) => {
                    let claim = answer(&[], &rows)?;
                    cycle = Cycle {
                        stale: cycle.stale,
                        ..claim
                    };
                }
                Err(error) => cycle.claim_failed = Some(error.into()),
            }
        }
        cycle
    };
    cycle.took = begun.elapsed();
    Ok(cycle)
}

/// Enqueues what the attempts that were written as done had asked for.
async fn enqueue_follow_ups(
    connection: &mut PgConnection,
    finishes: &[Finish],
    stale: &[(JobId, ClaimToken)],
) -> Result<(), sqlx::Error> {
    let jobs: Vec<&FollowUp> = finishes
        .iter()
        .filter(|finish| matches!(finish.verdict, Verdict::Done(_)))
        .filter(|finish| !stale.contains(&(finish.id, finish.claim)))
        .flat_map(|finish| &finish.follow_ups)
        .collect();
    if !jobs.is_empty() {
        let jobs =
            serde_json::to_string(&jobs).map_err(|error| sqlx::Error::Encode(error.into()))?;
        sqlx::query(include_str!("sql/enqueue_many.sql"))
            .bind(jobs)
            .fetch_all(connection)
            .await?;
    }
    Ok(())
}

/// Lets the next job of each ordering key start whose job was written as ended.
async fn unblock(
    connection: &mut PgConnection,
    finishes: &[Finish],
    stale: &[(JobId, ClaimToken)],
) -> Result<(), sqlx::Error> {
    let mut keys: Vec<&str> = finishes
        .iter()
        .filter(|finish| matches!(finish.verdict, Verdict::Done(_) | Verdict::Failed))
        .filter(|finish| !stale.contains(&(finish.id, finish.claim)))
        .filter_map(|finish| finish.ordering_key.as_deref())
        .collect();
    keys.sort_unstable();
    keys.dedup();
    if !keys.is_empty() {
        sqlx::query(include_str!("sql/unblock.sql"))
            .bind(keys)
            .fetch_all(connection)
            .await?;
    }
    Ok(())
}

fn answer(finishes: &[Finish], rows: &[PgRow]) -> Result<Cycle, sqlx::Error> {
    let (mut written, mut claimed, mut unsettled) = (HashSet::new(), Vec::new(), false);
    let mut notes = Vec::new();
    for row in rows {
        match row.try_get("claimed")? {
            Some(true) => claimed.push(rows::claimed(row)?),
            Some(false) => {
                written.insert(pair(row)?);
            }
            None => match row.try_get("note")? {
                Some(text) => {
                    let (job_type, note) = quota::note(row, text)?;
                    unsettled |= note.due;
                    notes.push((job_type, note));
                }
                None => unsettled = true,
            },
        }
    }
    // RETURNING has no order of its own.
    claimed.sort_unstable_by_key(|job| (job.priority, job.due_at, job.id));
    let attempts = finishes.iter().map(|finish| (finish.id, finish.claim));
    let stale = attempts
        .filter(|attempt| !written.contains(attempt))
        .collect();
    Ok(Cycle {
        stale,
        claimed,
        unsettled,
        notes,
        ..Cycle::default()
    })
}

/// The plan of a round, in a transaction that takes its setting back. With `run` it is carried out, and its buffers counted.
pub(super) async fn plan(
    connection: &mut PgConnection,
    demand: &Demand,
    generic: bool,
    run: bool,
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
    macro_rules! explain {
        ($how:literal) => {
            concat!(
                "explain (costs off",
                $how,
                ") ",
                include_str!("sql/round.sql")
            )
        };
    }
    let text = if run {
        explain!(", analyze, buffers, timing off, summary off")
    } else {
        explain!("")
    };
    let rows = bind(text, &[], Some(demand))
        .fetch_all(&mut *transaction)
        .await?;
    transaction.rollback().await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// The arguments of `round.sql`, in its order.
fn bind<'q>(text: &'static str, finishes: &'q [Finish], demand: Option<&'q Demand>) -> Query<'q> {
    let again = |finish: &Finish| match finish.verdict {
        Verdict::Again { delay, refund } => (delay.as_secs_f64(), refund),
        Verdict::Done(_) | Verdict::Failed => (0.0, false),
    };
    let picks = demand.map_or(&[][..], |demand| &demand.picks);
    let quotas = demand.map_or(&[][..], |demand| &demand.quotas);
    let counted: Vec<_> = quotas
        .iter()
        .filter(|quota| quota.limits.counts_running())
        .map(|quota| quota.job_type.as_str())
        .collect();
    let mut deadlines = serde_json::Map::new();
    for (job_type, limit) in demand.iter().flat_map(|demand| &demand.deadlines) {
        deadlines.insert(job_type.as_str().to_owned(), limit.as_secs_f64().into());
    }
    let query = sqlx::query(text)
        .bind(column(finishes, |finish| finish.id.0))
        .bind(column(finishes, |finish| finish.claim.0))
        .bind(column(finishes, |finish| match finish.verdict {
            Verdict::Done(_) => "done",
            Verdict::Failed => "failed",
            Verdict::Again { .. } => "again",
        }))
        .bind(column(finishes, |finish| again(finish).0))
        .bind(column(finishes, |finish| again(finish).1))
        .bind(column(finishes, |finish| match &finish.verdict {
            Verdict::Done(result) => result.as_deref(),
            Verdict::Failed | Verdict::Again { .. } => None,
        }))
        .bind(column(finishes, |finish| {
            finish.failure.as_ref().map(|(class, _)| class.as_str())
        }))
        .bind(column(finishes, |finish| {
            finish.failure.as_ref().map(|(_, text)| text.as_str())
        }))
        .bind(column(finishes, |finish| finish.output.as_deref()))
        .bind(column(finishes, |finish| {
            // No component ran.
            (finish.plugin != [0; 32]).then_some(finish.plugin.as_slice())
        }));
    bind_usage(query, finishes)
        .bind(column(finishes, |finish| {
            finish.progress.as_ref().map(|(percent, message)| {
                serde_json::json!({ "percent": percent, "message": message }).to_string()
            })
        }))
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
        .bind(count(demand.map_or(0, |demand| demand.total)))
        .bind(demand.map_or(0, |demand| demand.runner.0))
        .bind(quota::wanted(quotas))
        .bind(count(demand.map_or(0, |demand| demand.quota_total)))
        .bind(counted)
        .bind(
            demand
                .iter()
                .flat_map(|demand| &demand.probe)
                .map(JobType::as_str)
                .collect::<Vec<_>>(),
        )
}

/// What fences an attempt, from a row.
pub(super) fn pair(row: &PgRow) -> Result<(JobId, ClaimToken), sqlx::Error> {
    Ok((JobId(row.try_get("id")?), ClaimToken(row.try_get("claim")?)))
}

pub(super) fn count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

pub(super) fn whole(number: u128) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
