//! The two bodies of a call: the guest's on its way out, the server's on its way in. Both are counted and capped as they
//! pass; neither is ever held whole, except in the buffered door, up to its cap.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::Error;
use super::bounds::{Bounds, Phase};
use super::call::Call;
use super::client::Loan;
use super::error::size;
use super::head::{bytes, headers_size};
use crate::policy::Destination;

type Fault = Box<dyn std::error::Error + Send + Sync>;
type Inner = Pin<Box<dyn http_body::Body<Data = Bytes, Error = Fault> + Send>>;

/// The body of a request.
pub(super) struct Outgoing {
    inner: Inner,
    passed: u64,
    limit: u64,
    stated: Option<u64>,
    call: Arc<Call>,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Outgoing {
    /// Wraps the guest's body. `stated` is the length that the guest's headers give.
    pub(super) fn new(
        inner: Inner,
        stated: Option<u64>,
        limit: u64,
        call: &Arc<Call>,
    ) -> Result<Self, Error> {
        if stated.unwrap_or(0).max(inner.size_hint().lower()) > limit {
            return Err(too_large(limit));
        }
        Ok(Self {
            inner,
            passed: 0,
            limit,
            stated,
            ended: Box::pin(call.token.clone().cancelled_owned()),
            call: call.clone(),
        })
    }

    fn refuse<T>(&self, error: Error) -> Poll<Option<Result<T, Error>>> {
        self.call.spoil(error.clone());
        Poll::Ready(Some(Err(error)))
    }

    fn check(&self, done: bool) -> Result<(), Error> {
        if self.passed > self.limit {
            return Err(too_large(self.limit));
        }
        match self.stated {
            Some(stated) if self.passed > stated || done && self.passed < stated => {
                Err(Error::Protocol(format!(
                    "the request's `content-length` is {stated}, but its body has {} {} bytes",
                    if done { "only" } else { "at least" },
                    self.passed
                )))
            }
            Some(_) | None => Ok(()),
        }
    }
}

impl http_body::Body for Outgoing {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let frame = match self.inner.as_mut().poll_frame(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                // Nobody waits for this call any more: without this a guest's stream could keep a connection.
                ready!(self.ended.as_mut().poll(cx));
                return Poll::Ready(Some(Err(Error::ended())));
            }
        };
        match frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.passed += bytes(data.len());
                    self.call.sent(bytes(data.len()));
                }
                match self.check(false) {
                    Ok(()) => Poll::Ready(Some(Ok(frame))),
                    Err(error) => self.refuse(error),
                }
            }
            Some(Err(fault)) => self.refuse(Error::Protocol(format!(
                "the handler ended its request's body with an error: {fault}"
            ))),
            None => match self.check(true) {
                Ok(()) => Poll::Ready(None),
                Err(error) => self.refuse(error),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream() && self.check(true).is_ok()
    }

    fn size_hint(&self) -> SizeHint {
        self.stated.map_or_else(
            || self.inner.size_hint(),
            |stated| SizeHint::with_exact(stated.saturating_sub(self.passed)),
        )
    }
}

/// The body of an answer while it comes in. It is read on the network's thread only. Dropped before its end, the guest went
/// away: HTTP/1.1 closes, a shared connection goes on without it.
pub(super) struct Reading {
    body: Incoming,
    left: u64,
    limit: u64,
    bounds: Bounds,
    to: Destination,
    call: Arc<Call>,
    loan: Option<Loan>,
    head_limit: u64,
}

impl Reading {
    pub(super) fn new(
        body: Incoming,
        bounds: Bounds,
        to: Destination,
        call: Arc<Call>,
        loan: Loan,
        (limit, head_limit): (u64, u64),
    ) -> Result<Self, Error> {
        let mut reading = Self {
            body,
            left: limit,
            limit,
            bounds,
            to,
            call,
            loan: Some(loan),
            head_limit,
        };
        if http_body::Body::size_hint(&reading.body).lower() > limit {
            reading.spoil();
            return Err(reading.too_large());
        }
        Ok(reading)
    }

    /// How long the body is, where the server says so.
    pub(super) fn size_hint(&self) -> SizeHint {
        http_body::Body::size_hint(&self.body)
    }

