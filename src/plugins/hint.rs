//! Hints from the file system that something in the plugins folder may have changed. Only hints: folders on a network give none, and
//! the system has a limit of watches; the folder is looked at every `plugins_interval` anyway.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

/// Watches some folders.
#[derive(Debug, Default)]
pub(super) struct Hint {
    told: Arc<Notify>,
    watcher: Option<RecommendedWatcher>,
    /// With device and inode: a folder that was replaced must be watched anew.
    watched: BTreeMap<PathBuf, (u64, u64)>,
    /// It was said that there are no hints, once.
    given_up: bool,
}

impl Hint {
    /// Is notified when something changed; any number of changes are one notification.
    pub(super) fn told(&self) -> Arc<Notify> {
        self.told.clone()
    }

    /// Watches these folders and no others.
    pub(super) fn watch(&mut self, folders: &BTreeSet<PathBuf>) {
        if self.given_up {
            return;
        }
        let wanted: BTreeMap<PathBuf, (u64, u64)> = folders
            .iter()
            .filter_map(|folder| {
                let metadata = fs::metadata(folder).ok()?;
                Some((folder.clone(), (metadata.dev(), metadata.ino())))
            })
            .collect();
        if wanted != self.watched
            && let Err(error) = self.change(wanted)
        {
            tracing::info!(
                %error,
                "the file system gives no hints of changes; the plugins folder is looked at every `plugins_interval`"
            );
            self.given_up = true;
            self.watcher = None;
        }
    }

    fn change(&mut self, wanted: BTreeMap<PathBuf, (u64, u64)>) -> notify::Result<()> {
        let watcher = match &mut self.watcher {
            Some(watcher) => watcher,
            none => none.insert(watcher(self.told.clone())?),
        };
        for (folder, inode) in &self.watched {
            if wanted.get(folder) != Some(inode) {
                // The watch of a folder that is gone has ended with it.
                let _ = watcher.unwatch(folder);
            }
        }
        for (folder, inode) in &wanted {
            if self.watched.get(folder) != Some(inode) {
                match watcher.watch(folder, RecursiveMode::NonRecursive) {
                    // It vanished since; the next look sees to it.
                    Err(error) if matches!(error.kind, notify::ErrorKind::PathNotFound) => {}
                    other => other?,
                }
            }
        }
        self.watched = wanted;
        // What changed before they were watched.
        self.told.notify_one();
        Ok(())
    }
}

fn watcher(told: Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // That somebody reads a file changes nothing, and that somebody is often the runner itself.
        if !event.is_ok_and(|event| event.kind.is_access()) {
            told.notify_one();
        }
    })
}
