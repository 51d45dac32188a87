//! Recorded calls: for trying a handler without a network. Both doors answer from it, or into it.
//!
//! No secret is ever written: a request is kept as the guest made it, with `{secret NAME}` for each placeholder, and where an
//! answer has a secret's value in it that becomes the same.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::secrets::{decode, encode, percent_encode};
use super::{Answer, Error};

/// What is done about a handler's calls in place of making them, or beside it.
#[derive(Debug)]
pub struct Tape {
    mode: Mode,
    calls: Mutex<Vec<Call>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Deny,
    Record,
    Replay,
}

/// The file: calls in the order in which they were answered.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recording {
    calls: Vec<Call>,
}

/// One call, with an answer or an error.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    request: Asked,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    response: Option<Answered>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<Fault>,
    #[serde(skip)]
    used: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    method: String,
    url: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    headers: Vec<(String, String)>,
    /// Where it is left out of a file that people write, any body will do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    body: Option<Content>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Answered {
    status: u16,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    headers: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    body: Option<Content>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fault {
    kind: String,
    message: String,
}

/// Text where it is text.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Bytes { base64: String },
}

impl Content {
    fn of(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return None;
        }
        Some(String::from_utf8(bytes.to_vec()).map_or_else(
            |_| Self::Bytes {
                base64: encode(bytes),
            },
            Self::Text,
        ))
    }

    fn bytes(&self) -> Option<Vec<u8>> {
        match self {
            Self::Text(text) => Some(text.clone().into_bytes()),
            Self::Bytes { base64 } => decode(base64.as_bytes()),
        }
    }
}

/// A request as it is told to a tape.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    pub(super) url: &'a str,
    pub(super) headers: &'a [(String, String)],
    pub(super) body: &'a [u8],
}

/// What stands for what in a recording: a secret's placeholder or value, and the secret's name.
pub(super) type Masks<'a> = Vec<(&'a str, &'a str)>;

impl Tape {
    /// Denies all calls.
    pub fn denying() -> Self {
        Self::new(Mode::Deny, Vec::new())
    }

    /// Keeps what is called and answered.
    pub fn recording() -> Self {
        Self::new(Mode::Record, Vec::new())
    }

    /// Answers from a recording, and makes no call.
    ///
    /// # Errors
    /// When the text is no recording; says where and why.
    pub fn replaying(text: &str) -> Result<Self, String> {
        let recording: Recording = serde_json::from_str(text).map_err(|error| error.to_string())?;
        for (call, number) in recording.calls.iter().zip(1..) {
            let at = format!(
                "call {number}, {} {}",
                call.request.method, call.request.url
            );
            match (&call.response, &call.error) {
                (Some(_), None) => {}
                (None, Some(fault)) => {
                    error(&fault.kind, String::new()).ok_or_else(|| {
                        format!(
                            "{at}: there is no error of the kind `{}`: denied, timeout, dns, connect, tls, protocol, \
                             too-large, limit and cancelled are there",
                            fault.kind
                        )
                    })?;
                }
                _ => return Err(format!("{at}: it needs one of `response` and `error`")),
            }
            let bodies = [
                call.request.body.as_ref(),
                call.response
                    .as_ref()
                    .and_then(|response| response.body.as_ref()),
            ];
            if bodies
                .into_iter()
                .flatten()
                .any(|body| body.bytes().is_none())
            {
                return Err(format!("{at}: what stands under `base64` is none"));
            }
        }
        Ok(Self::new(Mode::Replay, recording.calls))
    }

    fn new(mode: Mode, calls: Vec<Call>) -> Self {
        Self {
            mode,
            calls: Mutex::new(calls),
        }
    }

    /// The text of the recording so far.
    pub fn text(&self) -> String {
        let recording = Recording {
            calls: self.calls().clone(),
        };
        // Strings, numbers and lists: nothing that cannot be written.
        serde_json::to_string_pretty(&recording).unwrap_or_default() + "\n"
    }

    /// The recorded calls that were not made, as method and URL.
    pub fn unused(&self) -> Vec<String> {
        if self.mode != Mode::Replay {
            return Vec::new();
        }
        let calls = self.calls();
        let unused = calls.iter().filter(|call| !call.used);
        unused
            .map(|call| format!("{} {}", call.request.method, call.request.url))
            .collect()
    }

    /// The answer in place of a call; none where the call is to be made.
    pub(super) fn answer(
        &self,
        request: &Request<'_>,
        placeholders: &Masks<'_>,
    ) -> Option<Result<Answer, Error>> {
        match self.mode {
            Mode::Record => None,
            Mode::Deny => Some(Err(Error::Denied(format!(
                "{} {}: calls are denied",
                request.method,
                mask(request.url, placeholders)
            )))),
            Mode::Replay => Some(self.played(request, placeholders)),
        }
    }

