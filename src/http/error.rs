//! Why a call has no answer, one kind for each cause. No text holds a query, a header's value or a secret: they reach the
//! guest, its job's row and the log.

use std::error::Error as _;
use std::fmt::Write as _;
use std::io;

use crate::policy::Destination;

/// Why a call has no answer. The text is for the handler's author and the operator.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Not allowed by the settings. Nothing was sent; no connection was made.
    #[error("{0}")]
    Denied(String),
    /// One of the time limits passed; the text says which.
    #[error("{0}")]
    Timeout(String),
    /// The host's name was not resolved.
    #[error("{0}")]
    Dns(String),
    /// No address took the connection.
    #[error("{0}")]
    Connect(String),
    /// No secure connection, for example because of an unknown certificate.
    #[error("{0}")]
    Tls(String),
    /// The request cannot be sent as it is, or the answer is not whole and valid HTTP.
    #[error("{0}")]
    Protocol(String),
    /// A head or a body is above its limit.
    #[error("{0}")]
    TooLarge(String),
    /// Too many calls, in all or at a time, or too many connections.
    #[error("{0}")]
    Limit(String),
    /// The attempt has ended, or the runner stops.
    #[error("{0}")]
    Cancelled(String),
}

impl Error {
    /// One word for the kind, as in the world's `http-error`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Denied(_) => "denied",
            Self::Timeout(_) => "timeout",
            Self::Dns(_) => "dns",
            Self::Connect(_) => "connect",
            Self::Tls(_) => "tls",
            Self::Protocol(_) => "protocol",
            Self::TooLarge(_) => "too-large",
            Self::Limit(_) => "limit",
            Self::Cancelled(_) => "cancelled",
        }
    }

    pub(super) fn ended() -> Self {
        Self::Cancelled("the call ended with its attempt".to_owned())
    }

    pub(super) fn body_too_large(to: &Destination, limit: u64) -> Self {
        Self::TooLarge(format!(
            "the body of the answer of `{to}` is larger than {} (`response`)",
            size(limit)
        ))
    }

    /// What the client library found wrong with the talk to `to`.
    pub(super) fn from_hyper(error: &hyper::Error, to: &Destination, head_limit: u64) -> Self {
        let text = chain(error);
        // The library's own predicate for this needs its server half.
        if text.contains("message head is too large") || text.contains("header_list_way_too_large")
        {
            return Self::head_too_large(to, head_limit);
        }
        if error.is_incomplete_message()
            || error.is_canceled()
            || error.is_closed()
            || is_cut(error)
        {
            return Self::Protocol(format!(
                "`{to}` closed the connection before its answer was whole"
            ));
        }
        Self::Protocol(format!("talking to `{to}`: {text}"))
    }

    pub(super) fn head_too_large(to: &Destination, limit: u64) -> Self {
        Self::TooLarge(format!(
            "the head of the answer of `{to}` is larger than {}, or has more than {} headers",
            size(limit),
            super::MAX_HEADERS
        ))
    }

    pub(super) fn connect(error: &io::Error, to: &Destination) -> Self {
        Self::Connect(format!("cannot connect to `{to}`: {error}"))
    }
}

/// A number of bytes for a message.
pub(super) fn size(bytes: u64) -> String {
    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;
    if bytes > 0 && bytes.is_multiple_of(MIB) {
        format!("{} MiB", bytes / MIB)
    } else if bytes > 0 && bytes.is_multiple_of(KIB) {
        format!("{} KiB", bytes / KIB)
    } else {
        format!("{bytes} bytes")
    }
}

/// The other side went away: in the middle of a body, without the end that TLS has, or with a reset.
fn is_cut(error: &hyper::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    let source = error
        .source()
        .and_then(<dyn std::error::Error>::downcast_ref);
    source.is_some_and(|error: &io::Error| {
        matches!(
            error.kind(),
            BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof
        )
    })
}

fn chain(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let _ = write!(text, ": {error}");
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_short_where_they_can_be() {
        assert_eq!(size(8 * 1024 * 1024), "8 MiB");
        assert_eq!(size(64 * 1024), "64 KiB");
        assert_eq!(size(1025), "1025 bytes");
        assert_eq!(size(0), "0 bytes");
    }
}