    /// The next piece; none once the body was read to its end, and its connection is free for the next call.
    pub(super) async fn next(&mut self) -> Result<Option<Frame<Bytes>>, Error> {
        let Self {
            body, bounds, to, ..
        } = self;
        let frame = bounds.within(Phase::Body, to, body.frame()).await;
        let fault = match frame {
            Ok(Some(Ok(frame))) => match self.count(&frame) {
                Ok(()) => return Ok(Some(frame)),
                Err(error) => error,
            },
            Ok(None) => {
                if let Some(loan) = self.loan.take() {
                    loan.give_back().await;
                }
                return Ok(None);
            }
            Ok(Some(Err(error))) => self
                .call
                .blame(|| Error::from_hyper(&error, &self.to, self.head_limit)),
            Err(passed) => passed,
        };
        self.spoil();
        Err(fault)
    }

    /// Waits for work on the guest's side, but not past the call's end.
    pub(super) async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Error> {
        match tokio::time::timeout_at(self.bounds.end(), work).await {
            Ok(done) => Ok(done),
            Err(_) => {
                self.spoil();
                Err(self.bounds.over(&self.to))
            }
        }
    }

    pub(super) fn too_large(&self) -> Error {
        Error::body_too_large(&self.to, self.limit)
    }

    /// Closes the connection: after an error nobody knows what would come next on it.
    fn spoil(&mut self) {
        if let Some(loan) = self.loan.take() {
            loan.spoil();
        }
    }

    fn count(&mut self, frame: &Frame<Bytes>) -> Result<(), Error> {
        if let Some(trailers) = frame.trailers_ref() {
            self.call.received(headers_size(trailers));
            return Ok(());
        }
        let length = frame.data_ref().map_or(0, |data| bytes(data.len()));
        self.call.received(length);
        self.left = self
            .left
            .checked_sub(length)
            .ok_or_else(|| self.too_large())?;
        Ok(())
    }
}

/// The body of an answer, for the guest. Dropping it ends the call.
#[derive(Debug)]
pub struct Body {
    frames: mpsc::Receiver<Frame<Bytes>>,
    end: Arc<OnceLock<Result<(), Error>>>,
    /// What is still to come, where the server said how much there is.
    left: Option<u64>,
    /// None for an answer that was never on the network.
    call: Option<Arc<Call>>,
    done: bool,
}

impl Body {
    /// Starts to read an answer, as fast as the guest takes it. Runs on the network's thread.
    pub(super) fn new(mut reading: Reading, call: &Arc<Call>) -> Self {
        // One piece: what the guest does not read stays in the socket.
        let (give, frames) = mpsc::channel(1);
        let end = Arc::new(OnceLock::new());
        let left = reading.size_hint().exact();
        let (its_end, its_call) = (end.clone(), call.clone());
        tokio::spawn(call.token.clone().run_until_cancelled_owned(async move {
            let ended = pass_on(&mut reading, &give).await;
            drop(reading);
            let outcome = ended.as_ref().map_or_else(Error::kind, |()| "done");
            let _ = its_end.set(ended);
            drop(give);
            its_call.end(outcome);
        }));
        Self {
            frames,
            end,
            left,
            call: Some(call.clone()),
            done: false,
        }
    }

    /// An answer that is there already.
    pub(super) fn whole(content: Bytes) -> Self {
        let (give, frames) = mpsc::channel(1);
        let left = Some(bytes(content.len()));
        if !content.is_empty() {
            // There is room for one, and nobody else gives.
            let _ = give.try_send(Frame::data(content));
        }
        Self {
            frames,
            end: Arc::new(OnceLock::from(Ok(()))),
            left,
            call: None,
            done: false,
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if self.done {
            return Poll::Ready(None);
        }
        if let Some(frame) = ready!(self.frames.poll_recv(cx)) {
            let length = frame.data_ref().map_or(0, |data| bytes(data.len()));
            self.left = self.left.map(|left| left.saturating_sub(length));
            return Poll::Ready(Some(Ok(frame)));
        }
        self.done = true;
        match self.end.get() {
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(error)) => Poll::Ready(Some(Err(error.clone()))),
            // Whoever read the answer was stopped.
            None => Poll::Ready(Some(Err(Error::ended()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.done
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if let Some(call) = &self.call {
            call.end("dropped");
        }
    }
}

async fn pass_on(reading: &mut Reading, give: &mpsc::Sender<Frame<Bytes>>) -> Result<(), Error> {
    while let Some(frame) = reading.next().await? {
        // A guest that went away has ended the call, and this with it.
        let _ = reading.meanwhile(give.send(frame)).await?;
    }
    Ok(())
}

fn too_large(limit: u64) -> Error {
    Error::TooLarge(format!(
        "the request's body is larger than {} (`request`)",
        size(limit)
    ))
}
