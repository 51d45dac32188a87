//! The open connections of one plugin. What a plugin may reach is part of who it is, so plugins share none. Only a
//! connection whose last answer was read to its end is kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use super::wire::{Http1, Http2, Wire};
use crate::policy::{Destination, Scheme};

/// Idle HTTP/1.1 connections to one destination.
const IDLE_PER_KEY: usize = 8;

/// Idle HTTP/1.1 connections of a plugin.
const IDLE_IN_ALL: usize = 64;

/// Destinations that something is remembered about, before those without a connection are forgotten.
const REMEMBERED: usize = 256;

/// Where a connection leads. Opened private addresses are part of it: a connection to one must not serve a call that may
/// not go there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) to: Destination,
    pub(super) private: bool,
}

/// The connections.
pub(super) struct Pool {
    idle: Duration,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    slots: HashMap<Key, Slot>,
    /// Closes what was idle too long; there while something is idle.
    purge: Option<AbortHandle>,
}

#[derive(Default)]
struct Slot {
    /// The last one in is the first out: the others grow old and are closed.
    http1: Vec<(Http1, Instant)>,
    http2: Option<Arc<Http2>>,
    /// The server has shown that it speaks HTTP/1.1 only.
    only_http1: bool,
    /// Lets one call at a time connect, while the others may be able to share its connection.
    gate: Arc<tokio::sync::Mutex<()>>,
}

impl Pool {
    pub(super) fn new(idle: Duration) -> Arc<Self> {
        Arc::new(Self {
            idle,
            kept: Mutex::default(),
        })
    }

    /// A connection that can be used at once.
    pub(super) async fn take(&self, key: &Key) -> Option<Wire> {
        if !self.lock().slots.contains_key(key) {
            return None;
        }
        // Lets the runtime look at its sockets: a close that has arrived is then seen before the connection is used.
        tokio::task::yield_now().await;
        let mut kept = self.lock();
        let slot = kept.slots.get_mut(key)?;
        if let Some(wire) = slot.shared() {
            return Some(Wire::Http2(wire));
        }
        while let Some((wire, since)) = slot.http1.pop() {
            if wire.is_usable() && since.elapsed() < self.idle {
                return Some(Wire::Http1(wire));
            }
        }
        None
    }

    /// The shared connection, if there is one.
    pub(super) fn shared(&self, key: &Key) -> Option<Wire> {
        let shared = self.lock().slots.get_mut(key)?.shared();
        shared.map(Wire::Http2)
    }

    /// Who connects to a TLS server has to hold this, unless it is known to speak HTTP/1.1 only.
    pub(super) fn gate(&self, key: &Key) -> Option<Arc<tokio::sync::Mutex<()>>> {
        let mut kept = self.lock();
        if kept.slots.len() >= REMEMBERED {
            kept.slots.retain(|_, slot| !slot.is_empty());
        }
        let slot = kept.slots.entry(key.clone()).or_default();
        (key.to.scheme == Scheme::Https && !slot.only_http1).then(|| slot.gate.clone())
    }

    /// Takes note of a new connection, and shares it if it can be shared.
    pub(super) fn opened(self: &Arc<Self>, key: &Key, wire: &Wire) {
        let mut kept = self.lock();
        let slot = kept.slots.entry(key.clone()).or_default();
        match wire {
            Wire::Http1(_) => slot.only_http1 = true,
            Wire::Http2(wire) => {
                slot.only_http1 = false;
                slot.http2 = Some(wire.clone());
                self.watch(&mut kept);
            }
        }
    }

    /// Keeps a connection for the next call.
    pub(super) fn put(self: &Arc<Self>, key: &Key, wire: Http1) {
        let mut kept = self.lock();
        let total: usize = kept.slots.values().map(|slot| slot.http1.len()).sum();
        if total >= IDLE_IN_ALL {
            kept.close_oldest();
        }
        let idle = &mut kept.slots.entry(key.clone()).or_default().http1;
        if idle.len() >= IDLE_PER_KEY {
            idle.remove(0);
        }
        idle.push((wire, Instant::now()));
        self.watch(&mut kept);
    }

    /// Gives the shared connection to no further call; those that are on it go on.
    pub(super) fn forget(&self, key: &Key, wire: &Arc<Http2>) {
        if let Some(slot) = self.lock().slots.get_mut(key)
            && slot
                .http2
                .as_ref()
                .is_some_and(|kept| Arc::ptr_eq(kept, wire))
        {
            slot.http2 = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Nothing that holds this lock can leave it half changed.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(self: &Arc<Self>, kept: &mut Kept) {
        if kept.purge.is_none() {
            let pool = Arc::downgrade(self);
            kept.purge = Some(tokio::spawn(purge(pool, self.idle)).abort_handle());
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(purge) = self.lock().purge.take() {
            purge.abort();
        }
    }
}

impl Kept {
    fn close_oldest(&mut self) {
        let oldest = self
            .slots
            .values_mut()
            .filter(|slot| !slot.http1.is_empty())
            .min_by_key(|slot| slot.http1[0].1);
        if let Some(slot) = oldest {
            slot.http1.remove(0);
        }
    }

    /// Closes what is idle for too long; false when nothing is left to watch.
    fn purge(&mut self, idle: Duration) -> bool {
        for slot in self.slots.values_mut() {
            slot.http1
                .retain(|(wire, since)| wire.is_usable() && since.elapsed() < idle);
            // The pool's own is the only reference: no call is on it.
            slot.http2.take_if(|wire| {
                !wire.is_usable() || Arc::strong_count(wire) == 1 && wire.used().elapsed() >= idle
            });
        }
        let left = self.slots.values().any(|slot| !slot.is_empty());
        if !left {
            self.purge = None;
        }
        left
    }
}

impl Slot {
    fn is_empty(&self) -> bool {
        self.http1.is_empty() && self.http2.is_none() && Arc::strong_count(&self.gate) == 1
    }

    fn shared(&mut self) -> Option<Arc<Http2>> {
        self.http2.take_if(|wire| !wire.is_usable());
        self.http2.clone()
    }
}

/// Looks four times in an idle time, so that a connection is closed at most a quarter late.
async fn purge(pool: Weak<Pool>, idle: Duration) {
    loop {
        tokio::time::sleep((idle / 4).max(Duration::from_millis(10))).await;
        let Some(pool) = pool.upgrade() else {
            return;
        };
        if !pool.lock().purge(idle) {
            return;
        }
    }
}
