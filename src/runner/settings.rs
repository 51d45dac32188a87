//! New settings while the runner works: the file, and those of secrets, are looked at every `plugins_interval`, and at once when
//! asked to. New settings hold as a whole or not at all.
//!
//! ```text
//!   look ─ the same twice ─> parse, check ─> secrets ─> what cannot change stays ─> plugins anew, started once ─> swap
//!                               └──────────────┴── refused, with the reason; the old ones stay ──┘
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};

use super::Shared;
use super::plugins::aside;
use crate::config::Config;

/// A file must be the same for this long: an editor may be in the middle of writing it.
const STEADY: Duration = Duration::from_millis(300);
/// Settings that a plugin did not start with are tried again after this: it may have been replaced meanwhile.
const AGAIN: Duration = Duration::from_secs(30);

/// Where a runner's settings come from, so that they can be read again.
#[derive(Clone)]
pub struct SettingsFile {
    /// The file; opened anew each time, so that it may be a link that is swapped.
    pub path: PathBuf,
    /// Makes settings of its text, with all that wins over the file.
    pub read: Arc<ReadSettings>,
}

/// From the text of a file to settings.
pub type ReadSettings = dyn Fn(&str) -> anyhow::Result<Config> + Send + Sync;

impl fmt::Debug for SettingsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}

/// New settings on their way to those who keep the plugins.
#[derive(Debug)]
pub(super) struct Reload {
    pub(super) config: Config,
    /// Whether they hold now; the error says which plugin is against it.
    pub(super) answer: oneshot::Sender<Result<(), String>>,
}

pub(super) type Reloads = mpsc::Receiver<Reload>;

pub(super) fn channel() -> (mpsc::Sender<Reload>, Reloads) {
    mpsc::channel(1)
}

/// What the files have in them: the text of the settings, and what identifies the secrets of theirs.
#[derive(Clone, PartialEq)]
struct Look {
    text: String,
    secrets: BTreeMap<PathBuf, Option<[u8; 32]>>,
}

/// Why new settings do not hold.
enum Refused {
    /// They are wrong, and stay so until a file changes.
    Wrong(String),
    /// A plugin is against it.
    Plugin(String),
}

/// Looks for new settings, until dropped.
pub(super) async fn watch(shared: Arc<Shared>, file: SettingsFile, plugins: mpsc::Sender<Reload>) {
    let mut tried: Option<Look> = None;
    let mut again: Option<Instant> = None;
    let mut said = String::new();
    let mut gone = false;
    loop {
        let asked = tokio::select! {
            () = sleep(shared.config().runner.plugins_interval.0) => false,
            () = shared.reload.notified() => true,
        };
        let mut found = look(&file, tried.as_ref()).await;
        let retry = asked || again.is_some_and(|at| Instant::now() >= at);
        if let Ok(now) = &found
            && !retry
            && tried.as_ref() == Some(now)
        {
            gone = false;
            continue;
        }
        // It changes: wait until it has stopped.
        let now = loop {
            let before = found;
            sleep(STEADY).await;
            found = look(&file, before.as_ref().ok()).await;
            match (before, &found) {
                (Ok(before), Ok(now)) if before == *now => break Some(before),
                (Err(_), Err(error)) => {
                    if !gone || asked {
                        tracing::warn!(
                            file = %file.path.display(),
                            error,
                            "the settings file cannot be read; the settings stay as they are"
                        );
                    }
                    break None;
                }
                _ => {}
            }
        };
        gone = now.is_none();
        let Some(now) = now else { continue };
        let new = tried.as_ref() != Some(&now);
        again = None;
        match apply(&shared, &file, &now.text, &plugins).await {
            Ok(changed) => {
                if !changed.is_empty() {
                    tracing::info!(changed = changed.join(", "), "settings reloaded");
                } else if asked || !said.is_empty() {
                    tracing::info!("settings read again, nothing has changed");
                }
                said.clear();
            }
            Err(refused) => {
                let reason = match refused {
                    Refused::Wrong(reason) => reason,
                    Refused::Plugin(reason) => {
                        again = Some(Instant::now() + AGAIN);
                        reason
                    }
                };
                if new || asked || said != reason {
                    tracing::warn!(reason, "settings refused, all stay as they are");
                }
                said = reason;
            }
        }
        tried = Some(now);
    }
}

async fn look(file: &SettingsFile, before: Option<&Look>) -> Result<Look, String> {
    let (file, before) = (file.clone(), before.cloned());
    // It may lie on a network, where reading takes its time.
    let look = aside(move || {
        let text = std::fs::read_to_string(&file.path).map_err(|error| error.to_string())?;
        let named = match before.filter(|before| before.text == text) {
            // Parsing takes its time where there are many plugins.
            Some(before) => before.secrets.into_keys().collect(),
            // Text that is no settings names no files.
            None => (file.read)(&text).map_or_else(|_| Vec::new(), |new| new.secret_files()),
        };
        let secrets = named.into_iter().map(|path| {
            let digest = content(&path);
            (path, digest)
        });
        Ok(Look {
            secrets: secrets.collect(),
            text,
        })
    });
    look.await.map_err(|error| error.to_string())?
}

fn content(path: &Path) -> Option<[u8; 32]> {
    std::fs::read(path)
        .ok()
        .map(|bytes| crate::engine::digest(&bytes))
}

/// Makes settings of a text and lets them hold. Returns the keys that changed.
async fn apply(
    shared: &Shared,
    file: &SettingsFile,
    text: &str,
    plugins: &mpsc::Sender<Reload>,
) -> Result<Vec<String>, Refused> {
    let (now, read, text) = (shared.config(), file.read.clone(), text.to_owned());
    // As settings it would mean all defaults; far more likely somebody is about to write it.
    if text.trim().is_empty() && !now.is_text(&text) {
        return Err(Refused::Wrong(format!(
            "`{}` is empty: for the defaults leave a comment in it, or start without it",
            file.path.display()
        )));
    }
    let prepared = aside(move || {
        let mut config = read(&text)?;
        config.open_secrets()?;
        let stays = config.stay_with(&now)?;
        let changed = now.changes(&config);
        let same = changed.is_empty() && now.is_text(&text);
        anyhow::Ok((config, stays, changed, same))
    });
    let (config, stays, changed, same) = prepared
        .await
        .and_then(|prepared| prepared)
        .map_err(|error| Refused::Wrong(format!("{error:#}")))?;
    if !same {
        let (answer, answered) = oneshot::channel();
        let sent = plugins.send(Reload { config, answer }).await.is_ok();
        let gone = || Refused::Plugin("the plugins are not kept any more".to_owned());
        if !sent {
            return Err(gone());
        }
        answered
            .await
            .map_err(|_| gone())?
            .map_err(Refused::Plugin)?;
        shared.rescheduled.notify_one();
    }
    if !same && !stays.is_empty() {
        tracing::warn!(
            keys = stays.join(", "),
            "some settings change only when the runner is started again"
        );
    }
    Ok(changed)
}
