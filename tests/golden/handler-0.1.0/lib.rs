//! Uses every function of the world and tells, as JSON, what each of them answered. The payload says how it ends: `"done"`, or the
//! name of a disposition.

wit_bindgen::generate!({
    path: ["config.wit", "handler.wit"],
    world: "piecework:handler/handler",
    generate_all,
});

use piecework::handler::types::Disposition;
use piecework::handler::{checkpoint, http, jobs, log};
use wasi::config::store;

struct Golden;

impl Guest for Golden {
    fn run(job: Job) -> Result<Option<String>, Failure> {
        for (level, text) in [
            (log::Level::Debug, "at debug"),
            (log::Level::Info, "at info"),
            (log::Level::Warn, "at warn"),
            (log::Level::Error, "at error"),
        ] {
            log::log(level, text);
        }
        let before = checkpoint::load("step");
        let saved = checkpoint::save("step", r#"{"at": 1}"#);
        let after = checkpoint::load("step");
        let refused = checkpoint::save("step", "no JSON");
        jobs::progress(40, "almost half");
        let cancelled = jobs::cancelled();
        let enqueued = jobs::enqueue(&jobs::NewJob {
            job_type: "next".into(),
            payload: r#"{"n": 1}"#.into(),
            delay: Some(60),
            due_at: None,
            priority: Some(3),
            max_attempts: Some(7),
            unique_key: Some("unique".into()),
            unique_for: Some(30),
            ordering_key: Some("order".into()),
            group_key: Some("group".into()),
        });
        let impossible = jobs::enqueue(&jobs::NewJob {
            job_type: "next".into(),
            payload: "{}".into(),
            delay: Some(60),
            due_at: Some("2030-01-01T00:00:00Z".into()),
            priority: None,
            max_attempts: None,
            unique_key: None,
            unique_for: None,
            ordering_key: None,
            group_key: None,
        });
        let denied = http::send(&http::Request {
            method: "POST".into(),
            url: "https://example.com/".into(),
            headers: vec![("accept".into(), "text/plain".into())],
            body: Some(b"body".to_vec()),
            timeout: Some(1000),
        });
        let denied = match denied {
            Ok(response) => format!("{}", response.status),
            Err(http::HttpError::Denied(_)) => "denied".into(),
            Err(other) => format!("{other:?}"),
        };
        let setting = store::get("greeting").map(|value| value.unwrap_or_default());
        let settings = store::get_all().map(|all| all.len());
        let disposition = match job.payload.as_str() {
            r#""retry""# => Disposition::Retry,
            r#""retry-after""# => Disposition::RetryAfter(11),
            r#""snooze""# => Disposition::Snooze(22),
            r#""discard""# => Disposition::Discard,
            _ => {
                let told = [
                    ("id", job.id),
                    ("job_type", job.job_type),
                    ("payload", job.payload),
                    ("attempt", job.attempt.to_string()),
                    ("max_attempts", job.max_attempts.to_string()),
                    ("idempotency_key", job.idempotency_key),
                    ("ordering_key", job.ordering_key.unwrap_or_default()),
                    ("group_key", job.group_key.unwrap_or_default()),
                    ("enqueued_at", job.enqueued_at),
                    ("due_at", job.due_at),
                    ("parent", job.parent.unwrap_or_default()),
                    ("before", before.unwrap_or_default()),
                    ("saved", saved.is_ok().to_string()),
                    ("after", after.unwrap_or_default()),
                    ("refused", refused.is_err().to_string()),
                    ("cancelled", cancelled.to_string()),
                    ("enqueued", enqueued.is_ok().to_string()),
                    ("impossible", impossible.is_err().to_string()),
                    ("http", denied),
                    ("setting", setting.unwrap_or_else(|_| "error".into())),
                    ("settings", settings.unwrap_or(usize::MAX).to_string()),
                ];
                let members: Vec<_> = told
                    .iter()
                    .map(|(name, text)| format!("{}:{}", quoted(name), quoted(text)))
                    .collect();
                return Ok(Some(format!("{{{}}}", members.join(","))));
            }
        };
        Err(Failure {
            message: "as the payload says".into(),
            disposition,
        })
    }
}

/// A JSON string; none of these texts has control characters.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

export!(Golden);
