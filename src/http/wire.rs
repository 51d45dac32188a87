//! One connection, of either version of HTTP. Its tasks belong to it: when the last holder drops it, they stop and the
//! socket, which they hold with its permit, closes at once, without a word to a peer that may be silent.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::http::{Response, Version};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::head::Head;
use super::{Error, MAX_HEADERS, Outgoing};

/// A connection's buffer, in bytes: smaller than this makes large bodies slow, and the head has a limit of its own.
const MIN_BUFFER: usize = 64 * 1024;

/// No connection needs more, whatever the limit for heads.
const MAX_BUFFER: usize = 1024 * 1024;

/// Calls at a time on one HTTP/2 connection.
pub(super) const STREAMS: usize = 8;

/// How much of an answer one HTTP/2 stream may hold here before the guest reads it, in bytes. With the default of 2 MiB
/// eight unread answers would be 16 MiB.
const STREAM_WINDOW: u32 = 256 * 1024;

/// The same for all streams of a connection. It is twice what they may hold together, so answers that nobody reads do not
/// stall the others.
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;

/// How long an answered connection may take to be ready again, before it is closed instead of kept. One that still sends
/// a request's body is the usual case.
const SETTLES_WITHIN: Duration = Duration::from_millis(10);

/// A connection.
pub(super) enum Wire {
    Http1(Http1),
    Http2(Arc<Http2>),
}

/// A connection for one call at a time.
pub(super) struct Http1 {
    sender: http1::SendRequest<Outgoing>,
    _tasks: DropGuard,
}

/// A connection that up to [`STREAMS`] calls share.
pub(super) struct Http2 {
    sender: http2::SendRequest<Outgoing>,
    used: Mutex<Instant>,
    _tasks: DropGuard,
}

/// A request without an answer.
pub(super) struct Failed {
    pub(super) error: Fault,
    /// The body, when nothing at all of the request was written: only then may it be sent again.
    pub(super) unsent: Option<Outgoing>,
}

/// Why.
pub(super) enum Fault {
    /// The request cannot be sent as it is.
    Request(Error),
    Connection(hyper::Error),
}

impl Wire {
    /// Begins to speak HTTP on a stream.
    pub(super) async fn new<T>(stream: T, h2: bool, head_limit: u64) -> Result<Self, hyper::Error>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let io = TokioIo::new(stream);
        let token = CancellationToken::new();
        let tasks = token.clone().drop_guard();
        let limit = usize::try_from(head_limit).unwrap_or(usize::MAX);
        if h2 {
            let (sender, connection) = http2::Builder::new(Owned(token.clone()))
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                // Above this the library only says "protocol error"; up to it the head is weighed here.
                .max_header_list_size(
                    u32::try_from(head_limit.saturating_mul(4)).unwrap_or(u32::MAX),
                )
                .handshake(io)
                .await?;
            tokio::spawn(token.run_until_cancelled_owned(async {
                // The calls on it have the error too.
                let _ = connection.await;
            }));
            return Ok(Self::Http2(Arc::new(Http2 {
                sender,
                used: Mutex::new(Instant::now()),
                _tasks: tasks,
            })));
        }
        let (sender, connection) = http1::Builder::new()
            .max_headers(MAX_HEADERS)
            .max_header_size(limit)
            .max_buf_size(limit.clamp(MIN_BUFFER, MAX_BUFFER))
            .handshake(io)
            .await?;
        tokio::spawn(token.run_until_cancelled_owned(async {
            let _ = connection.await;
        }));
        Ok(Self::Http1(Http1 {
            sender,
            _tasks: tasks,
        }))
    }

    /// Sends a request and waits for the head of its answer.
    pub(super) async fn send(
        &mut self,
        head: &Head,
        body: Outgoing,
    ) -> Result<Response<Incoming>, Failed> {
        let (version, ready) = match self {
            Self::Http1(wire) => (Version::HTTP_11, wire.sender.ready().await),
            Self::Http2(wire) => (Version::HTTP_2, wire.sender.clone().ready().await),
        };
        if let Err(error) = ready {
            return Err(Failed {
                error: Fault::Connection(error),
                unsent: Some(body),
            });
        }
        let request = head.request(version, body).map_err(|error| Failed {
            error: Fault::Request(error),
            unsent: None,
        })?;
        let sent = match self {
            Self::Http1(wire) => wire.sender.try_send_request(request).await,
            Self::Http2(wire) => wire.sender.clone().try_send_request(request).await,
        };
        sent.map_err(|mut failed| Failed {
            unsent: failed.take_message().map(::http::Request::into_body),
            error: Fault::Connection(failed.into_error()),
        })
    }
}

impl Http1 {
    pub(super) fn is_usable(&self) -> bool {
        self.sender.is_ready()
    }

    /// Whether it can take another request after an answer that was read to its end.
    pub(super) async fn settles(&mut self) -> bool {
        let ready = tokio::time::timeout(SETTLES_WITHIN, self.sender.ready()).await;
        matches!(ready, Ok(Ok(())))
    }
}

impl Http2 {
    pub(super) fn is_usable(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Remembers that a call ended now.
    pub(super) fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(super) fn used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the tasks of an HTTP/2 connection until the connection is dropped.
#[derive(Clone)]
struct Owned(CancellationToken);

impl<F> hyper::rt::Executor<F> for Owned
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, work: F) {
        tokio::spawn(self.0.clone().run_until_cancelled_owned(work));
    }
}
