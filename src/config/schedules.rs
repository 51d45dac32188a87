//! `[schedules.NAME]`: jobs at the times of a cron expression or at a fixed interval. Read whole when the file is, so that one that
//! can never tick is an error of the file.

use serde::{Deserialize, Serialize};

use super::Span;
use crate::job::{MAX_PAYLOAD_BYTES, check_json};
use crate::schedule::{Error, Spec};

/// `[schedules.NAME]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleSettings {
    /// The type of its jobs; its name when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_type: Option<String>,
    /// When it ticks: five fields, or six with the second first. One of this and `every`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// The time zone of `cron`, by its name in the IANA database; UTC when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// A fixed interval of whole seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<Span>,
    /// The payload of its jobs; an empty object when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<serde_json::Value>,
    /// 1 first to 4 last; 2 when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// How often a job may be tried; 5 when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i32>,
    /// Its jobs run one after another, and after all others with the same key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordering_key: Option<String>,
    /// Under this name the payload of each job has the time of its tick.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tick_as: Option<String>,
    /// What follows when nobody was there at a tick.
    pub missed: Missed,
    /// Whether a job is enqueued while that of the tick before has not ended.
    pub overlap: Overlap,
}

/// What follows from ticks that were missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Missed {
    /// Nothing: it goes on with the next tick.
    #[default]
    Skip,
    /// One job for all of them, with the time of the last.
    Once,
}

/// What follows when the job of the tick before has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// A job, as for every tick.
    #[default]
    Allow,
    /// None.
    Skip,
}

impl Missed {
    /// The word in SQL and in the file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Once => "once",
        }
    }
}

impl Overlap {
    /// The word in SQL and in the file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Skip => "skip",
        }
    }
}

impl ScheduleSettings {
    /// The payload as JSON text.
    pub fn payload_text(&self) -> String {
        self.payload
            .as_ref()
            .map_or_else(|| "{}".to_owned(), ToString::to_string)
    }

    /// Holds the keys against each other. The error is the key, if one is to blame, and what is wrong.
    pub(super) fn check(&self, name: &str) -> Result<(), (Option<&'static str>, String)> {
        let fault = |key: &'static str, what: String| {
            Err((Some(key), format!("`schedules.{name}.{key}`: {what}")))
        };
        let fits = |text: &str, most: usize| (1..=most).contains(&text.chars().count());
        if !fits(name, 200) {
            return Err((
                None,
                "the name of a schedule has 1 to 200 characters".into(),
            ));
        }
        let spec = match (&self.cron, self.every) {
            (Some(cron), None) => Spec::cron(cron, self.zone.as_deref().unwrap_or("UTC")),
            (None, Some(_)) if self.zone.is_some() => {
                return fault("zone", "a fixed interval has no time zone".into());
            }
            (None, Some(every)) => Spec::every(every.0),
            _ => {
                return Err((
                    None,
                    format!("`schedules.{name}` needs one of `cron` and `every`"),
                ));
            }
        };
        if let Err(error) = spec {
            let key = match error {
                Error::Zone(_) => "zone",
                Error::Interval(_) => "every",
                Error::Malformed { .. } | Error::Impossible { .. } => "cron",
            };
            return fault(key, error.to_string());
        }
        if self.job_type.as_ref().is_some_and(|text| !fits(text, 200)) {
            return fault("job_type", "a job type has 1 to 200 characters".into());
        }
        if self
            .ordering_key
            .as_ref()
            .is_some_and(|text| !fits(text, 500))
        {
            return fault(
                "ordering_key",
                "an ordering key has 1 to 500 characters".into(),
            );
        }
        if self
            .priority
            .is_some_and(|priority| !(1..=4).contains(&priority))
        {
            return fault("priority", "a priority is 1 (first) to 4 (last)".into());
        }
        if self
            .max_attempts
            .is_some_and(|most| !(1..=100_000).contains(&most))
        {
            return fault(
                "max_attempts",
                "a job may be tried 1 to 100000 times".into(),
            );
        }
        if self.tick_as.as_ref().is_some_and(|text| !fits(text, 100)) {
            return fault("tick_as", "it has 1 to 100 characters".into());
        }
        let object = self
            .payload
            .as_ref()
            .is_none_or(serde_json::Value::is_object);
        if self.tick_as.is_some() && !object {
            return fault(
                "tick_as",
                "the payload is no object, so that the tick cannot be put into it".into(),
            );
        }
        if self.payload.as_ref().is_some_and(has_date) {
            return fault(
                "payload",
                "it has a date without quotes, which JSON does not know: write it as text".into(),
            );
        }
        if let Err(error) = check_json(&self.payload_text(), MAX_PAYLOAD_BYTES) {
            return fault("payload", error.to_string());
        }
        Ok(())
    }
}

