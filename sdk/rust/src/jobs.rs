//! The queue, as a handler sees it.

use serde::Serialize;

use crate::bindings::piecework::handler::jobs as host;
use crate::{Error, Result};

/// Tells people how far the attempt is. Percent above 100 counts as 100.
pub fn progress(percent: u8, message: &str) {
    host::progress(percent, message);
}

/// Whether the host wants this attempt to end soon: the job was cancelled, or the host stops.
pub fn cancelled() -> bool {
    host::cancelled()
}

/// A job to enqueue when this attempt succeeds: in the same transaction, or not at all.
///
/// ```no_run
/// # use piecework_handler::prelude::*;
/// # fn f() -> Result<()> {
/// FollowUp::new("send-mail", &json!({ "to": "ann@example.com" }))?
///     .delay(60)
///     .unique_key("mail-7")
///     .enqueue()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is enqueued without `enqueue`"]
pub struct FollowUp(host::NewJob);

impl FollowUp {
    /// A job of this type.
    ///
    /// # Errors
    /// When the payload cannot be written as JSON.
    pub fn new(job_type: &str, payload: &impl Serialize) -> Result<Self> {
        let payload = serde_json::to_string(payload).map_err(|error| {
            Error::discard(format!(
                "the payload of a follow-up cannot be written: {error}"
            ))
        })?;
        Ok(Self(host::NewJob {
            job_type: job_type.to_owned(),
            payload,
            delay: None,
            due_at: None,
            priority: None,
            max_attempts: None,
            unique_key: None,
            unique_for: None,
            ordering_key: None,
            group_key: None,
        }))
    }

    /// Seconds from the success of this attempt; not together with `due_at`.
    pub fn delay(mut self, seconds: u32) -> Self {
        self.0.delay = Some(seconds);
        self
    }

    /// RFC 3339; not together with `delay`.
    pub fn due_at(mut self, time: impl Into<String>) -> Self {
        self.0.due_at = Some(time.into());
        self
    }

    /// 1 first to 4 last; 2 when not given.
    pub fn priority(mut self, priority: u8) -> Self {
        self.0.priority = Some(priority);
        self
    }

    /// 5 when not given.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.0.max_attempts = Some(attempts);
        self
    }

    /// At most one pending or running job of a type has the same key: where there is one already, nothing is enqueued.
    pub fn unique_key(mut self, key: impl Into<String>) -> Self {
        self.0.unique_key = Some(key.into());
        self
    }

    /// Seconds during which the key stays taken, also when its job has ended by then.
    pub fn unique_for(mut self, seconds: u32) -> Self {
        self.0.unique_for = Some(seconds);
        self
    }

    /// Jobs with the same key run one after another.
    pub fn ordering_key(mut self, key: impl Into<String>) -> Self {
        self.0.ordering_key = Some(key.into());
        self
    }

    /// Whom the job is for: jobs of a type take turns between groups.
    pub fn group_key(mut self, key: impl Into<String>) -> Self {
        self.0.group_key = Some(key.into());
        self
    }

    /// Hands it to the host.
    ///
    /// # Errors
    /// Discards this job when the follow-up is wrong; the text says what is.
    pub fn enqueue(self) -> Result<()> {
        host::enqueue(&self.0).map_err(|error| {
            Error::discard(format!("the follow-up `{}`: {error}", self.0.job_type))
        })
    }
}
