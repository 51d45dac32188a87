//! What the tests of all languages ask of a handler: tests/it/languages.rs.

use piecework_handler::prelude::*;
use serde_json::Value;

#[derive(Deserialize)]
struct Payload {
    #[serde(rename = "do")]
    what: String,
}

#[derive(Deserialize)]
struct Work {
    text: String,
    url: Option<String>,
    next: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Step {
    attempt: u32,
    note: String,
}

fn run(job: Job, payload: Payload) -> Result<Value> {
    match payload.what.as_str() {
        "work" => work(&job),
        "checkpoint" => step(&job),
        "retry" => Err(Error::retry("asked to retry")),
        "retry-after" => Err(Error::retry_after(60, "asked to wait")),
        "snooze" => Err(Error::snooze(30, "too early")),
        "discard" => Err(Error::discard("asked to discard")),
        "error" => Err(std::io::Error::other("an ordinary error"))?,
        "panic" => panic!("asked to panic"),
        "loop" => loop {
            std::hint::black_box(());
        },
        "allocate" => {
            let mut held = Vec::new();
            loop {
                held.push(vec![1_u8; 1 << 20]);
                std::hint::black_box(&held);
            }
        }
        "random" => {
            use std::hash::{BuildHasher, RandomState};
            Ok(json!({ "random": RandomState::new().hash_one(1).to_string() }))
        }
        other => Err(Error::discard(format!("there is no `{other}`"))),
    }
}

fn work(job: &Job) -> Result<Value> {
    let work: Work = serde_json::from_str(&job.payload).or_discard()?;
    info!("attempt {} of {}", job.attempt, job.max_attempts);
    progress(10, "parsed");
    let text = work.text.to_ascii_uppercase();
    let (mut status, mut body) = (None, None);
    if let Some(url) = work.url {
        let mut request = http::get(url).header("accept", "text/plain");
        if let Some(token) = config::secret("token") {
            request = request.header("authorization", &format!("Bearer {token}"));
        }
        let answer = request.send()?;
        status = Some(answer.status);
        body = Some(answer.text());
    }
    if let Some(next) = work.next {
        FollowUp::new(&next, &json!({ "from": "rust", "text": text }))?
            .delay(5)
            .unique_key(format!("after-{}", job.id))
            .enqueue()?;
    }
    Ok(json!({ "language": "rust", "text": text, "status": status, "body": body }))
}

fn step(job: &Job) -> Result<Value> {
    if job.attempt == 1 {
        let step = Step {
            attempt: 1,
            note: "für später".into(),
        };
        checkpoint::save("step", &step)?;
        progress(50, "saved");
        return Err(Error::retry("half way"));
    }
    match checkpoint::load::<Step>("step")? {
        Some(step) => Ok(json!({ "resumed": step.attempt, "note": step.note })),
        None => Err(Error::discard("the checkpoint is lost")),
    }
}

piecework_handler::handler!(run);
