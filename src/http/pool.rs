//! The open connections of one plugin. What a plugin may reach is part of who it is, so plugins share none, and neither do
//! rules of one plugin. Only a connection whose last answer was read to its end is kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::wire::{Http1, Http2, STREAMS, Wire};
use crate::policy::{Destination, Scheme};

/// Idle HTTP/1.1 connections to one destination.
const IDLE_PER_KEY: usize = 8;

/// Idle connections of a plugin.
const IDLE_IN_ALL: usize = 64;

/// Destinations that something is remembered about, before those without a connection are forgotten.
const REMEMBERED: usize = 256;

/// Where a connection leads, and by what right. The addresses that may be connected to are those of a rule, so a connection
/// must not serve a call that another rule allows, nor one for which private addresses are closed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) to: Destination,
    /// The place of the rule in the plugin's list.
    pub(super) rule: usize,
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
    http2: Vec<Arc<Http2>>,
    /// The server has shown that it speaks HTTP/1.1 only.
    only_http1: bool,
    gates: Vec<Arc<Gate>>,
}

/// Lets one call at a time connect, while the others may be able to share its connection. As many calls as one connection
/// can serve wait at one gate.
#[derive(Default)]
pub(super) struct Gate {
    pub(super) turn: tokio::sync::Mutex<()>,
    /// Says that there is a new connection.
    pub(super) opened: Notify,
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

    /// A shared connection with room for a call, if there is one.
    pub(super) fn shared(&self, key: &Key) -> Option<Wire> {
        let shared = self.lock().slots.get_mut(key)?.shared();
        shared.map(Wire::Http2)
    }

    /// Who connects to a TLS server has to wait here for its turn, unless it is known to speak HTTP/1.1 only.
    pub(super) fn gate(&self, key: &Key) -> Option<Arc<Gate>> {
        let mut kept = self.lock();
        if kept.slots.len() >= REMEMBERED {
            kept.slots.retain(|_, slot| !slot.is_empty());
        }
        let slot = kept.slots.entry(key.clone()).or_default();
        if key.to.scheme == Scheme::Http || slot.only_http1 {
            return None;
        }
        // One reference is the slot's own.
        slot.gates.retain(|gate| Arc::strong_count(gate) > 1);
        let mut gates = slot.gates.iter();
        if let Some(gate) = gates.find(|gate| Arc::strong_count(gate) <= STREAMS) {
            return Some(gate.clone());
        }
        let gate = Arc::<Gate>::default();
        slot.gates.push(gate.clone());
        Some(gate)
    }

    /// The server has shown that none of its connections can be shared.
    pub(super) fn shares_none(&self, key: &Key) -> bool {
        self.lock()
            .slots
            .get(key)
            .is_some_and(|slot| slot.only_http1)
    }

    /// Takes note of a new connection, and shares it if it can be shared.
    pub(super) fn opened(self: &Arc<Self>, key: &Key, wire: &Wire) {
        let mut kept = self.lock();
        let slot = kept.slots.entry(key.clone()).or_default();
        match wire {
            Wire::Http1(_) => slot.only_http1 = true,
            Wire::Http2(wire) => {
                slot.only_http1 = false;
                slot.http2.push(wire.clone());
            }
        }
        for gate in &slot.gates {
            gate.opened.notify_waiters();
        }
        self.watch(&mut kept);
    }

    /// Keeps a connection for the next call.
    pub(super) fn put(self: &Arc<Self>, key: &Key, wire: Http1) {
        let mut kept = self.lock();
        let idle = &mut kept.slots.entry(key.clone()).or_default().http1;
        if idle.len() >= IDLE_PER_KEY {
            idle.remove(0);
        }
        idle.push((wire, Instant::now()));
        kept.keep_bound();
        self.watch(&mut kept);
    }

    /// Takes a shared connection back from a call that read its answer to the end.
    pub(super) fn rest(&self, wire: Arc<Http2>) {
        let mut kept = self.lock();
        wire.touch();
        drop(wire);
        kept.keep_bound();
    }

    /// Makes room for another connection: closes the one that has been idle for longest.
    pub(super) fn close_oldest(&self) {
        self.lock().close_oldest();
    }

    /// Gives the shared connection to no further call; those that are on it go on.
    pub(super) fn forget(&self, key: &Key, wire: &Arc<Http2>) {
        if let Some(slot) = self.lock().slots.get_mut(key) {
            slot.http2.retain(|kept| !Arc::ptr_eq(kept, wire));
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
    fn keep_bound(&mut self) {
        let idle: usize = self.slots.values().map(|slot| slot.idle().count()).sum();
        for _ in IDLE_IN_ALL..idle {
            self.close_oldest();
        }
    }

    fn close_oldest(&mut self) {
        let oldest = self.slots.values_mut().filter_map(|slot| {
            let (since, which) = slot.idle().min_by_key(|(since, _)| *since)?;
            Some((since, which, slot))
        });
        match oldest.min_by_key(|(since, ..)| *since) {
            Some((_, Idle::Http1(at), slot)) => drop(slot.http1.remove(at)),
            Some((_, Idle::Http2(at), slot)) => drop(slot.http2.remove(at)),
            None => {}
        }
    }

    /// Closes what is idle for too long; false when nothing is left to watch.
    fn purge(&mut self, idle: Duration) -> bool {
        for slot in self.slots.values_mut() {
            slot.http1
                .retain(|(wire, since)| wire.is_usable() && since.elapsed() < idle);
            slot.http2.retain(|wire| {
                wire.is_usable() && (calls(wire) > 0 || wire.used().elapsed() < idle)
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
        let waited_for = self.gates.iter().any(|gate| Arc::strong_count(gate) > 1);
        self.http1.is_empty() && self.http2.is_empty() && !waited_for
    }

    /// The connections that no call is on, with the time since when.
    fn idle(&self) -> impl Iterator<Item = (Instant, Idle)> {
        let http1 = self.http1.iter().enumerate();
        let http1 = http1.map(|(at, (_, since))| (*since, Idle::Http1(at)));
        let http2 = self.http2.iter().enumerate();
        let http2 = http2.filter(|(_, wire)| calls(wire) == 0);
        http1.chain(http2.map(|(at, wire)| (wire.used(), Idle::Http2(at))))
    }

    /// The first with room, so that what is not needed becomes idle and is closed.
    fn shared(&mut self) -> Option<Arc<Http2>> {
        self.http2.retain(|wire| wire.is_usable());
        let mut wires = self.http2.iter();
        wires.find(|wire| calls(wire) < STREAMS).cloned()
    }
}

/// An idle connection of a slot, by its place.
enum Idle {
    Http1(usize),
    Http2(usize),
}

/// The calls that are on a shared connection: each has a reference, and one is the pool's own.
fn calls(wire: &Arc<Http2>) -> usize {
    Arc::strong_count(wire) - 1
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
