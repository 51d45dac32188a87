//! Hints from the file system that something in the plugins folder may have changed. Only hints: folders on a network give none, and
//! the system has a limit of watches; the folder is looked at every `plugins_interval` anyway.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::{ErrorKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

/// Watches some folders.
#[derive(Debug)]
pub(super) struct Hint<W = RecommendedWatcher> {
    told: Arc<Notify>,
    watcher: Option<W>,
    /// With device and inode: a folder that was replaced must be watched anew.
    watched: BTreeMap<PathBuf, (u64, u64)>,
    /// Those that give no hints. It was said of each once, and is tried again at every look: watches may have become free.
    mute: BTreeSet<PathBuf>,
}

impl<W> Default for Hint<W> {
    fn default() -> Self {
        Self {
            told: Arc::default(),
            watcher: None,
            watched: BTreeMap::new(),
            mute: BTreeSet::new(),
        }
    }
}

impl<W: Watcher> Hint<W> {
    /// Is notified when something changed; any number of changes are one notification.
    pub(super) fn told(&self) -> Arc<Notify> {
        self.told.clone()
    }

    /// Watches these folders and no others.
    pub(super) fn watch(&mut self, folders: &BTreeSet<PathBuf>) {
        let wanted: BTreeMap<PathBuf, (u64, u64)> = folders
            .iter()
            .filter_map(|folder| {
                let metadata = fs::metadata(folder).ok()?;
                Some((folder.clone(), (metadata.dev(), metadata.ino())))
            })
            .collect();
        self.mute.retain(|folder| wanted.contains_key(folder));
        if wanted == self.watched {
            return;
        }
        let told = self.told.clone();
        let made = match &mut self.watcher {
            Some(watcher) => Ok(watcher),
            none => watcher(told).map(|watcher| none.insert(watcher)),
        };
        let watcher = match made {
            Ok(watcher) => watcher,
            Err(error) => {
                for folder in wanted.keys() {
                    mute(&mut self.mute, folder, &error);
                }
                return;
            }
        };
        self.watched.retain(|folder, inode| {
            let keep = wanted.get(folder) == Some(inode);
            if !keep {
                // The watch of a folder that is gone has ended with it.
                let _ = watcher.unwatch(folder);
            }
            keep
        });
        for (folder, inode) in wanted {
            if self.watched.contains_key(&folder) {
                continue;
            }
            match watcher.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.mute.remove(&folder);
                    self.watched.insert(folder, inode);
                    // What changed before it was watched.
                    self.told.notify_one();
                }
                // It vanished since; the next look sees to it.
                Err(error) if matches!(error.kind, ErrorKind::PathNotFound) => {}
                Err(error) => mute(&mut self.mute, &folder, &error),
            }
        }
    }
}

/// Says once that a folder gives no hints.
fn mute(muted: &mut BTreeSet<PathBuf>, folder: &Path, error: &notify::Error) {
    if muted.insert(folder.to_owned()) {
        tracing::info!(
            folder = %folder.display(),
            %error,
            "the file system gives no hints of changes here; they are seen at the looks every `plugins_interval`"
        );
    }
}

fn watcher<W: Watcher>(told: Arc<Notify>) -> notify::Result<W> {
    let tell = move |event: notify::Result<notify::Event>| {
        // That somebody reads a file changes nothing, and that somebody is often the runner itself.
        if !event.is_ok_and(|event| event.kind.is_access()) {
            told.notify_one();
        }
    };
    W::new(tell, notify::Config::default())
}

#[cfg(test)]
mod tests {
    use notify::{Config, Error, EventHandler, WatcherKind};

    use super::*;

    /// Refuses folders that contain something called `full`.
    #[derive(Debug, Default)]
    struct Fussy {
        watching: BTreeSet<PathBuf>,
    }

    impl Watcher for Fussy {
        fn new<F: EventHandler>(_: F, _: Config) -> notify::Result<Self> {
            Ok(Self::default())
        }

        fn watch(&mut self, path: &Path, _: RecursiveMode) -> notify::Result<()> {
            if path.join("full").exists() {
                return Err(Error::new(ErrorKind::MaxFilesWatch));
            }
            self.watching.insert(path.to_owned());
            Ok(())
        }

        fn unwatch(&mut self, path: &Path) -> notify::Result<()> {
            self.watching.remove(path);
            Ok(())
        }

        fn kind() -> WatcherKind {
            WatcherKind::NullWatcher
        }
    }

    #[test]
    fn one_folder_without_hints_does_not_silence_the_others() {
        let root = std::env::temp_dir().join(format!("piecework-hint-{}", std::process::id()));
        let (good, full) = (root.join("good"), root.join("full"));
        fs::create_dir_all(&good).unwrap();
        fs::create_dir_all(full.join("full")).unwrap();
        let both = BTreeSet::from([good.clone(), full.clone()]);
        let mut hint = Hint::<Fussy>::default();
        let watching = |hint: &Hint<Fussy>| hint.watcher.as_ref().unwrap().watching.clone();
        hint.watch(&both);
        assert_eq!(watching(&hint), BTreeSet::from([good.clone()]));
        assert_eq!(hint.mute, BTreeSet::from([full.clone()]));
        // A watch has become free.
        fs::remove_dir(full.join("full")).unwrap();
        hint.watch(&both);
        assert_eq!(watching(&hint), both);
        assert!(hint.mute.is_empty());
        hint.watch(&BTreeSet::from([full.clone()]));
        assert_eq!(watching(&hint), BTreeSet::from([full]));
        fs::remove_dir_all(root).unwrap();
    }
}
