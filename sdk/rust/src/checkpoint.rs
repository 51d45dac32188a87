//! What a job remembers from attempt to attempt.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::bindings::piecework::handler::checkpoint as host;
use crate::{Error, Result};

/// What was saved under this name, by this attempt or an earlier one.
///
/// # Errors
/// Discards the job when what was saved is of another type.
pub fn load<T: DeserializeOwned>(name: &str) -> Result<Option<T>> {
    let Some(text) = host::load(name) else {
        return Ok(None);
    };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|error| Error::discard(format!("the checkpoint `{name}`: {error}")))
}

/// Keeps a value under a name. It is in the database when this returns, whatever becomes of the attempt.
///
/// # Errors
/// A retry when it is too large, or the database cannot be reached; in the last case it may have been written all the same.
pub fn save<T: Serialize>(name: &str, value: &T) -> Result<()> {
    let text = serde_json::to_string(value).map_err(|error| {
        Error::discard(format!(
            "the checkpoint `{name}` cannot be written: {error}"
        ))
    })?;
    host::save(name, &text)
        .map_err(|error| Error::retry(format!("the checkpoint `{name}`: {error}")))
}
