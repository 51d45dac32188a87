//! Commands that keep something for the next attempt, and the plugin's settings.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::piecework::handler::types::{Disposition, Failure};
use crate::piecework::handler::{checkpoint, log};
use crate::wasi::config::store;

pub fn save(name: &str, json: &str) -> Value {
    match checkpoint::save(name, json) {
        Ok(()) => json!({ "saved": true }),
        Err(error) => json!({ "error": error }),
    }
}

pub fn load(name: &str) -> Value {
    json!({ "value": checkpoint::load(name) })
}

/// What a handler with side effects does: each step is recorded before the next one begins.
pub fn steps(attempt: u32, steps: u32, fail_at: Option<u32>, ms: u64) -> Result<Value, Failure> {
    const NAME: &str = "step";
    let mut did = Vec::new();
    for step in 1..=steps {
        let done = match checkpoint::load(NAME) {
            Some(text) => text
                .parse()
                .map_err(|_| crate::discard(format!("the checkpoint `{NAME}` is {text}")))?,
            None => 0,
        };
        if step <= done {
            continue;
        }
        log::log(log::Level::Info, &format!("did step {step}"));
        checkpoint::save(NAME, &step.to_string()).map_err(|message| Failure {
            message,
            disposition: Disposition::Retry,
        })?;
        did.push(step);
        assert!(
            attempt > 1 || fail_at != Some(step),
            "panicked after step {step}"
        );
        thread::sleep(Duration::from_millis(ms));
    }
    Ok(json!({ "did": did }))
}

pub fn config(key: Option<String>) -> Value {
    let shown = match key {
        Some(key) => store::get(&key).map(|value| json!({ "value": value })),
        None => store::get_all().map(|all| json!(all.into_iter().collect::<BTreeMap<_, _>>())),
    };
    shown.unwrap_or_else(|error| json!({ "error": format!("{error:?}") }))
}
