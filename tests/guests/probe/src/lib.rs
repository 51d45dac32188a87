//! Does whatever its payload asks for, the hostile things above all: `{"do": "nap", "ms": 50}`.
//!
//! One guest for all tests, because compiling a component costs more than any of them.

mod hostile;
mod memory;
mod net;
mod request;
mod settled;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::{self, Read as _};
use std::thread;
use std::time::{Duration, Instant};

use piecework::handler::types::Disposition;
use piecework::handler::{jobs, log};
use serde_json::{Value, json};

use crate::request::{Call, Follow, Level, Next, Request, Then, Wish};

wit_bindgen::generate!({ path: "../../../wit", world: "handler", generate_all });

struct Probe;

impl Guest for Probe {
    fn run(job: Job) -> Result<Option<String>, Failure> {
        let request = serde_json::from_str(&job.payload)
            .map_err(|error| discard(format!("the probe does not know what to do: {error}")))?;
        match request {
            Request::Ok {} => {}
            Request::Nap { ms } => thread::sleep(Duration::from_millis(ms)),
            Request::NapForever {} => loop {
                thread::sleep(Duration::from_nanos(u64::MAX));
            },
            Request::NapLoop {} => loop {
                thread::sleep(Duration::from_micros(1));
            },
            Request::Spin { ms } => spin(ms),
            Request::Stdin {} => {
                let mut input = Vec::new();
                io::stdin()
                    .read_to_end(&mut input)
                    .map_err(|error| discard(format!("stdin: {error}")))?;
                return answer(json!({ "bytes": input.len() }));
            }
            Request::PollMany {} => hostile::poll_many(),
            Request::Grow { mib, step_kib } => memory::grow(mib, step_kib),
            Request::TryGrow { mib } => return answer(json!({ "grown": memory::try_grow(mib) })),
            Request::Deep {} => {
                return answer(json!({ "deep": memory::deep(0, black_box(u64::MAX)) }));
            }
            Request::Fail {
                text,
                disposition,
                seconds,
                until,
            } => {
                if until.is_none_or(|until| job.attempt <= until) {
                    return Err(Failure {
                        message: text,
                        disposition: match disposition {
                            Wish::Retry => Disposition::Retry,
                            Wish::RetryAfter => Disposition::RetryAfter(seconds),
                            Wish::Snooze => Disposition::Snooze(seconds),
                            Wish::Discard => Disposition::Discard,
                        },
                    });
                }
            }
            Request::Call { ms, until } => {
                let (id, attempt, key) = (&job.id, job.attempt, &job.idempotency_key);
                log::log(
                    log::Level::Info,
                    &format!("called: id {id} attempt {attempt} key {key}"),
                );
                thread::sleep(Duration::from_millis(ms));
                if attempt <= until {
                    return Err(Failure {
                        message: format!("attempt {attempt} was asked to fail"),
                        disposition: Disposition::Retry,
                    });
                }
            }
            Request::Boom { text } => panic!("{text}"),
            Request::Exit { code } => std::process::exit(code),
            Request::Shout {
                whither,
                kib,
                at_once,
            } => hostile::shout(&whither, kib, at_once)
                .map_err(|error| discard(error.to_string()))?,
            Request::Echo {} => return Ok(Some(job.payload)),
            Request::Result { text } => return Ok(Some(text)),
            Request::Follow(follow) => enqueue(*follow)?,
            Request::Progress { steps, ms } => {
                for step in 1..=steps {
                    let percent = u64::from(step) * 100 / u64::from(steps);
                    jobs::progress(percent as u8, &format!("step {step} of {steps}"));
                    thread::sleep(Duration::from_millis(ms));
                }
            }
            Request::WaitCancelled {} => {
                while !jobs::cancelled() {
                    thread::sleep(Duration::from_millis(10));
                }
                return answer(json!({ "cancelled": true }));
            }
            Request::Log { level, text } => log::log(
                match level {
                    Level::Debug => log::Level::Debug,
                    Level::Info => log::Level::Info,
                    Level::Warn => log::Level::Warn,
                    Level::Error => log::Level::Error,
                },
                &text,
            ),
            Request::Env {} => return answer(surroundings()),
            Request::Sockets { address } => return answer(net::sockets(&address)),
            Request::Http(call) => return answer(net::call(*call)?),
            Request::SecretHttp(call) => return answer(net::secret_call(*call)?),
            Request::CheckpointSave { name, json } => return answer(settled::save(&name, &json)),
            Request::CheckpointLoad { name } => return answer(settled::load(&name)),
            Request::Steps { steps, fail_at, ms } => {
                return answer(settled::steps(job.attempt, steps, fail_at, ms)?);
            }
            Request::Config { key } => return answer(settled::config(key)),
            Request::Handles { count } => {
                return answer(json!({ "handles": hostile::handles(count) }));
            }
            Request::ReturnHuge { mib } => return Ok(Some(memory::huge_json(mib))),
            Request::PassHuge { mib, to, url } => return answer(hostile::pass_huge(mib, &to, url)),
            Request::PassList { count, url } => return answer(hostile::pass_list(count, url)),
            Request::Random { kib } => return answer(json!({ "bytes": hostile::random(kib) })),
            Request::Bulk {} => memory::bulk(),
            Request::LogLine { mib } => log::log(log::Level::Info, &"x".repeat(mib << 20)),
            Request::WaitThen { ms, then, url } => {
                thread::sleep(Duration::from_millis(ms));
                match then {
                    Next::Ok => {}
                    Next::Http => return answer(net::call(Call::get(url))?),
                }
            }
            Request::SpinAfterProgress {} => {
                jobs::progress(1, "computes for ever");
                spin(None);
            }
        }
        answer(json!({
            "id": job.id,
            "attempt": job.attempt,
            "key": job.idempotency_key,
            "job_type": job.job_type,
        }))
    }
}

