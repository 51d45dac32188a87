//! Watches a page: looks at it, remembers what it saw, and looks again later if it is told to.

use piecework_handler::prelude::*;

#[derive(Serialize, Deserialize)]
struct Payload {
    url: String,
    /// How often it is looked at.
    #[serde(default = "once")]
    times: u32,
}

fn once() -> u32 {
    1
}

#[derive(Serialize, Deserialize)]
struct Seen {
    bytes: usize,
    status: u16,
}

// A payload that does not fit the type fails the job at once: it would not fit the next time either.
fn run(job: Job, payload: Payload) -> Result<serde_json::Value> {
    // An earlier attempt may have come this far: then the page is not fetched again.
    let seen = match checkpoint::load::<Seen>("seen")? {
        Some(seen) => seen,
        None => {
            let seen = look(&payload.url)?;
            checkpoint::save("seen", &seen)?;
            seen
        }
    };
    progress(50, "fetched");

    // The next look is a job of its own; it is enqueued when this one succeeds.
    let left = payload.times.saturating_sub(1);
    if left > 0 {
        let next = Payload {
            url: payload.url,
            times: left,
        };
        FollowUp::new(&job.job_type, &next)?.delay(60).enqueue()?;
    }
    Ok(json!({ "bytes": seen.bytes, "left": left, "status": seen.status }))
}

fn look(url: &str) -> Result<Seen> {
    // `?` on any error is a retry.
    let answer = http::get(url).send()?;
    let status = answer.status;
    if status >= 500 {
        return Err(Error::retry_after(
            30,
            format!("the server answered {status}"),
        ));
    }
    if !answer.is_success() {
        return Err(Error::discard(format!("the server answered {status}")));
    }
    Ok(Seen {
        bytes: answer.body.len(),
        status,
    })
}

piecework_handler::handler!(run);
