//! The HTTP of one attempt: the two doors, their counters and their common end. What the doors do on the caller's thread is
//! pure, and cheap or done in short steps; the rest runs on the network's thread.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::bounds::{Bounds, Timeouts};
use super::call::{Call, Tally, Usage};
use super::client::Client;
use super::exchange::Exchange;
use super::head::{self, Additions, Head};
use super::pool::Key;
use super::secrets::{Placeholders, refuse_body};
use super::tape::{self, Masks};
use super::{Body, Error, Outgoing, whole};
use crate::policy::{self, UrlError};

/// The HTTP of one attempt. Dropping it ends every call that is open and closes their sockets.
pub struct Session {
    client: Arc<Client>,
    tally: Arc<Tally>,
    placeholders: Placeholders,
    idempotency_key: String,
    deadline: Instant,
    token: CancellationToken,
    _end: DropGuard,
}

/// An answer that was read to its end.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its status, also one that says that something went wrong, or is elsewhere.
    pub status: u16,
    /// Its headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Its body, unpacked if the host had asked for gzip.
    pub body: Bytes,
}

/// What a door adds to a request.
struct Door<'a> {
    method: &'a str,
    url: &'a str,
    gzip: bool,
    empty: bool,
    asked: Timeouts,
    timeout: Option<Duration>,
}

impl Session {
    pub(super) fn new(client: Arc<Client>, deadline: Instant, idempotency_key: &str) -> Self {
        let token = CancellationToken::new();
        Self {
            tally: Arc::new(Tally::new()),
            placeholders: Placeholders::new(&client.rules.secrets),
            idempotency_key: idempotency_key.to_owned(),
            deadline,
            _end: token.clone().drop_guard(),
            token,
            client,
        }
    }

    /// What the guest has in place of each secret, by the secret's name. Random for each session.
    pub fn placeholders(&self) -> impl Iterator<Item = (&str, &str)> {
        self.placeholders
            .pairs(&self.client.rules.secrets)
            .map(|(secret, placeholder)| (secret.name.as_str(), placeholder))
    }

    /// What was used so far, also by calls that are open.
    pub fn usage(&self) -> Usage {
        self.tally.usage()
    }

    /// The buffered door: one request, one whole answer. gzip is asked for and unpacked, unless the request has an
    /// `accept-encoding` of its own; unpacking is the caller's work, in steps of at most 64 KiB. Placeholders of secrets are filled in in header values and the query, never in the
    /// body, where they are refused.
    ///
    /// # Errors
    /// One kind for each cause. No answer is an error because of its status.
    pub async fn send(
        &self,
        method: &str,
        url: &str,
        headers: &[(String, String)],
        body: Option<Bytes>,
        timeout: Option<Duration>,
    ) -> Result<Answer, Error> {
        let body = body.unwrap_or_default();
        match &self.client.tape {
            None => self.call(method, url, headers, body, timeout).await,
            Some(tape) => {
                let request = tape::Request {
                    method,
                    url,
                    headers,
                    body: &body,
                };
                let secrets = &self.client.rules.secrets;
                let pairs = || self.placeholders.pairs(secrets);
                let mut masks: Masks<'_> = pairs()
                    .map(|(secret, placeholder)| (placeholder, secret.name.as_str()))
                    .collect();
                if let Some(answer) = tape.answer(&request, &masks) {
                    let call = self.open()?;
                    call.end(answer.as_ref().map_or_else(Error::kind, |_| "done"));
                    return answer;
                }
                let answer = self.call(method, url, headers, body.clone(), timeout).await;
                let shown: Vec<_> = pairs()
                    .flat_map(|(secret, _)| {
                        tape::spellings(secret.value.reveal()).map(move |shown| (shown, secret))
                    })
                    .collect();
                masks.extend(
                    shown
                        .iter()
                        .map(|(shown, secret)| (shown.as_str(), secret.name.as_str())),
                );
                tape.keep(&request, &answer, &masks);
                answer
            }
        }
    }

