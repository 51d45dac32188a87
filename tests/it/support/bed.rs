//! One guest in an engine of its own, without a database.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use piecework::config::Config;
use piecework::engine::{Engine, Grants, Handler, NoLedger, Progress, Stop, Ties};
use piecework::job::{
    ClaimToken, Claimed, Disposition, FailureClass, JobId, Outcome, Priority, Timestamp,
};

use super::guests;

pub(crate) struct Bed {
    pub(crate) engine: Engine,
    pub(crate) handler: Handler,
    pub(crate) grants: Grants,
}

impl Bed {
    /// The guest with the default limits, except that it may take 20 s.
    pub(crate) fn new(guest: &str) -> Self {
        Self::with(guest, "[defaults]\ntimeout = \"20s\"\n")
    }

    /// The guest under these settings; `[plugins.guest]` is about it.
    pub(crate) fn with(guest: &str, settings: &str) -> Self {
        Self::of(&guests::bytes(guest), settings)
    }

    /// A component under these settings.
    pub(crate) fn of(component: &[u8], settings: &str) -> Self {
        let mut config = Config::parse(settings, Path::new("runner.toml")).unwrap();
        config.open_secrets().unwrap();
        let rules = config.plugin("guest");
        let engine = Engine::new(&config, 8).unwrap();
        let handler = engine
            .compile(component, rules.limits.fuel.is_some())
            .unwrap();
        let grants = engine.grants("guest", &rules);
        Self {
            engine,
            handler,
            grants,
        }
    }

    pub(crate) fn timeout(mut self, limit: Duration) -> Self {
        self.grants.limits.timeout = limit;
        self
    }

    pub(crate) async fn call(&self, payload: &str) -> Outcome {
        self.call_with(payload, &ties()).await
    }

    pub(crate) async fn call_with(&self, payload: &str, ties: &Ties) -> Outcome {
        self.engine
            .call(&self.handler, &self.grants, &job(payload), ties)
            .await
    }

    /// What a call that succeeds returns.
    pub(crate) async fn answer(&self, payload: &str) -> serde_json::Value {
        let result = self.call(payload).await.verdict.expect(payload);
        serde_json::from_str(result.as_deref().unwrap_or("null")).unwrap()
    }

    /// Class, text and disposition of the failure that this must be.
    pub(crate) async fn failure(&self, payload: &str) -> (FailureClass, String, Disposition) {
        let failure = self.call(payload).await.verdict.expect_err(payload);
        (failure.class, failure.message, failure.disposition)
    }
}

/// An attempt that nobody watches.
pub(crate) fn ties() -> Ties {
    Ties {
        stop: Arc::new(Stop::default()),
        progress: Arc::new(Progress::default()),
        ledger: Arc::new(NoLedger),
    }
}

pub(crate) fn job(payload: &str) -> Claimed {
    Claimed {
        id: JobId(4711),
        claim: ClaimToken(1),
        job_type: "probe".into(),
        priority: Priority(2),
        due_at: Timestamp(0),
        attempt: 1,
        max_attempts: 3,
        payload: payload.into(),
        oversized: false,
        ordering_key: None,
        group_key: None,
        batch: None,
        enqueued_at: Timestamp(0),
        parent: None,
        root: JobId(1),
        checkpoint: None,
    }
}
