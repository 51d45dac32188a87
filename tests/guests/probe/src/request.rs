//! What a test may ask of the probe: the payload's shape and nothing else.

use serde::Deserialize;
use serde_json::Value;

/// The member `do` chooses. Members that it does not know are ignored, so that a test can tell its jobs apart by them.
#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Request {
    Ok {},
    Nap {
        ms: u64,
    },
    NapForever {},
    NapLoop {},
    /// Without `ms` for ever.
    Spin {
        ms: Option<u64>,
    },
    Stdin {},
    PollMany {},
    Grow {
        mib: u64,
        #[serde(default = "one_mib")]
        step_kib: u64,
    },
    TryGrow {
        mib: u64,
    },
    Deep {},
    Fail {
        text: String,
        disposition: Wish,
        /// For `retry-after` and `snooze`.
        #[serde(default)]
        seconds: u32,
        /// Fails while the attempt is no higher than this; always when not given.
        until: Option<u32>,
    },
    /// Says in the log who it is, as if it called a service, naps, and fails while the attempt is no higher than `until`.
    Call {
        #[serde(default)]
        ms: u64,
        #[serde(default)]
        until: u32,
    },
    Boom {
        text: String,
    },
    Exit {
        code: i32,
    },
    Shout {
        #[serde(rename = "where")]
        whither: Whither,
        kib: usize,
        /// One write or message of the whole size, not one for each KiB.
        #[serde(default)]
        at_once: bool,
    },
    Echo {},
    Result {
        text: String,
    },
    Follow(Box<Follow>),
    Progress {
        steps: u32,
        ms: u64,
    },
    WaitCancelled {},
    Log {
        level: Level,
        text: String,
    },
    Env {},
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wish {
    Retry,
    RetryAfter,
    Snooze,
    Discard,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whither {
    Stdout,
    Stderr,
    Log,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// Strict, because nearly all of it may be left out: a misspelt member would go unnoticed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Follow {
    pub job_type: String,
    #[serde(default)]
    pub payload: Value,
    /// Sent as it is in place of `payload`: for what is not JSON.
    pub payload_text: Option<String>,
    #[serde(default = "once")]
    pub count: u32,
    pub delay: Option<u32>,
    pub due_at: Option<String>,
    pub priority: Option<u8>,
    pub max_attempts: Option<u32>,
    pub unique_key: Option<String>,
    pub ordering_key: Option<String>,
    #[serde(default)]
    pub then: Then,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    #[default]
    Ok,
    Fail,
    Discard,
    Boom,
}

fn one_mib() -> u64 {
    1024
}

fn once() -> u32 {
    1
}