    async fn call(
        &self,
        method: &str,
        url: &str,
        headers: &[(String, String)],
        body: Bytes,
        timeout: Option<Duration>,
    ) -> Result<Answer, Error> {
        let call = self.open()?;
        let door = Door {
            method,
            url,
            gzip: true,
            empty: body.is_empty(),
            asked: Timeouts::default(),
            timeout,
        };
        let given = headers
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let prepared = self.prepare(&call, &door, given).and_then(|exchange| {
            refuse_body(self.placeholders.pairs(&self.client.rules.secrets), &body)?;
            // The body is whole: its length is what it is.
            let body = Full::new(body).map_err(|never| match never {});
            let limit = self.client.rules.limits.request;
            Ok((exchange, Outgoing::new(Box::pin(body), None, limit, &call)?))
        });
        let (exchange, body) = prepared.inspect_err(|error| call.end(error.kind()))?;
        let limit = self.client.rules.limits.response;
        let (to, unpack) = (exchange.key.to.clone(), exchange.head.unpack);
        let answered = self.spawn(call.clone(), async move {
            let (parts, mut reading) = exchange.run(body).await?.into_parts();
            let body = whole::read(&mut reading, limit).await?;
            Ok((parts, body))
        });
        let (mut parts, mut body) = answered.await?;
        if unpack {
            body = whole::unpack(body, &mut parts.headers, &to, limit)
                .await
                .inspect_err(|error| call.end(error.kind()))?;
        }
        call.end("done");
        let text = |value: &::http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into();
        Ok(Answer {
            status: parts.status.as_u16(),
            headers: parts
                .headers
                .iter()
                .map(|(name, value)| (name.as_str().to_owned(), text(value)))
                .collect(),
            body,
        })
    }

