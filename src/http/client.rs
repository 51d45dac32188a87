//! What one plugin may do, and its connections.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use super::bounds::{Bounds, Phase};
use super::pool::{Key, Pool};
use super::sockets::{Socket, Sockets};
use super::wire::Wire;
use super::{Error, Net, Session, Shared, Tape, connect};
use crate::config::{HttpLimits, Secret};
use crate::policy::{AddressKind, Destination, Miss, Policy, Rule, Scheme, address_kind};

/// Name lookups of one plugin at a time: a quarter of all, so that one with names that hang leaves room for the others.
const LOOKUPS_OF_ONE: usize = 4;

/// How long a call that connects keeps others of the same host from doing so too. One that hangs must not use up their time
/// to connect, which is 3 s by default.
const TURN: Duration = Duration::from_millis(300);

/// What one plugin may do.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Its name, for messages and the log.
    pub plugin: String,
    /// Where its calls may go.
    pub allow: Policy,
    /// Where any plugin's calls may go.
    pub ceiling: Policy,
    /// Limits of an attempt's calls.
    pub limits: HttpLimits,
    /// The secrets that it may use.
    pub secrets: Vec<Secret>,
    /// Where `allow` is, for messages: "`allow` under `[plugins.mail.http]` (runner.toml line 12)".
    pub allow_at: String,
    /// Where the ceiling is, for messages.
    pub ceiling_at: String,
}

/// A plugin's way out. Its connections end with it.
pub struct Client {
    pub(super) net: Arc<Shared>,
    pub(super) rules: Rules,
    pub(super) plugin: Arc<str>,
    pool: Arc<Pool>,
    sockets: Arc<Sockets>,
    lookups: Arc<Semaphore>,
    /// Where its calls are answered from, or kept.
    pub(super) tape: Option<Arc<Tape>>,
}

/// What both lists say about a request that they allow.
pub(super) struct Allowed<'a> {
    /// The plugin's rule, and its place in the list.
    pub(super) rule: &'a Rule,
    pub(super) at: usize,
    above: &'a Rule,
}

impl Allowed<'_> {
    /// Whether private addresses are open.
    pub(super) fn private(&self) -> bool {
        self.rule.private && self.above.private
    }
}

impl Client {
    /// A client with no connection yet.
    pub fn new(net: &Net, rules: Rules) -> Self {
        let plugin = rules.plugin.as_str().into();
        let pool = Pool::new(net.shared.idle);
        Self {
            sockets: Arc::new(Sockets::new(&plugin, &net.shared.sockets, &pool)),
            plugin,
            pool,
            lookups: Arc::new(Semaphore::new(LOOKUPS_OF_ONE)),
            net: net.shared.clone(),
            rules,
            tape: None,
        }
    }

    /// A client with other rules. It goes on with the connections of this one where the rules are the same about where they may lead:
    /// they are kept by the place of their rule in the list.
    pub fn renewed(&self, net: &Net, rules: Rules) -> Self {
        let old = &self.rules;
        let same = (&old.plugin, &old.allow, &old.ceiling)
            == (&rules.plugin, &rules.allow, &rules.ceiling);
        if !same {
            return Self::new(net, rules);
        }
        Self {
            net: self.net.clone(),
            rules,
            plugin: self.plugin.clone(),
            pool: self.pool.clone(),
            sockets: self.sockets.clone(),
            lookups: self.lookups.clone(),
            tape: None,
        }
    }

    /// The same with calls that are answered from a tape, or kept on it.
    pub fn taped(self, tape: Arc<Tape>) -> Self {
        Self {
            tape: Some(tape),
            ..self
        }
    }

    /// The HTTP of one attempt, which ends at `deadline`. `idempotency_key` is the job's, for the rules that send it.
    pub fn session(self: &Arc<Self>, deadline: Instant, idempotency_key: &str) -> Session {
        Session::new(self.clone(), deadline, idempotency_key)
    }