export!(Probe);

fn answer(value: Value) -> Result<Option<String>, Failure> {
    Ok(Some(value.to_string()))
}

fn discard(message: String) -> Failure {
    Failure {
        message,
        disposition: Disposition::Discard,
    }
}

fn spin(ms: Option<u64>) {
    let since = Instant::now();
    loop {
        match ms {
            // Asking the clock is a call to the host; the endless one must not make any.
            Some(ms) if since.elapsed() >= Duration::from_millis(ms) => return,
            _ => black_box(()),
        }
    }
}

fn enqueue(follow: Follow) -> Result<(), Failure> {
    let job = jobs::NewJob {
        job_type: follow.job_type,
        payload: follow
            .payload_text
            .unwrap_or_else(|| follow.payload.to_string()),
        delay: follow.delay,
        due_at: follow.due_at,
        priority: follow.priority,
        max_attempts: follow.max_attempts,
        unique_key: follow.unique_key,
        unique_for: None,
        ordering_key: follow.ordering_key,
        group_key: follow.group_key,
    };
    for _ in 0..follow.count {
        jobs::enqueue(&job).map_err(discard)?;
    }
    thread::sleep(Duration::from_millis(follow.ms));
    match follow.then {
        Then::Ok => Ok(()),
        Then::Fail => Err(Failure {
            message: "failed after it enqueued".to_owned(),
            disposition: Disposition::Retry,
        }),
        Then::Discard => Err(discard("gave up after it enqueued".to_owned())),
        Then::Boom => panic!("panicked after it enqueued"),
    }
}

/// What a guest can find out about the machine it runs on.
fn surroundings() -> Value {
    let env: BTreeMap<_, _> = std::env::vars_os()
        .map(|(name, value)| (lossy(name), lossy(value)))
        .collect();
    json!({
        "env": env.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>(),
        "args": std::env::args_os().map(lossy).collect::<Vec<_>>(),
        "etc_passwd": match std::fs::read("/etc/passwd") {
            Ok(content) => json!(content.len()),
            Err(error) => json!(error.to_string()),
        },
    })
}

fn lossy(text: std::ffi::OsString) -> String {
    text.to_string_lossy().into_owned()
}