    /// The streaming door, for `wasi:http`: the request's body goes out as the guest writes it, the answer's comes in as it
    /// reads. A call is open until the returned body was read to its end or dropped. A `content-length` of the guest is
    /// kept to: a body of another length is an error. Placeholders are filled in as in [`send`](Self::send); the body is
    /// not searched for them.
    ///
    /// # Errors
    /// One kind for each cause; the body has the same.
    pub async fn stream<B>(
        &self,
        request: ::http::Request<B>,
        options: Timeouts,
    ) -> Result<::http::Response<Body>, Error>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if self.client.tape.is_some() {
            return self.whole(request).await;
        }
        let (request, body) = request.into_parts();
        let call = self.open()?;
        let door = Door {
            method: request.method.as_str(),
            url: &request.uri.to_string(),
            gzip: false,
            empty: body.is_end_stream(),
            asked: options,
            timeout: None,
        };
        let given = request
            .headers
            .iter()
            .map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
        let prepared = self.prepare(&call, &door, given).and_then(|exchange| {
            let stated = exchange.head.stated;
            let limit = self.client.rules.limits.request;
            let body = Box::pin(body.map_err(Into::into));
            Ok((exchange, Outgoing::new(body, stated, limit, &call)?))
        });
        let (exchange, body) = prepared.inspect_err(|error| call.end(error.kind()))?;
        self.spawn(call, async move {
            let response = exchange.run(body).await?;
            Ok(response.map(|reading| Body::new(reading, &exchange.call)))
        })
        .await
    }

    /// The streaming door with a tape: both bodies are read whole first.
    async fn whole<B>(&self, request: ::http::Request<B>) -> Result<::http::Response<Body>, Error>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (request, body) = request.into_parts();
        let fault = |error: Box<dyn std::error::Error + Send + Sync>| {
            Error::Protocol(format!(
                "the handler ended its request's body with an error: {error}"
            ))
        };
        let body = body.collect().await.map_err(|error| fault(error.into()))?;
        let text = |value: &::http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into();
        let headers: Vec<_> = request
            .headers
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), text(value)))
            .collect();
        let (method, url) = (request.method.as_str(), request.uri.to_string());
        let answer = self
            .send(method, &url, &headers, Some(body.to_bytes()), None)
            .await?;
        let mut response = ::http::Response::builder().status(answer.status);
        for (name, value) in &answer.headers {
            response = response.header(name, value);
        }
        response
            .body(Body::whole(answer.body))
            .map_err(|error| Error::Protocol(format!("the recorded answer is none: {error}")))
    }

    fn open(&self) -> Result<Arc<Call>, Error> {
        let limits = &self.client.rules.limits;
        Call::open(&self.tally, limits, &self.client.plugin, &self.token)
    }

    /// Everything before the network: policy, headers, secrets.
    fn prepare<'a>(
        &self,
        call: &Arc<Call>,
        door: &Door<'_>,
        given: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<Exchange, Error> {
        let client = &self.client;
        let method = head::method(door.method)?;
        let (url, to) = policy::destination(door.url).map_err(|error| unfit(&error))?;
        call.is_about(method.as_str(), &to);
        let allowed = client.rule(method.as_str(), &to)?;
        let filler = self.placeholders.filler(&client.rules.secrets, &to);
        // The fragment is not sent, but a placeholder there is a mistake all the same.
        let (_, fragment) = door.url.split_once('#').unwrap_or_default();
        filler.refuse(fragment.as_bytes(), "the URL's fragment")?;
        let add = Additions {
            idempotency_key: Some(self.idempotency_key.as_str())
                .filter(|key| allowed.rule.idempotency_key && !key.is_empty()),
            gzip: door.gzip,
            empty: door.empty,
        };
        let limits = &client.rules.limits;
        let head = Head::new(method, url, given, add, &filler, limits.headers)?;
        let attempt = self.deadline.into();
        Ok(Exchange {
            client: client.clone(),
            call: call.clone(),
            bounds: Bounds::new(limits, door.asked, door.timeout, attempt),
            key: Key {
                rule: allowed.at,
                private: allowed.private(),
                to,
            },
            head,
        })
    }

    /// Runs a call on the network's thread, until it is done or nobody waits for it.
    fn spawn<T, F>(&self, call: Arc<Call>, work: F) -> Running<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let token = call.token.clone();
        let its = call.clone();
        let task = self.client.net.handle.spawn(async move {
            let done = token.run_until_cancelled_owned(work).await;
            let done = done.unwrap_or_else(|| Err(Error::ended()));
            if let Err(error) = &done {
                its.end(error.kind());
            }
            done
        });
        Running {
            task,
            call: Some(call),
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("client", &self.client)
            .field("usage", &self.usage())
            .finish_non_exhaustive()
    }
}

/// A call that somebody waits for; dropping it ends the call.
struct Running<T> {
    task: JoinHandle<Result<T, Error>>,
    call: Option<Arc<Call>>,
}

impl<T> Future for Running<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.task).poll(cx).map(|done| {
            // From here on the answer's body holds the call, or whoever unpacks it.
            let call = self.call.take();
            done.unwrap_or_else(|error| {
                if let Some(call) = call {
                    call.end("cancelled");
                }
                Err(stopped(&error))
            })
        })
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        if let Some(call) = &self.call {
            call.end("dropped");
            self.task.abort();
        }
    }
}

fn stopped(error: &JoinError) -> Error {
    Error::Cancelled(if error.is_panic() {
        "the call was broken off by a fault of the host, which its log describes".to_owned()
    } else {
        "the call was broken off: the runner stops".to_owned()
    })
}

/// A URL that no rule could allow is denied; one that is none is the guest's fault.
fn unfit(error: &UrlError) -> Error {
    let text = error.to_string();
    if matches!(
        error,
        UrlError::Scheme(_) | UrlError::UserInfo | UrlError::Ambiguous
    ) {
        Error::Denied(text)
    } else {
        Error::Protocol(text)
    }
}
