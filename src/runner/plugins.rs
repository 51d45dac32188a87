//! Keeps what serves up to date while everything runs.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};

use anyhow::Context;
use tokio::time::{MissedTickBehavior, interval};

use super::Shared;
use crate::engine::hex;
use crate::plugins::{Loaded, PluginState, Shelf};

impl Shared {
    /// Loads the plugins folder; computes, so it belongs on a blocking thread.
    pub(super) fn scan(&self, shelf: &mut Shelf) -> anyhow::Result<()> {
        shelf.scan(&self.engine, &self.config(), &self.registry)?;
        self.show(shelf);
        Ok(())
    }

    /// Lets people see how the plugins stand.
    fn show(&self, shelf: &mut Shelf) {
        let states = shelf.states(&self.config());
        *self.plugins.lock().unwrap_or_else(PoisonError::into_inner) = states;
    }

    /// How the plugins stand, with the attempts that run now.
    pub(super) fn plugins(&self) -> Vec<PluginState> {
        let plugins = self.plugins.lock();
        let mut states = plugins.unwrap_or_else(PoisonError::into_inner).clone();
        let mut running = BTreeMap::new();
        for plugin in self.running().values().map(|running| &running.plugin) {
            let of = running
                .entry((plugin.source, plugin.name.clone()))
                .or_insert_with(BTreeMap::new);
            *of.entry(plugin.handler.digest()).or_insert(0) += 1;
        }
        for state in &mut states {
            if let Some(versions) = running.get(&(state.source, state.name.clone())) {
                let line = |(digest, count): (&[u8; 32], &u64)| (hex(digest), *count);
                state.in_flight = versions.iter().map(line).collect();
            }
        }
        states
    }
}

/// Does work on a thread that nobody waits for at the end of the process, as a runtime would for its own.
pub(super) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> anyhow::Result<T> {
    let (done, outcome) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("plugins".to_owned())
        .spawn(move || done.send(work()))
        .context("start a thread for the plugins folder")?;
    outcome
        .await
        .context("the thread of the plugins folder failed")
}

/// Notices what changes in the plugins folder. One file at a time is compiled beside it, while the rest of the folder is watched
/// and what serves goes on serving.
pub(super) async fn keep(shared: Arc<Shared>, mut shelf: Shelf) {
    let mut looks = interval(shared.config().runner.plugins_interval.0);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick comes at once, and the folder has just been looked at.
    looks.tick().await;
    let mut loading: Option<Pin<Box<dyn Future<Output = anyhow::Result<Loaded>> + Send>>> = None;
    loop {
        let loaded = async {
            match &mut loading {
                Some(loading) => loading.await,
                None => std::future::pending().await,
            }
        };
        let changed = tokio::select! {
            loaded = loaded => {
                loading = None;
                let Ok(loaded) = loaded else { break };
                Ok(shelf.put(loaded, &shared.registry))
            }
            _ = looks.tick() => {
                let looker = shared.clone();
                // A folder on a network may take its time.
                let look = aside(move || {
                    let changed = shelf.look(&looker.registry);
                    (shelf, changed)
                });
                let Ok((back, changed)) = look.await else { break };
                shelf = back;
                changed
            }
        };
        if loading.is_none()
            && let Some(load) = shelf.next_load()
        {
            let loader = shared.clone();
            tracing::debug!(plugin = load.name(), "a plugin is being loaded");
            loading = Some(Box::pin(aside(move || {
                load.run(&loader.engine, &loader.config())
            })));
        }
        match changed {
            Ok(false) => {}
            Ok(true) => {
                shared.show(&mut shelf);
                tell_job_types(&shared).await;
            }
            Err(error) => tracing::warn!(
                error = format!("{error:#}"),
                "the plugins folder cannot be read"
            ),
        }
    }
    tracing::error!("the plugins folder is not watched any more: the loader failed");
}

/// Enqueue notifies the runners that say they serve the type, so it should be told soon.
async fn tell_job_types(shared: &Shared) {
    let runner = *shared.identity.borrow();
    if let Some(runner) = runner {
        let _ = shared
            .store
            .renew(
                runner,
                shared.config().runner.lease.0,
                &shared.registry.job_types(),
            )
            .await;
    }
    shared.wake.notify_one();
}
