//! Why an attempt came to nothing, and what the host does then.

use std::fmt;

use crate::bindings::piecework::handler::types::{Disposition, Failure};

/// What a handler returns; any error becomes a retry by `?`.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed attempt: a text for people, and what to do next.
///
/// Like `anyhow::Error` it is no `std::error::Error` itself, so that every such error can become one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    message: String,
    wish: Wish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Retry,
    RetryAfter(u32),
    Snooze(u32),
    Discard,
}

impl Error {
    /// Try again after the plugin's backoff, while attempts are left.
    pub fn retry(message: impl fmt::Display) -> Self {
        Self::new(message, Wish::Retry)
    }

    /// Try again after so many seconds, while attempts are left.
    pub fn retry_after(seconds: u32, message: impl fmt::Display) -> Self {
        Self::new(message, Wish::RetryAfter(seconds))
    }

    /// Nothing went wrong, it is only too early: run again after so many seconds. No attempt is used.
    pub fn snooze(seconds: u32, message: impl fmt::Display) -> Self {
        Self::new(message, Wish::Snooze(seconds))
    }

    /// Trying again is useless: the job fails now.
    pub fn discard(message: impl fmt::Display) -> Self {
        Self::new(message, Wish::Discard)
    }

    fn new(message: impl fmt::Display, wish: Wish) -> Self {
        Self {
            message: message.to_string(),
            wish,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl<E: std::error::Error> From<E> for Error {
    fn from(error: E) -> Self {
        Self::retry(chain(&error))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            message: error.message,
            disposition: match error.wish {
                Wish::Retry => Disposition::Retry,
                Wish::RetryAfter(seconds) => Disposition::RetryAfter(seconds),
                Wish::Snooze(seconds) => Disposition::Snooze(seconds),
                Wish::Discard => Disposition::Discard,
            },
        }
    }
}

/// Another disposition for an error than a retry: `text.parse::<u32>().or_discard()?`.
pub trait OrElse<T> {
    /// Trying again is useless.
    fn or_discard(self) -> Result<T>;
    /// Try again after so many seconds.
    fn or_retry_after(self, seconds: u32) -> Result<T>;
    /// Too early: run again after so many seconds, without using an attempt.
    fn or_snooze(self, seconds: u32) -> Result<T>;
}

impl<T, E: std::error::Error> OrElse<T> for std::result::Result<T, E> {
    fn or_discard(self) -> Result<T> {
        self.map_err(|error| Error::discard(chain(&error)))
    }

    fn or_retry_after(self, seconds: u32) -> Result<T> {
        self.map_err(|error| Error::retry_after(seconds, chain(&error)))
    }

    fn or_snooze(self, seconds: u32) -> Result<T> {
        self.map_err(|error| Error::snooze(seconds, chain(&error)))
    }
}

/// The error and its causes. Some errors have their cause's text in their own: it is not said twice.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}