/// A bare date of the file arrives as an object with this one key.
fn has_date(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Object(object) => {
            object.contains_key("$__toml_private_datetime") || object.values().any(has_date)
        }
        serde_json::Value::Array(values) => values.iter().any(has_date),
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;

    fn refusal(text: &str) -> String {
        Config::parse(text, Path::new("runner.toml"))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn o_22_a_schedule_that_can_never_tick_is_an_error_of_the_file() {
        assert_eq!(
            refusal("[schedules.report]\nmissed = \"once\"\ncron = \"0 0 30 2 *\"\n"),
            "`runner.toml` line 3: `schedules.report.cron`: the cron expression `0 0 30 2 *` can never tick: no month that it names has a day 30"
        );
    }

    #[test]
    fn bad_schedules_are_refused_with_their_line() {
        for (text, says) in [
            (
                "missed = \"once\"",
                "line 1: `schedules.a` needs one of `cron` and `every`",
            ),
            (
                "cron = \"@daily\"\nevery = \"1h\"",
                "line 1: `schedules.a` needs one of",
            ),
            (
                "cron = \"* * *\"",
                "line 2: `schedules.a.cron`: the cron expression `* * *` is not understood: it has 3 fields",
            ),
            (
                "cron = \"@daily\"\nzone = \"Berlin\"",
                "line 3: `schedules.a.zone`: the time zone `Berlin` is not known",
            ),
            (
                "every = \"1h\"\nzone = \"UTC\"",
                "line 3: `schedules.a.zone`: a fixed interval has no time zone",
            ),
            (
                "every = \"100ms\"",
                "line 2: `schedules.a.every`: the interval 100ms is not one of whole seconds",
            ),
            ("every = \"90\"", "line 2: `90` is not a duration"),
            (
                "cron = \"@daily\"\njob_type = \"\"",
                "line 3: `schedules.a.job_type`: a job type has 1 to 200",
            ),
            (
                "cron = \"@daily\"\npriority = 5",
                "line 3: `schedules.a.priority`: a priority is 1",
            ),
            (
                "cron = \"@daily\"\nmax_attempts = 0",
                "line 3: `schedules.a.max_attempts`: ",
            ),
            (
                "cron = \"@daily\"\nordering_key = \"\"",
                "line 3: `schedules.a.ordering_key`: ",
            ),
            (
                "cron = \"@daily\"\npayload = [1]\ntick_as = \"at\"",
                "line 4: `schedules.a.tick_as`: the payload is no object",
            ),
            (
                "cron = \"@daily\"\npayload = { day = 2026-01-01 }",
                "line 3: `schedules.a.payload`: it has a date without quotes",
            ),
            (
                "cron = \"@daily\"\npayload = { a = \"x\\u0000y\" }",
                "line 3: `schedules.a.payload`: ",
            ),
            (
                "cron = \"@daily\"\nmissed = \"all\"",
                "line 3: unknown variant `all`",
            ),
            (
                "crn = \"@daily\"",
                "line 2: the key `crn` is not known; did you mean `cron`?",
            ),
        ] {
            let error = refusal(&format!("[schedules.a]\n{text}\n"));
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
