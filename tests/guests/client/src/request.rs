//! What a test may ask of the client: the payload's shape and nothing else.

use serde::Deserialize;

/// The member `do` chooses. Strict, because nearly all of it may be left out: a misspelt member would go unnoticed.
#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Calls with `wstd`, the client that Rust handlers use. Answers as the probe's `http` does:
    /// `{"status": 200, "headers": [["a", "b"]], "body": "lossy text"}` or
    /// `{"error": "http-request-denied", "message": text}`, with the error's name in `wasi:http`, or `client` when it is
    /// none of those.
    WasiHttp(Box<Call>),
    /// Starts that many requests at once and reads no answer; then `{"opened": n, "refused": m}`.
    OpenMany {
        url: String,
        count: u32,
        /// Sleeps for ever in place of the answer, with all requests open.
        #[serde(default)]
        hold: bool,
    },
    /// Makes that many requests that are never sent, each with a body written as full as the host takes it and a large header.
    Hoard { count: u32 },
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    #[serde(default = "get")]
    pub method: String,
    pub url: String,
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// Sends the placeholder of this secret as `Authorization: Bearer PLACEHOLDER`; it stands in the settings under
    /// `secrets.SECRET`.
    pub secret: Option<String>,
    /// Beware: when the host gives up a call with a body before the body is written, `wstd` says `connection reset` (kind
    /// `client`) and the host's own error is lost.
    pub body: Option<String>,
    /// Milliseconds, for each of the three limits of `wasi:http`: to connect, to the first byte, between bytes.
    pub timeout: Option<u32>,
    /// So many calls one after another, whatever becomes of them; the answer is the last one's.
    #[serde(default = "once")]
    pub times: u32,
    /// An error becomes a failure that asks for a retry, with the message as its text.
    #[serde(default)]
    pub fail: bool,
    /// So many calls at the same time; answers `{"ok": n, "errors": {text: n}}`.
    pub concurrent: Option<u32>,
}

fn get() -> String {
    "GET".to_owned()
}

fn once() -> u32 {
    1
}
