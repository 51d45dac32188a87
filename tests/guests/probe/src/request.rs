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
    /// Tries to get out without HTTP: a TCP connection and a UDP datagram to the address, and a name lookup. Answers with
    /// what each came to.
    Sockets {
        address: String,
    },
    /// Through `piecework:handler/http`; the guest `client` is for `wasi:http`. Answers as [`Call`] says.
    Http(Box<Call>),
    /// Sends a secret's placeholder, which it finds in its settings under `secrets.SECRET`; answers as `http`.
    SecretHttp(Box<SecretCall>),
    /// `{"saved": true}` or `{"error": text}`.
    CheckpointSave {
        name: String,
        /// As text, so that it need not be JSON.
        json: String,
    },
    /// `{"value": text or null}`.
    CheckpointLoad {
        name: String,
    },
    /// Logs `did step 1` and so on, saves each in the checkpoint `step`, and skips those that are saved already. Answers
    /// with the steps of this attempt: `{"did": [3, 4]}`.
    Steps {
        steps: u32,
        /// The first attempt panics once this step is saved.
        fail_at: Option<u32>,
        /// A nap after each step.
        #[serde(default)]
        ms: u64,
    },
    /// One setting, `{"value": text or null}`, or without a key all of them as an object.
    Config {
        key: Option<String>,
    },
    /// Takes handles from the host and never drops one; without `count` for ever.
    Handles {
        count: Option<u64>,
    },
    /// Its result is a JSON string of that size.
    ReturnHuge {
        mib: usize,
    },
    /// Gives a text of that size to one host function; `{"passed": true}` or `{"error": text}`.
    PassHuge {
        mib: usize,
        to: Target,
        /// For `http_body`.
        #[serde(default = "nowhere")]
        url: String,
    },
    /// Gives a list of that many empty headers to `http.send`; answers as `pass_huge`.
    PassList {
        count: usize,
        #[serde(default = "nowhere")]
        url: String,
    },
    /// Asks for that many random bytes in one call; `{"bytes": n}`.
    Random {
        kib: u64,
    },
    /// Fills and copies 32 MiB for ever: each is one instruction, which no clock interrupts.
    Bulk {},
    /// One log message of that size without a line break.
    LogLine {
        mib: usize,
    },
    /// Naps, then ends well or makes one call, whose answer is as that of `http`.
    WaitThen {
        ms: u64,
        then: Next,
        #[serde(default = "nowhere")]
        url: String,
    },
    /// Reports 1 percent, so that a test sees it run, then computes for ever.
    SpinAfterProgress {},
}

/// An HTTP call. It answers `{"status": 200, "headers": [["a", "b"]], "body": "lossy text"}`, or
/// `{"error": "denied", "message": text}`: a result too, so that a test sees that the guest goes on.
///
/// Strict, as [`Follow`] is and for the same reason.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    #[serde(default = "get")]
    pub method: String,
    pub url: String,
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    pub body: Option<String>,
    /// Milliseconds.
    pub timeout: Option<u32>,
    /// So many calls one after another, whatever becomes of them; the answer is the last one's.
    #[serde(default = "once")]
    pub times: u32,
    /// An error becomes a failure that asks for a retry, with the message as its text.
    #[serde(default)]
    pub fail: bool,
}

/// Strict too.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretCall {
    pub secret: String,
    pub url: String,
    pub place: Place,
    /// Prints and logs the placeholder and what came back: both end up in the job's record.
    #[serde(default)]
    pub echo: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// `Authorization: Bearer PLACEHOLDER`
    Header,
    /// `Authorization: Basic`, with `user:PLACEHOLDER` in base64.
    Basic,
    /// `?key=PLACEHOLDER`
    Query,
    /// The whole body of a POST.
    Body,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    Log,
    Progress,
    Enqueue,
    HttpBody,
    Checkpoint,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Next {
    Ok,
    Http,
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
    pub group_key: Option<String>,
    /// A nap after it enqueued.
    #[serde(default)]
    pub ms: u64,
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

fn get() -> String {
    "GET".to_owned()
}

/// For requests that are not meant to arrive: the port for throwing away.
fn nowhere() -> String {
    "http://127.0.0.1:9/".to_owned()
}