    /// The rules for a request that both lists allow.
    pub(super) fn rule(&self, method: &str, to: &Destination) -> Result<Allowed<'_>, Error> {
        let rules = &self.rules;
        let rule = rules.allow.find(method, to).map_err(|miss| match miss {
            Miss::Destination => Error::Denied(format!(
                "`{to}` is not allowed for the plugin `{}`: add \"{to}\" to {}",
                rules.plugin, rules.allow_at
            )),
            Miss::Method(allowed) => Error::Denied(format!(
                "`{method}` to `{to}` is not allowed for the plugin `{}`, only {}: add \"{method}\" to the `methods` of this \
                 destination in {}",
                rules.plugin,
                listed(&allowed),
                rules.allow_at
            )),
        })?;
        let above = rules.ceiling.find(method, to).map_err(|miss| match miss {
            Miss::Destination => Error::Denied(format!(
                "`{to}` is not allowed for any plugin: add \"{to}\" to {}",
                rules.ceiling_at
            )),
            Miss::Method(allowed) => Error::Denied(format!(
                "`{method}` to `{to}` is not allowed for any plugin, only {}: add \"{method}\" to the `methods` of this \
                 destination in {}",
                listed(&allowed),
                rules.ceiling_at
            )),
        })?;
        let mut list = rules.allow.0.iter();
        let at = list.position(|other| std::ptr::eq(other, rule));
        Ok(Allowed {
            rule,
            at: at.expect("the rule was found in this list"),
            above,
        })
    }

    /// A connection for a call, an open one where there is one. The flag says that it has been used before.
    pub(super) async fn lend(
        self: &Arc<Self>,
        key: &Key,
        method: &str,
        bounds: &Bounds,
        fresh: bool,
    ) -> Result<(Loan, bool), Error> {
        let loan = |wire| Loan {
            pool: self.pool.clone(),
            key: key.clone(),
            wire,
        };
        if !fresh && let Some(wire) = self.pool.take(key).await {
            return Ok((loan(wire), true));
        }
        // The lookup's own limit is the same instant: it is polled first, and its text says more.
        let (until, _) = bounds.until(Phase::Connect);
        let connecting = async {
            let gate = self.pool.gate(key);
            let mut turn = None;
            while let Some(gate) = &gate
                && turn.is_none()
            {
                let opened = gate.opened.notified();
                if let Some(wire) = self.pool.shared(key) {
                    return Ok((loan(wire), true));
                }
                if self.pool.shares_none(key) {
                    break;
                }
                tokio::select! {
                    // Whoever had the turn says first that there is something to share.
                    biased;
                    () = opened => {}
                    its = gate.turn.lock() => turn = Some(its),
                }
            }
            let mut opening = std::pin::pin!(self.open(key, method, until));
            if turn.is_some()
                && let Ok(opened) = tokio::time::timeout(TURN, &mut opening).await
            {
                return Ok((loan(opened?), false));
            }
            drop(turn);
            Ok((loan(opening.await?), false))
        };
        bounds.within(Phase::Connect, &key.to, connecting).await?
    }

    /// A new connection.
    async fn open(
        &self,
        key: &Key,
        method: &str,
        until: tokio::time::Instant,
    ) -> Result<Wire, Error> {
        let permits = [&self.lookups, &self.net.lookups];
        let addresses = connect::look_up(&key.to, until, permits).await?;
        let addresses = self.permitted(addresses, method, &key.to)?;
        let socket = connect::connect(&key.to, addresses, &self.sockets).await?;
        let wire = self.speak(socket, &key.to).await?;
        self.pool.opened(key, &wire);
        Ok(wire)
    }

    async fn speak(&self, stream: Socket, to: &Destination) -> Result<Wire, Error> {
        let limit = self.rules.limits.headers;
        let wire = match to.scheme {
            Scheme::Http => Wire::new(stream, false, limit).await,
            Scheme::Https => {
                let (stream, h2) = self.net.tls.secure(stream, to).await?;
                Wire::new(stream, h2, limit).await
            }
        };
        wire.map_err(|error| Error::from_hyper(&error, to, limit))
    }

    /// The addresses that may be connected to.
    fn permitted(
        &self,
        addresses: Vec<IpAddr>,
        method: &str,
        to: &Destination,
    ) -> Result<Vec<IpAddr>, Error> {
        let allowed = self.rule(method, to)?;
        let mut refused = None;
        let mut permitted = Vec::new();
        for address in addresses {
            match allowed.rule.permits(to, address) {
                Ok(()) if allowed.private() || address_kind(address) == AddressKind::Public => {
                    permitted.push(address);
                }
                // The plugin's own rule opens it, the ceiling does not.
                Ok(()) => refused = refused.or(Some((address, address_kind(address), true))),
                Err(kind) => refused = refused.or(Some((address, kind, false))),
            }
        }
        match refused {
            Some((address, kind, above)) if permitted.is_empty() => {
                let by = if above { allowed.above } else { allowed.rule };
                Err(self.closed(to, address, kind, by, above))
            }
            Some(_) | None => Ok(permitted),
        }
    }

    /// What `by`, a rule of the ceiling if it is one from `above`, says to an address that it does not permit.
    fn closed(
        &self,
        to: &Destination,
        address: IpAddr,
        kind: AddressKind,
        by: &Rule,
        above: bool,
    ) -> Error {
        let verb = if matches!(to.host, url::Host::Domain(_)) {
            "resolves to"
        } else {
            "is"
        };
        let at = if above {
            &self.rules.ceiling_at
        } else {
            &self.rules.allow_at
        };
        // Of two rules for the same destination the first counts: what is there has to be changed.
        let open = if by.to.to_string() == to.to_string() {
            format!("add `private = true` to this destination in {at}")
        } else {
            format!("write {{ to = \"{to}\", private = true }} in {at}")
        };
        Error::Denied(match kind {
            AddressKind::Public | AddressKind::Private => {
                format!("`{to}` {verb} {address}, a private address: {open}")
            }
            AddressKind::Metadata if verb == "is" => format!(
                "`{to}` is an address of the machine's own metadata, which may hold credentials of the host: {open} if a \
                 handler really has to read it"
            ),
            AddressKind::Metadata => format!(
                "`{to}` resolves to {address}, an address of the machine's own metadata: no name may lead there"
            ),
            AddressKind::Unusable => format!(
                "`{to}` {verb} {address}, an address that no call may go to, whatever the settings allow"
            ),
        })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

/// A connection while a call uses it. Just dropped, HTTP/1.1 closes, and a shared connection stays for the others.
pub(super) struct Loan {
    pool: Arc<Pool>,
    key: Key,
    pub(super) wire: Wire,
}

impl Loan {
    /// After an answer that was read to its end: the next call may have the connection.
    pub(super) async fn give_back(self) {
        match self.wire {
            Wire::Http1(mut wire) => {
                if wire.settles().await {
                    self.pool.put(&self.key, wire);
                }
            }
            Wire::Http2(wire) => self.pool.rest(wire),
        }
    }

    /// After an error: no further call may have it.
    pub(super) fn spoil(self) {
        if let Wire::Http2(wire) = &self.wire {
            self.pool.forget(&self.key, wire);
        }
    }
}

fn listed(names: &[String]) -> String {
    let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}
