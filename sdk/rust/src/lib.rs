//! Handlers for Piecework, in Rust: a function from a job and its payload to a result.
//!
//! ```
//! use piecework_handler::prelude::*;
//!
//! #[derive(Deserialize)]
//! struct Payload {
//!     name: String,
//! }
//!
//! fn run(job: Job, payload: Payload) -> Result<String> {
//!     if payload.name.is_empty() {
//!         return Err(Error::discard("there is nobody to greet"));
//!     }
//!     info!("attempt {} of {}", job.attempt, job.max_attempts);
//!     Ok(format!("Hello, {}", payload.name))
//! }
//!
//! piecework_handler::handler!(run);
//! ```
//!
//! A payload that does not fit the type fails the job at once. `?` on any error is a retry with the whole chain of causes; the
//! constructors of [`Error`] and [`OrElse`] say something else. A panic is a retry, too; its message is in the job's error.

mod bindings;
pub mod checkpoint;
pub mod config;
mod error;
pub mod http;
pub mod jobs;
pub mod log;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use bindings::piecework::handler::types::Job;
pub use error::{Error, OrElse, Result};
pub use serde_json::json;

/// What most handlers use.
pub mod prelude {
    pub use crate::jobs::{FollowUp, cancelled, progress};
    pub use crate::{
        Error, Job, OrElse, Result, checkpoint, config, debug, error, http, info, json, warn,
    };
    pub use serde::{Deserialize, Serialize};
}

/// Makes a function the component's handler: `fn(Job, P) -> Result<R>`, where `P` is read from the payload and `R` becomes the
/// result, both by serde.
#[macro_export]
#[rustfmt::skip]
macro_rules! handler {
    ($run:path) => {
        const _: () = {
            struct Handler;

            impl $crate::__private::Guest for Handler {
                fn run(
                    job: $crate::Job,
                ) -> ::core::result::Result<
                    ::core::option::Option<::std::string::String>,
                    $crate::__private::Failure,
                > {
                    $crate::__private::call(job, $run)
                }
            }

            $crate::__private::export!(Handler with_types_in $crate::__private);
        };
    };
}

/// For the macro.
#[doc(hidden)]
pub mod __private {
    pub use crate::bindings::piecework::handler::types::Failure;
    pub use crate::bindings::*;

    use super::{DeserializeOwned, Error, Result, Serialize};

    /// Reads the payload, runs the handler, writes the result.
    pub fn call<P: DeserializeOwned, R: Serialize>(
        job: Job,
        run: impl FnOnce(Job, P) -> Result<R>,
    ) -> ::core::result::Result<Option<String>, Failure> {
        let payload = serde_json::from_str(&job.payload)
            .map_err(|error| Error::discard(format!("the payload: {error}")))?;
        let result = run(job, payload)?;
        let text = serde_json::to_string(&result)
            .map_err(|error| Error::discard(format!("the result cannot be written: {error}")))?;
        Ok(Some(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    fn job(payload: &str) -> Job {
        Job {
            id: "1".into(),
            job_type: "greet".into(),
            payload: payload.into(),
            attempt: 1,
            max_attempts: 5,
            idempotency_key: "key".into(),
            ordering_key: None,
            group_key: None,
            enqueued_at: "2026-01-01T00:00:00Z".into(),
            due_at: "2026-01-01T00:00:00Z".into(),
            parent: None,
        }
    }

    #[derive(Debug, Deserialize)]
    struct Payload {
        name: String,
    }

    #[test]
    fn a_result_is_written_as_json() {
        let done = __private::call(job(r#"{"name":"Ann"}"#), |_, payload: Payload| {
            Ok(payload.name)
        });
        assert_eq!(done.unwrap().as_deref(), Some("\"Ann\""));
    }

    #[test]
    fn a_payload_that_does_not_fit_is_discarded_and_the_member_named() {
        let failed =
            __private::call(job("{}"), |_, payload: Payload| Ok(payload.name)).unwrap_err();
        assert!(failed.message.contains("`name`"), "{}", failed.message);
        assert!(matches!(
            failed.disposition,
            bindings::piecework::handler::types::Disposition::Discard
        ));
    }

    #[test]
    fn an_ordinary_error_is_a_retry_with_its_causes() {
        #[derive(Debug)]
        struct Outer(std::num::ParseIntError);
        impl std::fmt::Display for Outer {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the amount")
            }
        }
        impl std::error::Error for Outer {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }
        let failed = __private::call(job("{}"), |_, _: serde_json::Value| -> Result<u32> {
            Ok("x".parse::<u32>().map_err(Outer)?)
        })
        .unwrap_err();
        assert_eq!(failed.message, "the amount: invalid digit found in string");
        assert!(matches!(
            failed.disposition,
            bindings::piecework::handler::types::Disposition::Retry
        ));
    }

    #[test]
    fn an_error_is_given_another_disposition() {
        let failed = "x".parse::<u32>().or_retry_after(30).unwrap_err();
        assert_eq!(
            failed,
            Error::retry_after(30, "invalid digit found in string")
        );
        let failed = "x".parse::<u32>().or_discard().unwrap_err();
        assert_eq!(failed, Error::discard("invalid digit found in string"));
    }
}
