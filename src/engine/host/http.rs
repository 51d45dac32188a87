//! `http` and `wasi:http`: two doors, behind both of them the same session of the same client (see [`crate::http`]).

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::task::JoinSet;
use wasmtime_wasi_http::{RequestOptions, WasiBody, WasiHttpCtxView, WasiHttpHooks, WasiHttpView};

use super::{Capture, HostState};
use crate::engine::Shared;
use crate::engine::worlds::v0_1::piecework::handler::http;
use crate::http::{Client, Error, Session, Timeouts, Usage};

/// The attempt's own limit comes first and ends its calls with it: so what is said is always that. This is for a call that
/// nobody ends.
const AFTER: Duration = Duration::from_secs(1);

/// Bodies of refused requests that are read on at once.
const DRAINS: usize = 16;

/// An attempt's way out. The session is made at the first call: most attempts make none.
#[derive(Debug)]
pub(in crate::engine) struct Door {
    client: Arc<Client>,
    session: OnceLock<Arc<Session>>,
    deadline: Instant,
    idempotency_key: String,
    output: Shared<Capture>,
    /// Reads the bodies of requests that were refused; ends with the attempt.
    drains: Shared<JoinSet<()>>,
}

impl Door {
    pub(super) fn new(
        client: Arc<Client>,
        deadline: Instant,
        idempotency_key: &str,
        output: Shared<Capture>,
    ) -> Self {
        Self {
            client,
            session: OnceLock::new(),
            deadline,
            idempotency_key: idempotency_key.to_owned(),
            output,
            drains: Arc::default(),
        }
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        self.session.get_or_init(|| {
            Arc::new(
                self.client
                    .session(self.deadline + AFTER, &self.idempotency_key),
            )
        })
    }

    /// What the calls used, when there were any.
    pub(in crate::engine) fn usage(&self) -> Option<Usage> {
        self.session
            .get()
            .map(|session| session.usage())
            .filter(|usage| usage.calls > 0)
    }
}

impl http::Host for HostState {
    async fn send(
        &mut self,
        request: http::Request,
    ) -> wasmtime::Result<Result<http::Response, http::HttpError>> {
        let timeout = request
            .timeout
            .map(|millis| Duration::from_millis(millis.into()));
        let answer = self
            .http
            .session()
            .send(
                &request.method,
                &request.url,
                &request.headers,
                request.body.map(Bytes::from),
                timeout,
            )
            .await;
        Ok(match answer {
            Ok(answer) => Ok(http::Response {
                status: answer.status,
                headers: answer.headers,
                body: answer.body.into(),
            }),
            Err(error) => Err(match error {
                Error::Denied(text) => http::HttpError::Denied(text),
                Error::Timeout(text) => http::HttpError::Timeout(text),
                Error::Dns(text) => http::HttpError::Dns(text),
                Error::Connect(text) => http::HttpError::Connect(text),
                Error::Tls(text) => http::HttpError::Tls(text),
                Error::Protocol(text) => http::HttpError::Protocol(text),
                Error::TooLarge(text) => http::HttpError::TooLarge(text),
                Error::Limit(text) => http::HttpError::Limit(text),
                Error::Cancelled(text) => http::HttpError::Cancelled(text),
            }),
        })
    }
}

impl WasiHttpView for HostState {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView {
            hooks: &mut self.http,
            table: &mut self.table,
            ctx: &mut self.wasi_http,
        }
    }
}

/// The end of work on a request or response that this client does elsewhere.
type Rest = Box<dyn Future<Output = Result<(), wasmtime_wasi_http::Error>> + Send>;

impl WasiHttpHooks for Door {
    // One chunk waits in each body that a guest has opened, sent or not, and one more on its way: 1,000 of them (the
    // handles of an attempt) with the usual 1 MiB held 2 GiB of host memory.
    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        8 * 1024
    }

    fn send_request(
        &mut self,
        request: ::http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _: Rest,
    ) -> Box<
        dyn Future<Output = Result<(::http::Response<WasiBody>, Rest), wasmtime_wasi_http::Error>>
            + Send,
    > {
        let session = self.session().clone();
        let output = self.output.clone();
        let drains = self.drains.clone();
        let (request, body) = kept(request);
        let options = options.unwrap_or_default();
        let timeouts = Timeouts {
            connect: options.connect_timeout,
            first_byte: options.first_byte_timeout,
            between_bytes: options.between_bytes_timeout,
        };
        Box::new(async move {
            match session.stream(request, timeouts).await {
                Ok(response) => {
                    let response =
                        response.map(|body| body.map_err(|error| code(&error)).boxed_unsync());
                    let done: Rest = Box::new(std::future::ready(Ok(())));
                    Ok((response, done))
                }
                Err(error) => {
                    // The interface's codes have no text, and this one says which line of the settings to change.
                    let line = format!("http: {error}\n");
                    output
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .write(line.as_bytes(), true);
                    let mut drains = drains.lock().unwrap_or_else(PoisonError::into_inner);
                    // Those that ended are forgotten, or a loop of refused calls would fill the list.
                    while drains.try_join_next().is_some() {}
                    if drains.len() < DRAINS {
                        drains.spawn(body.drain());
                    }
                    drop(drains);
                    Err(code(&error))
                }
            }
        })
    }
}

/// A request's body that outlives the request. A guest that still writes to a body that is gone sees a broken stream in
/// place of the reason: so what was refused is read on, and thrown away.
#[derive(Clone)]
struct Kept(Shared<WasiBody>);

fn kept(request: ::http::Request<WasiBody>) -> (::http::Request<Kept>, Kept) {
    let (parts, body) = request.into_parts();
    let kept = Kept(Arc::new(Mutex::new(body)));
    (::http::Request::from_parts(parts, kept.clone()), kept)
}

impl Kept {
    async fn drain(mut self) {
        while let Some(Ok(_)) = self.frame().await {}
    }
}

impl http_body::Body for Kept {
    type Data = Bytes;
    type Error = wasmtime_wasi_http::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let mut body = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Pin::new(&mut *body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        let body = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let body = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        body.size_hint()
    }
}

fn code(error: &Error) -> wasmtime_wasi_http::Error {
    use wasmtime_wasi_http::Error as Code;
    match error {
        Error::Denied(_) => Code::HttpRequestDenied,
        Error::Timeout(_) => Code::HttpResponseTimeout,
        Error::Dns(_) => Code::DnsError {
            rcode: None,
            info_code: None,
        },
        Error::Connect(_) => Code::ConnectionRefused,
        Error::Tls(_) => Code::TlsProtocolError,
        Error::Protocol(_) => Code::HttpProtocolError,
        Error::TooLarge(_) => Code::HttpResponseBodySize(None),
        Error::Limit(_) => Code::ConnectionLimitReached,
        Error::Cancelled(_) => Code::ConnectionTerminated,
    }
}