    fn played(&self, request: &Request<'_>, placeholders: &Masks<'_>) -> Result<Answer, Error> {
        let (method, url) = (request.method, mask(request.url, placeholders));
        let mut calls = self.calls();
        let fits = |call: &&mut Call| {
            let asked = &call.request;
            let same = asked.body.as_ref().is_none_or(|body| {
                let now = mask(&String::from_utf8_lossy(request.body), placeholders);
                body.bytes()
                    .is_some_and(|body| body == request.body || body == now.as_bytes())
            });
            !call.used && asked.method == method && asked.url == url && same
        };
        let Some(call) = calls.iter_mut().find(fits) else {
            let left: Vec<_> = calls
                .iter()
                .filter(|call| !call.used)
                .map(|call| format!("{} {}", call.request.method, call.request.url))
                .collect();
            return Err(Error::Denied(format!(
                "{method} {url} is not in the recording; left in it: {}",
                if left.is_empty() {
                    "nothing".to_owned()
                } else {
                    left.join(", ")
                }
            )));
        };
        call.used = true;
        if let Some(fault) = &call.error {
            let message = || fault.message.clone();
            return Err(error(&fault.kind, message()).unwrap_or_else(|| Error::Protocol(message())));
        }
        let answered = call.response.as_ref();
        let body = answered.and_then(|answered| answered.body.as_ref()?.bytes());
        Ok(Answer {
            status: answered.map_or(0, |answered| answered.status),
            headers: answered.map_or_else(Vec::new, |answered| {
                let lower =
                    |(name, value): &(String, String)| (name.to_ascii_lowercase(), value.clone());
                answered.headers.iter().map(lower).collect()
            }),
            body: Bytes::from(body.unwrap_or_default()),
        })
    }

    /// Keeps a call that was made, without the secrets: `masks` has placeholders and values.
    pub(super) fn keep(
        &self,
        request: &Request<'_>,
        answer: &Result<Answer, Error>,
        masks: &Masks<'_>,
    ) {
        let headers = |headers: &[(String, String)]| {
            let masked = |(name, value): &(String, String)| (name.clone(), mask(value, masks));
            headers.iter().map(masked).collect()
        };
        let request = Asked {
            method: request.method.to_owned(),
            url: mask(request.url, masks),
            headers: headers(request.headers),
            body: content(request.body, masks),
        };
        let (response, error) = match answer {
            Ok(answer) => (
                Some(Answered {
                    status: answer.status,
                    headers: headers(&answer.headers),
                    body: content(&answer.body, masks),
                }),
                None,
            ),
            Err(error) => (
                None,
                Some(Fault {
                    kind: error.kind().to_owned(),
                    message: mask(&error.to_string(), masks),
                }),
            ),
        };
        self.calls().push(Call {
            request,
            response,
            error,
            used: true,
        });
    }

    fn calls(&self) -> MutexGuard<'_, Vec<Call>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A secret as a server may send it back: as it is, in a query, and within base64 as in `Basic` credentials, whose text for it depends
/// on what stands before.
pub(super) fn spellings(secret: &str) -> impl Iterator<Item = String> {
    let within = (0..3).filter_map(|before| {
        let all = encode(&[&vec![0; before], secret.as_bytes()].concat());
        // The first and the last characters have bits of what stands beside.
        let from = (before * 8).div_ceil(6);
        let to = (before + secret.len()) * 8 / 6;
        all.get(from..to)
            // Of a secret of a few letters too little would be left to be sure.
            .filter(|middle| middle.len() >= 6)
            .map(str::to_owned)
    });
    let mut all: Vec<_> = [secret.to_owned(), percent_encode(secret)]
        .into_iter()
        .chain(within)
        .collect();
    all.dedup();
    all.into_iter()
}

fn mask(text: &str, masks: &Masks<'_>) -> String {
    let mut masked = text.to_owned();
    for (shown, name) in masks.iter().filter(|(shown, _)| !shown.is_empty()) {
        masked = masked.replace(shown, &format!("{{secret {name}}}"));
    }
    masked
}

fn content(bytes: &[u8], masks: &Masks<'_>) -> Option<Content> {
    let mut bytes = bytes.to_vec();
    for (shown, name) in masks.iter().filter(|(shown, _)| !shown.is_empty()) {
        bytes = replaced(
            &bytes,
            shown.as_bytes(),
            format!("{{secret {name}}}").as_bytes(),
        );
    }
    Content::of(&bytes)
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut done = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = super::secrets::find(rest, from) {
        done.extend_from_slice(&rest[..at]);
        done.extend_from_slice(to);
        rest = &rest[at + from.len()..];
    }
    done.extend_from_slice(rest);
    done
}

fn error(kind: &str, message: String) -> Option<Error> {
    Some(match kind {
        "denied" => Error::Denied(message),
        "timeout" => Error::Timeout(message),
        "dns" => Error::Dns(message),
        "connect" => Error::Connect(message),
        "tls" => Error::Tls(message),
        "protocol" => Error::Protocol(message),
        "too-large" => Error::TooLarge(message),
        "limit" => Error::Limit(message),
        "cancelled" => Error::Cancelled(message),
        _ => return None,
    })
}
