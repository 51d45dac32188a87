//! What a plugin may do, made once when it is loaded, and what comes with one attempt.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Engine, Stop};
use crate::config::{Limits, PluginRules};
use crate::http::{Client, Rules, Tape};

/// What a plugin may do: its limits, its HTTP with a pool of connections, its settings.
#[derive(Debug)]
pub struct Grants {
    /// Limits of an attempt.
    pub limits: Limits,
    pub(super) http: Arc<Client>,
    pub(super) config: Arc<BTreeMap<String, String>>,
}

impl Engine {
    /// Makes ready what the plugin `name` may do by these rules.
    pub fn grants(&self, name: &str, rules: &PluginRules) -> Grants {
        Grants::new(rules, Client::new(&self.net, http_rules(name, rules)))
    }

    /// The same in the place of earlier grants: connections are kept where nothing is new about where they may lead.
    pub fn grants_after(&self, before: &Grants, name: &str, rules: &PluginRules) -> Grants {
        let client = before.http.renewed(&self.net, http_rules(name, rules));
        Grants::new(rules, client)
    }

    /// The same with HTTP calls that are answered from a tape, or kept on it.
    pub fn grants_taped(&self, name: &str, rules: &PluginRules, tape: Arc<Tape>) -> Grants {
        let client = Client::new(&self.net, http_rules(name, rules));
        Grants::new(rules, client.taped(tape))
    }
}

impl Grants {
    fn new(rules: &PluginRules, client: Client) -> Self {
        Self {
            limits: rules.limits,
            http: Arc::new(client),
            config: Arc::new(rules.config.clone()),
        }
    }
}

fn http_rules(name: &str, rules: &PluginRules) -> Rules {
    let http = &rules.http;
    Rules {
        plugin: name.to_owned(),
        allow: http.allow.clone(),
        ceiling: http.ceiling.clone(),
        limits: http.limits,
        secrets: rules.secrets.clone(),
        allow_at: http.allow_at.clone(),
        ceiling_at: http.ceiling_at.clone(),
    }
}

/// What comes from outside with one attempt, shared with whoever watches it.
#[derive(Clone, Debug)]
pub struct Ties {
    /// Ends it.
    pub stop: Arc<Stop>,
    /// How far it is.
    pub progress: Arc<Progress>,
    /// Keeps its checkpoints.
    pub ledger: Arc<dyn Ledger>,
}

/// The latest progress that an attempt reported; only the newest is ever written.
#[derive(Debug, Default)]
pub struct Progress(Mutex<Option<(u8, String)>>);

impl Progress {
    /// Remembers a report. The message is fit to be stored.
    pub fn report(&self, percent: u8, message: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((percent, message));
    }

    /// Takes the newest report, if there is one since the last time.
    pub fn take(&self) -> Option<(u8, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The answer to a [`save`](Ledger::save), to be waited for.
pub type Saving = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// Where checkpoints are kept. This module speaks no SQL, so whoever starts an attempt brings one along.
pub trait Ledger: fmt::Debug + Send + Sync {
    /// Keeps JSON text, which has been checked, under a name. The answer comes when it is safe; an error says why it is not.
    fn save(&self, name: &str, json: &str) -> Saving;
}

/// Keeps nothing: for calls that no job stands behind.
#[derive(Debug)]
pub struct NoLedger;

impl Ledger for NoLedger {
    fn save(&self, _: &str, _: &str) -> Saving {
        Box::pin(std::future::ready(Ok(())))
    }
}
