//! The finish: what one attempt came to, as it is to be written.

use std::collections::HashSet;
use std::time::Duration;

use super::round::pair;
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

impl Store {
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
}
