//! The finish: what attempts came to, written many at once and fenced, together with the next claim where both are due.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection, Row};

use super::claim::{Demand, claim};
use super::link::within;
use super::{Error, Store};
use crate::job::{ClaimToken, Claimed, FailureClass, FollowUp, JobId, Usage};

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
    /// SHA-256 of the component that ran.
    pub plugin: [u8; 32],
}

/// What one round of writing and claiming came to.
#[derive(Debug, Default)]
pub struct Cycle {
    /// The finishes that were stale: their claim was not the row's any more, and nothing of them was written.
    pub stale: Vec<(JobId, ClaimToken)>,
    /// The jobs to start.
    pub claimed: Vec<Claimed>,
    /// What the claim took.
    pub claim_took: Duration,
}

impl Store {
    /// Writes `finishes` and claims by `demand`, in one short transaction. Either may be empty.
    ///
    /// Data that the database refuses (a result that no check foresaw) never strands the others: the finish it belongs to
    /// is written as a failure instead.
    ///
    /// # Errors
    /// As every call to the database. The call may be repeated: should only its answer have been lost, what it wrote comes
    /// back as stale ([`written_before`](Self::written_before) tells it apart), and what it claimed is found by
    /// [`release_strays`](Self::release_strays).
    pub async fn cycle(
        &self,
        finishes: &[Finish],
        demand: Option<&Demand>,
    ) -> Result<Cycle, Error> {
        if finishes.is_empty() {
            let begun = Instant::now();
            let claimed = match demand {
                Some(demand) => self.claim(demand).await?,
                None => Vec::new(),
            };
            return Ok(Cycle {
                stale: Vec::new(),
                claimed,
                claim_took: begun.elapsed(),
            });
        }
        let mut link = self.link().await?;
        let limit = link.limit;
        let work = within(limit, write(link.connection(), finishes, demand)).await;
        match link.settle(work) {
            Err(Error::Refused { message }) => {
                let salvaged = self.salvage(finishes, &message).await?;
                let claimed = self.cycle(&[], demand);
                Ok(Cycle {
                    stale: salvaged.stale,
                    ..Box::pin(claimed).await?
                })
            }
            other => other,
        }
    }

    /// Which of these attempts ended their jobs.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn written_before(
        &self,
        attempts: &[(JobId, ClaimToken)],
    ) -> Result<HashSet<(JobId, ClaimToken)>, Error> {
        let query = sqlx::query(include_str!("sql/written_before.sql"))
            .bind(attempts.iter().map(|(id, _)| id.0).collect::<Vec<_>>())
            .bind(
                attempts
                    .iter()
                    .map(|(_, claim)| claim.0)
                    .collect::<Vec<_>>(),
            );
        Ok(self
            .all(query)
            .await?
            .iter()
            .map(pair)
            .collect::<Result<_, _>>()?)
    }

    /// Finds the finishes that the database refuses, by halves, and writes them as failures.
    async fn salvage(&self, finishes: &[Finish], message: &str) -> Result<Cycle, Error> {
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
            let mut link = self.link().await?;
            let limit = link.limit;
            let work = within(
                limit,
                write(link.connection(), std::slice::from_ref(&spoiled), None),
            )
            .await;
            return link.settle(work);
        }
        let (left, right) = finishes.split_at(finishes.len() / 2);
        let mut cycle = Box::pin(self.cycle(left, None)).await?;
        cycle
            .stale
            .extend(Box::pin(self.cycle(right, None)).await?.stale);
        Ok(cycle)
    }
}

async fn write(
    connection: &mut PgConnection,
    finishes: &[Finish],
    demand: Option<&Demand>,
) -> Result<Cycle, sqlx::Error> {
    let follow_ups = finishes.iter().any(|finish| !finish.follow_ups.is_empty());
    if demand.is_none() && !follow_ups {
        // One statement needs no transaction around it.
        let written = finish(connection, finishes).await?;
        return Ok(Cycle {
            stale: missing(finishes, &written),
            ..Cycle::default()
        });
    }
    let mut transaction = connection.begin().await?;
    let written = finish(&mut transaction, finishes).await?;
    if follow_ups {
        let jobs: Vec<&FollowUp> = finishes
            .iter()
            .filter(|finish| {
                written.contains(&(finish.id, finish.claim))
                    && matches!(finish.verdict, Verdict::Done(_))
            })
            .flat_map(|finish| &finish.follow_ups)
            .collect();
        if !jobs.is_empty() {
            let jobs =
                serde_json::to_string(&jobs).map_err(|error| sqlx::Error::Encode(error.into()))?;
            sqlx::query(include_str!("sql/enqueue_many.sql"))
                .bind(jobs)
                .fetch_all(&mut *transaction)
                .await?;
        }
    }
    let begun = Instant::now();
    let claimed = match demand {
        Some(demand) => claim(&mut transaction, demand).await?,
        None => Vec::new(),
    };
    let claim_took = begun.elapsed();
    transaction.commit().await?;
    Ok(Cycle {
        stale: missing(finishes, &written),
        claimed,
        claim_took,
    })
}

async fn finish(
    connection: &mut PgConnection,
    finishes: &[Finish],
) -> Result<HashSet<(JobId, ClaimToken)>, sqlx::Error> {
    fn column<T>(finishes: &[Finish], value: impl Fn(&Finish) -> T) -> Vec<T> {
        finishes.iter().map(value).collect()
    }
    let again = |finish: &Finish| match finish.verdict {
        Verdict::Again { delay, refund } => (delay.as_secs_f64(), refund),
        Verdict::Done(_) | Verdict::Failed => (0.0, false),
    };
    let rows = sqlx::query(include_str!("sql/finish.sql"))
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
            Verdict::Done(result) => result.clone(),
            Verdict::Failed | Verdict::Again { .. } => None,
        }))
        .bind(column(finishes, |finish| {
            finish.failure.as_ref().map(|(class, _)| class.as_str())
        }))
        .bind(column(finishes, |finish| {
            finish.failure.as_ref().map(|(_, text)| text.clone())
        }))
        .bind(column(finishes, |finish| finish.output.clone()))
        .bind(column(finishes, |finish| finish.plugin.to_vec()))
        .bind(column(finishes, |finish| {
            whole(finish.usage.run.as_micros())
        }))
        .bind(column(finishes, |finish| {
            whole(finish.usage.cpu.as_micros())
        }))
        .bind(column(finishes, |finish| {
            finish.usage.fuel.map(|fuel| whole(fuel.into()))
        }))
        .bind(column(finishes, |finish| {
            whole(finish.usage.peak_memory.into())
        }))
        .fetch_all(connection)
        .await?;
    rows.iter().map(pair).collect()
}

fn pair(row: &PgRow) -> Result<(JobId, ClaimToken), sqlx::Error> {
    Ok((JobId(row.try_get("id")?), ClaimToken(row.try_get("claim")?)))
}

fn missing(
    finishes: &[Finish],
    written: &HashSet<(JobId, ClaimToken)>,
) -> Vec<(JobId, ClaimToken)> {
    finishes
        .iter()
        .map(|finish| (finish.id, finish.claim))
        .filter(|attempt| !written.contains(attempt))
        .collect()
}

fn whole(number: u128) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
