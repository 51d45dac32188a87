//! `jobs`: follow-ups are kept until the attempt succeeds, progress is passed on, `cancelled` tells.

use super::HostState;
use crate::engine::worlds::v0_1::piecework::handler::jobs;
use crate::job::{FollowUp, MAX_PAYLOAD_BYTES, check_json, storable};

/// Sum of the payloads of one attempt's follow-ups, in bytes.
const MAX_FOLLOW_UP_BYTES: usize = 16 * MAX_PAYLOAD_BYTES;

impl jobs::Host for HostState {
    fn enqueue(&mut self, job: jobs::NewJob) -> wasmtime::Result<Result<(), String>> {
        Ok(self.follow_up(job))
    }

    fn progress(&mut self, percent: u8, message: String) -> wasmtime::Result<()> {
        let message = storable(&message, self.limits.progress);
        self.progress.report(percent.min(100), message);
        Ok(())
    }

    fn cancelled(&mut self) -> wasmtime::Result<bool> {
        Ok(self.stop.is_asked())
    }
}

impl HostState {
    /// Checks everything that the database would refuse: a follow-up that is accepted here is enqueued with the success.
    fn follow_up(&mut self, job: jobs::NewJob) -> Result<(), String> {
        let most = self.limits.follow_ups;
        if self.follow_ups.len() >= most {
            return Err(format!("an attempt enqueues at most {most} jobs"));
        }
        let bytes = self
            .follow_up_bytes
            .saturating_add(job.payload.len())
            .saturating_add(job.job_type.len());
        if bytes > MAX_FOLLOW_UP_BYTES {
            return Err(format!(
                "the payloads of an attempt's follow-ups have at most {MAX_FOLLOW_UP_BYTES} bytes together"
            ));
        }
        if job.job_type.is_empty()
            || job.job_type.chars().count() > 200
            || job.job_type.contains('\0')
        {
            return Err("a job type has 1 to 200 characters, none of them U+0000".into());
        }
        check_json(&job.payload, MAX_PAYLOAD_BYTES)
            .map_err(|error| format!("the payload is refused: {error}"))?;
        for (name, key) in [
            ("a unique", &job.unique_key),
            ("an ordering", &job.ordering_key),
            ("a group", &job.group_key),
        ] {
            let fits =
                |key: &String| !key.is_empty() && key.chars().count() <= 500 && !key.contains('\0');
            if !key.as_ref().is_none_or(fits) {
                return Err(format!(
                    "{name} key has 1 to 500 characters, none of them U+0000"
                ));
            }
        }
        if job.unique_for.is_some_and(|seconds| {
            seconds == 0 || seconds > 311_040_000 || job.unique_key.is_none()
        }) {
            return Err("unique-for is 1 second to 3600 days, and needs a unique key".into());
        }
        if job.due_at.is_some() && job.delay.is_some() {
            return Err("give one of `due-at` and `delay`".into());
        }
        if let Some(due_at) = &job.due_at {
            check_time(due_at)?;
        }
        if job
            .priority
            .is_some_and(|priority| !(1..=4).contains(&priority))
        {
            return Err("the priority is 1 (first) to 4 (last)".into());
        }
        if job
            .max_attempts
            .is_some_and(|attempts| !(1..=100_000).contains(&attempts))
        {
            return Err("max-attempts is 1 to 100000".into());
        }
        // Checked above, so this keeps the text as it is: numbers keep their digits.
        let payload = serde_json::value::RawValue::from_string(job.payload)
            .map_err(|error| error.to_string())?;
        self.follow_up_bytes = bytes;
        self.follow_ups.push(FollowUp {
            job_type: job.job_type,
            payload,
            delay: job.delay,
            due_at: job.due_at,
            priority: job.priority,
            max_attempts: job.max_attempts,
            unique_key: job.unique_key,
            unique_for: job.unique_for,
            ordering_key: job.ordering_key,
            group_key: job.group_key,
            parent: Some(self.job),
            root: Some(self.root),
        });
        Ok(())
    }
}

/// RFC 3339 with a zone, within the years that the queue takes.
fn check_time(text: &str) -> Result<(), String> {
    let year = text.get(..4).and_then(|year| year.parse::<u32>().ok());
    // Humantime reads UTC only; an offset is checked by PostgreSQL's own rules, so its form is held here.
    let (stem, zone) = match text.find('Z') {
        Some(at) if at + 1 == text.len() => (&text[..at], true),
        _ => match text
            .len()
            .checked_sub(6)
            .filter(|at| text.is_char_boundary(*at))
        {
            Some(at) => {
                let offset = &text.as_bytes()[at..];
                let digit = |at: usize, most: u8| offset[at].is_ascii_digit() && offset[at] <= most;
                let fits = matches!(offset[0], b'+' | b'-')
                    && digit(1, b'1')
                    && digit(2, b'9')
                    && offset[3] == b':'
                    && digit(4, b'5')
                    && digit(5, b'9');
                (&text[..at], fits && &offset[1..3] <= b"14".as_slice())
            }
            None => (text, false),
        },
    };
    let whole = format!("{stem}Z");
    if zone
        && humantime::parse_rfc3339(&whole).is_ok()
        && year.is_some_and(|year| (2001..2199).contains(&year))
    {
        return Ok(());
    }
    Err("`due-at` is not an RFC 3339 time such as 2030-01-31T08:00:00Z between the years 2001 and 2198".into())
}

#[cfg(test)]
mod tests {
    use super::check_time;

    #[test]
    fn times_that_the_database_would_refuse_are_refused() {
        for good in [
            "2030-01-31T08:00:00Z",
            "2030-01-31T08:00:00.125Z",
            "2030-01-31T08:00:00+05:30",
            "2030-01-31T08:00:00-14:00",
        ] {
            check_time(good).unwrap();
        }
        for bad in [
            "",
            "soon",
            "2030-01-31",
            "2030-02-30T08:00:00Z",
            "2030-01-31T08:00:00",
            "infinity",
            "1999-01-31T08:00:00Z",
            "2000-01-01T00:00:00Z",
            "9999-01-31T08:00:00Z",
            "2030-01-31T08:00:00+19:00",
            "äöüäöü",
        ] {
            assert!(check_time(bad).is_err(), "{bad}");
        }
    }
}
