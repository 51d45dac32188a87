//! Commands that ask the host for more than a handler should: handles, huge arguments, much output.

use std::io::{self, Write as _};
use std::mem;

use serde_json::{Value, json};
use wasip2::clocks::monotonic_clock;
use wasip2::io::poll;
use wasip2::random::random;

use crate::memory::huge_json;
use crate::piecework::handler::{checkpoint, http, jobs, log};
use crate::request::{Target, Whither};

/// In nanoseconds.
const HOUR: u64 = 3_600_000_000_000;

pub fn poll_many() {
    let waits: Vec<_> = (0..200)
        .map(|_| monotonic_clock::subscribe_duration(HOUR))
        .collect();
    poll::poll(&waits.iter().collect::<Vec<_>>());
}

/// Forgets them one by one: a list would end at the limit of memory first.
pub fn handles(count: Option<u64>) -> u64 {
    let mut taken = 0;
    while count.is_none_or(|count| taken < count) {
        mem::forget(monotonic_clock::subscribe_duration(HOUR));
        taken += 1;
    }
    taken
}

pub fn shout(whither: &Whither, kib: usize, at_once: bool) -> io::Result<()> {
    let (size, times) = if at_once {
        (kib << 10, 1)
    } else {
        (1 << 10, kib)
    };
    let mut text = "x".repeat(size.saturating_sub(1));
    text.push('\n');
    for _ in 0..times {
        match whither {
            Whither::Stdout => io::stdout().write_all(text.as_bytes())?,
            Whither::Stderr => io::stderr().write_all(text.as_bytes())?,
            Whither::Log => log::log(log::Level::Info, &text),
        }
    }
    io::stdout().flush()
}

pub fn pass_huge(mib: usize, to: &Target, url: String) -> Value {
    let text = huge_json(mib);
    let passed = match to {
        Target::Log => {
            log::log(log::Level::Info, &text);
            Ok(())
        }
        Target::Progress => {
            jobs::progress(50, &text);
            Ok(())
        }
        Target::Enqueue => jobs::enqueue(&jobs::NewJob {
            job_type: "probe".to_owned(),
            payload: text,
            delay: None,
            due_at: None,
            priority: None,
            max_attempts: None,
            unique_key: None,
            unique_for: None,
            ordering_key: None,
            group_key: None,
        }),
        Target::HttpBody => send("POST", url, Vec::new(), Some(text.into_bytes())),
        Target::Checkpoint => checkpoint::save("huge", &text),
    };
    outcome(passed)
}

/// Empty texts: what costs the host memory is the list itself.
pub fn pass_list(count: usize, url: String) -> Value {
    let headers = vec![(String::new(), String::new()); count];
    outcome(send("GET", url, headers, None))
}

pub fn random(kib: u64) -> usize {
    random::get_random_bytes(kib << 10).len()
}

fn send(
    method: &str,
    url: String,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
) -> Result<(), String> {
    http::send(&http::Request {
        method: method.to_owned(),
        url,
        headers,
        body,
        timeout: None,
    })
    .map(drop)
    .map_err(|error| {
        let (kind, text) = crate::net::explain(error);
        format!("{kind}: {text}")
    })
}

fn outcome(passed: Result<(), String>) -> Value {
    match passed {
        Ok(()) => json!({ "passed": true }),
        Err(error) => json!({ "error": error }),
    }
}
