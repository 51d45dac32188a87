//! The time limits of one call. They are timers on the network's own thread, so a guest that computes delays none of them.

use std::time::Duration;

use tokio::time::Instant;

use super::Error;
use crate::config::HttpLimits;
use crate::policy::Destination;

/// What a call may ask for. Each is used where it is shorter than the plugin's limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timeouts {
    /// Name lookup, connection and TLS together.
    pub connect: Option<Duration>,
    /// From the request's hand-over to the connection until the head of the answer is complete.
    pub first_byte: Option<Duration>,
    /// Between two pieces of the answer's body.
    pub between_bytes: Option<Duration>,
}

/// The part of a call that a limit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Connect,
    FirstByte,
    Body,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    connect: Duration,
    first_byte: Duration,
    between_bytes: Option<Duration>,
    total: Duration,
    end: Instant,
    /// The attempt ends before the call's own time is over.
    attempt_first: bool,
}

impl Bounds {
    pub(super) fn new(
        limits: &HttpLimits,
        asked: Timeouts,
        timeout: Option<Duration>,
        attempt: Instant,
    ) -> Self {
        let shorter =
            |limit: Duration, asked: Option<Duration>| asked.map_or(limit, |a| a.min(limit));
        let total = shorter(limits.timeout, timeout);
        let now = Instant::now();
        // A limit beyond what a clock can show is no limit; the attempt's end is one.
        let own = now.checked_add(total).unwrap_or(attempt);
        Self {
            connect: shorter(limits.connect_timeout, asked.connect),
            first_byte: shorter(limits.first_byte_timeout, asked.first_byte),
            between_bytes: asked.between_bytes,
            total,
            end: own.min(attempt),
            attempt_first: attempt < own,
        }
    }

    /// When the phase that begins now has to be over, and how long that is.
    pub(super) fn until(&self, phase: Phase) -> (Instant, Option<Duration>) {
        let limit = match phase {
            Phase::Connect => Some(self.connect),
            Phase::FirstByte => Some(self.first_byte),
            Phase::Body => self.between_bytes,
        };
        let own = limit.and_then(|limit| Some((Instant::now().checked_add(limit)?, limit)));
        match own {
            Some((at, limit)) if at < self.end => (at, Some(limit)),
            Some(_) | None => (self.end, None),
        }
    }

    /// Runs a phase within its limit and the call's.
    pub(super) async fn within<T>(
        &self,
        phase: Phase,
        to: &Destination,
        work: impl Future<Output = T>,
    ) -> Result<T, Error> {
        let (at, limit) = self.until(phase);
        tokio::time::timeout_at(at, work)
            .await
            .map_err(|_| self.passed(phase, limit, to))
    }

    /// When the call is over, whatever it does.
    pub(super) fn end(&self) -> Instant {
        self.end
    }

    /// The error of a wait that lasted until the call's end.
    pub(super) fn over(&self, to: &Destination) -> Error {
        self.passed(Phase::Body, None, to)
    }

    fn passed(&self, phase: Phase, limit: Option<Duration>, to: &Destination) -> Error {
        Error::Timeout(match (phase, limit) {
            (Phase::Connect, Some(limit)) => {
                format!("no connection to `{to}` within {limit:?} (connect timeout)")
            }
            (Phase::FirstByte, Some(limit)) => {
                format!("no answer from `{to}` within {limit:?} (first byte timeout)")
            }
            (Phase::Body, Some(limit)) => {
                format!("nothing more from `{to}` within {limit:?} (between bytes timeout)")
            }
            (_, None) if self.attempt_first => {
                format!("the attempt's time was over before `{to}` had answered in full")
            }
            (_, None) => format!(
                "no full answer from `{to}` within {:?} (timeout of the whole call)",
                self.total
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_limit_counts() {
        let limits = HttpLimits {
            calls: 1,
            concurrent: 1,
            response: 1,
            request: 1,
            headers: 1,
            connect_timeout: Duration::from_secs(3),
            first_byte_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(10),
        };
        let hour = Instant::now() + Duration::from_secs(3600);
        let asked = Timeouts {
            connect: Some(Duration::from_secs(1)),
            first_byte: Some(Duration::from_secs(60)),
            between_bytes: Some(Duration::MAX),
        };
        let bounds = Bounds::new(&limits, asked, Some(Duration::from_secs(4)), hour);
        assert_eq!(bounds.until(Phase::Connect).1, Some(Duration::from_secs(1)));
        // Five seconds are more than the whole call has.
        assert_eq!(bounds.until(Phase::FirstByte), (bounds.end, None));
        assert_eq!(bounds.until(Phase::Body), (bounds.end, None));
        assert!(!bounds.attempt_first);
        let soon = Instant::now() + Duration::from_secs(1);
        assert!(Bounds::new(&limits, asked, None, soon).attempt_first);
    }
}
