//! One request and the head of its answer, on the network's thread.

use std::sync::Arc;

use ::http::{Response, StatusCode};

use super::body::Reading;
use super::bounds::{Bounds, Phase};
use super::call::Call;
use super::client::Client;
use super::head::{Head, headers_size, strip};
use super::pool::Key;
use super::wire::{Failed, Fault};
use super::{Error, Outgoing};

/// A request that may be sent.
pub(super) struct Exchange {
    pub(super) client: Arc<Client>,
    pub(super) call: Arc<Call>,
    pub(super) bounds: Bounds,
    pub(super) key: Key,
    pub(super) head: Head,
}

impl Exchange {
    /// Sends the request and returns the answer, its body still to be read.
    pub(super) async fn run(&self, body: Outgoing) -> Result<Response<Reading>, Error> {
        let Self {
            client,
            call,
            bounds,
            key,
            head,
        } = self;
        let limits = &client.rules.limits;
        let method = head.method.as_str();
        let mut body = body;
        let mut fresh = false;
        let (mut response, loan) = loop {
            let (mut loan, used) = client.lend(key, method, bounds, fresh).await?;
            let sending = loan.wire.send(head, body);
            let failed = match bounds.within(Phase::FirstByte, &key.to, sending).await {
                Ok(Ok(response)) => break (response, loan),
                Ok(Err(failed)) => failed,
                Err(passed) => {
                    loan.spoil();
                    return Err(passed);
                }
            };
            loan.spoil();
            match failed {
                // Nothing of it was written: the connection had been closed while it was idle.
                Failed {
                    unsent: Some(whole),
                    ..
                } if used && !fresh => {
                    body = whole;
                    fresh = true;
                }
                Failed {
                    error: Fault::Request(error),
                    ..
                } => return Err(error),
                Failed {
                    error: Fault::Connection(error),
                    ..
                } => {
                    return Err(call.blame(|| Error::from_hyper(&error, &key.to, limits.headers)));
                }
            }
        };
        call.sent(head.size());
        call.received(headers_size(response.headers()));
        call.answered(response.status().as_u16());
        if let Err(error) = self.check(&mut response) {
            loan.spoil();
            return Err(error);
        }
        let (parts, incoming) = response.into_parts();
        let reading = Reading::new(
            incoming,
            *bounds,
            key.to.clone(),
            call.clone(),
            loan,
            (limits.response, limits.headers),
        )?;
        Ok(Response::from_parts(parts, reading))
    }

    fn check<B>(&self, response: &mut Response<B>) -> Result<(), Error> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(Error::Protocol(format!(
                "`{}` changed the protocol, which was not offered",
                self.key.to
            )));
        }
        let limit = self.client.rules.limits.headers;
        strip(response.headers_mut(), &self.key.to, limit)
    }
}
