//! HTTP calls, made by the host: only to where `allow` of the plugin in runner.toml points.
//!
//! ```no_run
//! # use piecework_handler::prelude::*;
//! # fn f(job: Job) -> Result<()> {
//! let answer = http::post("https://api.example.com/charges")
//!     .header("idempotency-key", &job.idempotency_key)
//!     .json(&json!({ "amount": 7 }))?
//!     .send()?;
//! if !answer.is_success() {
//!     return Err(Error::retry(format!("the charge was answered with {}", answer.status)));
//! }
//! # Ok(())
//! # }
//! ```

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::bindings::piecework::handler::http as host;
use crate::{Error, Result};

/// A request that can be sent.
#[derive(Clone, Debug)]
#[must_use = "nothing is sent without `send`"]
pub struct Request(host::Request);

/// The answer, whatever its status, with its whole body.
#[derive(Clone, Debug)]
pub struct Response {
    /// Its status.
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, without gzip.
    pub body: Vec<u8>,
}

/// A GET.
pub fn get(url: impl Into<String>) -> Request {
    Request::new("GET", url)
}

/// A POST.
pub fn post(url: impl Into<String>) -> Request {
    Request::new("POST", url)
}

impl Request {
    /// A request with any method, in capitals.
    pub fn new(method: &str, url: impl Into<String>) -> Self {
        Self(host::Request {
            method: method.to_owned(),
            url: url.into(),
            headers: Vec::new(),
            body: None,
            timeout: None,
        })
    }

    /// Adds a header. A placeholder of a secret is replaced on the way out.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.0.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.0.body = Some(body.into());
        self
    }

    /// Sets a body in JSON, and says so in `content-type`.
    ///
    /// # Errors
    /// When it cannot be written as JSON.
    pub fn json(self, body: &impl Serialize) -> Result<Self> {
        let body = serde_json::to_vec(body).map_err(|error| {
            Error::discard(format!("the request's body cannot be written: {error}"))
        })?;
        Ok(self.header("content-type", "application/json").body(body))
    }

    /// Milliseconds for the whole call; the host's own limit holds where this is longer.
    pub fn timeout(mut self, millis: u32) -> Self {
        self.0.timeout = Some(millis);
        self
    }

    /// Sends it. A status that says that something went wrong is no error.
    ///
    /// # Errors
    /// When there is no answer. `?` makes a retry of it.
    pub fn send(&self) -> std::result::Result<Response, HttpError> {
        let answer = host::send(&self.0)?;
        Ok(Response {
            status: answer.status,
            headers: answer.headers,
            body: answer.body,
        })
    }
}

impl Response {
    /// Whether the status is 200 to 299.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The first header of this name, in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(other, _)| other == name)?;
        Some(&found.1)
    }

    /// The body as text; what is no UTF-8 is replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body, read as JSON.
    ///
    /// # Errors
    /// When it is none, or of another type.
    pub fn json<T: DeserializeOwned>(&self) -> std::result::Result<T, serde_json::Error> {
        serde_json::from_slice(&self.body)
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpError {
    /// What kind of reason it is.
    pub kind: Kind,
    /// The host's text, which says what to do.
    pub message: String,
}

/// Kinds of [`HttpError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The rules in runner.toml do not allow it; the text says which line would.
    Denied,
    /// A time limit passed.
    Timeout,
    /// The name cannot be resolved.
    Dns,
    /// Nobody answers at the address.
    Connect,
    /// The certificate is not trusted, or the handshake failed.
    Tls,
    /// The request is malformed, or the answer broke off or is not HTTP.
    Protocol,
    /// Headers or body are larger than allowed.
    TooLarge,
    /// The attempt has used up its calls, or has too many open at once.
    Limit,
    /// The attempt is being stopped.
    Cancelled,
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for HttpError {}

impl From<host::HttpError> for HttpError {
    fn from(error: host::HttpError) -> Self {
        use host::HttpError as E;
        let (kind, message) = match error {
            E::Denied(text) => (Kind::Denied, text),
            E::Timeout(text) => (Kind::Timeout, text),
            E::Dns(text) => (Kind::Dns, text),
            E::Connect(text) => (Kind::Connect, text),
            E::Tls(text) => (Kind::Tls, text),
            E::Protocol(text) => (Kind::Protocol, text),
            E::TooLarge(text) => (Kind::TooLarge, text),
            E::Limit(text) => (Kind::Limit, text),
            E::Cancelled(text) => (Kind::Cancelled, text),
        };
        Self { kind, message }
    }
}
