//! Fails as often as the payload says, then succeeds: shows retries at work.
//!
//! Counts by the attempt it is given and keeps nothing between attempts.

use piecework::handler::types::Disposition;
use serde::Deserialize;

wit_bindgen::generate!({ path: "../../wit", world: "handler", generate_all });

/// Other members are welcome, so that a job can carry a note about itself.
#[derive(Deserialize)]
struct Payload {
    fail_times: u32,
}

struct Flaky;

impl Guest for Flaky {
    fn run(job: Job) -> Result<Option<String>, Failure> {
        let Payload { fail_times } =
            serde_json::from_str(&job.payload).map_err(|error| Failure {
                message: format!("the payload must be like {{\"fail_times\": 2}}: {error}"),
                disposition: Disposition::Discard,
            })?;
        let attempt = job.attempt;
        if attempt <= fail_times {
            return Err(Failure {
                message: format!("attempt {attempt} of {fail_times} planned failures"),
                disposition: Disposition::Retry,
            });
        }
        Ok(Some(format!("{{\"attempts\":{attempt}}}")))
    }
}

export!(Flaky);
