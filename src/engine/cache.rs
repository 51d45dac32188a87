//! Compiled components on disk, so that a restart does not compile them again. What lies there is native code that this process
//! would run, so it is read only from a folder that no other user can write to. Any doubt is a miss: the component is compiled.

use std::fs::{DirBuilder, File};
use std::hash::{Hash, Hasher};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail, ensure};
use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_NOW, fstat, futimens,
    openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Resource, geteuid, getrlimit};
use sha2::{Digest, Sha256};
use wasmtime::component::Component;

use super::hex;

/// What each file begins with, followed by the SHA-256 of its name and of what comes after.
const MAGIC: &[u8] = b"piecework compiled 1\n";
const HEADER: usize = MAGIC.len() + 32;
const SUFFIX: &str = ".compiled";
/// A file that is being written; one that is older than an hour was left behind.
const UNFINISHED: &str = ".unfinished";
const UNFINISHED_FOR: Duration = Duration::from_secs(3600);
/// How long a file is kept that nobody uses, and how much is kept in all.
const KEEP: Duration = Duration::from_secs(30 * 86_400);
const KEEP_BYTES: u64 = 2 * 1024 * 1024 * 1024;
/// The largest that was seen is 48 MB (a component of 30 MB).
const MAX_FILE: u64 = 1024 * 1024 * 1024;

/// A folder with compiled components.
#[derive(Debug)]
pub(super) struct Cache {
    path: PathBuf,
    /// Everything is done relative to this, so the folder that was checked is the one that is used.
    folder: OwnedFd,
    most: u64,
    warned: AtomicBool,
}

impl Cache {
    /// The folder of the settings: empty for the usual place, `off` for none. A folder that cannot be used is none.
    pub(super) fn open(setting: &Path) -> Option<Self> {
        let path = match setting.to_str() {
            Some("off") => return None,
            Some("") => usual()?,
            _ => setting.to_owned(),
        };
        match Self::open_folder(&path) {
            Ok(cache) => {
                cache.sweep();
                Some(cache)
            }
            Err(error) => {
                tracing::warn!(
                    folder = %path.display(),
                    error = format!("{error:#}"),
                    "compiled components are not kept: each start compiles anew; give this user a folder of its own (`cache` under `[engine]` in runner.toml), or set it to \"off\""
                );
                None
            }
        }
    }

    fn open_folder(path: &Path) -> anyhow::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .context("make the folder")?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty())
            .context("open the folder (a link is not followed)")?;
        let cache = Self {
            path: path.to_owned(),
            folder,
            most: KEEP_BYTES,
            warned: AtomicBool::new(false),
        };
        cache.check_folder()?;
        Ok(cache)
    }

    /// Each time: what was private at the start may have been opened to others since.
    fn check_folder(&self) -> anyhow::Result<()> {
        private(&fstat(&self.folder)?, FileType::Directory).context("the folder")
    }

    /// The compiled form of this name, if there is one and nothing speaks against it.
    pub(super) fn load(&self, engine: &wasmtime::Engine, name: &str) -> Option<Component> {
        match self.read(name) {
            Ok(Some(bytes)) => match deserialize(engine, &bytes[HEADER..]) {
                Ok(component) => return Some(component),
                Err(error) => {
                    tracing::info!(
                        name,
                        error = format!("{error:#}"),
                        "a compiled component does not fit this engine"
                    );
                }
            },
            Ok(None) => {}
            Err(error) => self.warn("read", &error),
        }
        None
    }

    /// The whole file, with its header; its checksum is right.
    fn read(&self, name: &str) -> anyhow::Result<Option<Vec<u8>>> {
        self.check_folder()?;
        // A pipe must not make this wait.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.folder, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error).context(format!("open {name}")),
        };
        let stat = fstat(&file)?;
        private(&stat, FileType::RegularFile).with_context(|| name.to_owned())?;
        let mut bytes = Vec::with_capacity(usize::try_from(size(&stat).min(MAX_FILE))?);
        let mut file = File::from(file);
        (&mut file).take(MAX_FILE).read_to_end(&mut bytes)?;
        let sound = bytes.len() >= HEADER
            && bytes.starts_with(MAGIC)
            && bytes[MAGIC.len()..HEADER] == checksum(name, &bytes[HEADER..]);
        if !sound {
            tracing::info!(name, "a compiled component is damaged; it is made again");
            return Ok(None);
        }
        // For the sweep: used now.
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        };
        let _ = futimens(
            &file,
            &Timestamps {
                last_access: now,
                last_modification: now,
            },
        );
        Ok(Some(bytes))
    }

    /// Keeps a component under a name. Processes that do it at once replace each other's file, each time whole.
    pub(super) fn store(&self, name: &str, component: &Component) {
        let kept = component
            .serialize()
            .map_err(anyhow::Error::from)
            .and_then(|compiled| self.write(name, &compiled));
        match kept {
            Ok(()) => self.sweep(),
            Err(error) => self.warn("written", &error),
        }
    }

    fn write(&self, name: &str, compiled: &[u8]) -> anyhow::Result<()> {
        self.check_folder()?;
        // The system ends a process that writes more, without an error that could be handled.
        let most = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        let needed = (HEADER + compiled.len()) as u64;
        ensure!(
            needed <= most,
            "it has {needed} bytes, and this process may write files of {most} at most (`ulimit -f`, `LimitFSIZE`)"
        );
        let temporary = format!(
            "{name}.{}-{:016x}{UNFINISHED}",
            std::process::id(),
            fastrand::u64(..)
        );
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(openat(
            &self.folder,
            &temporary,
            flags,
            Mode::RUSR | Mode::WUSR,
        )?);
        // Not synced: what a crash of the machine leaves has the wrong checksum.
        let written = file
            .write_all(MAGIC)
            .and_then(|()| file.write_all(&checksum(name, compiled)))
            .and_then(|()| file.write_all(compiled))
            .and_then(|()| Ok(renameat(&self.folder, &temporary, &self.folder, name)?));
        if written.is_err() {
            let _ = unlinkat(&self.folder, &temporary, AtFlags::empty());
        }
        Ok(written?)
    }

    fn warn(&self, done: &str, error: &anyhow::Error) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                folder = %self.path.display(),
                error = format!("{error:#}"),
                "a compiled component was not {done}, so it is compiled at each start; the folder and its files must be this user's own, writable by nobody else, with room on the disk"
            );
        }
    }

    /// Removes what nobody used for long, what was left unfinished, and, beyond the limit of all, what was not used longest.
    fn sweep(&self) {
        if self.check_folder().is_err() {
            return;
        }
        let Ok(entries) = Dir::read_from(&self.folder) else {
            return;
        };
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let mut files = Vec::new();
        for name in entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.ends_with(SUFFIX) || name.ends_with(UNFINISHED))
        {
            let Ok(stat) = statat(&self.folder, &name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            let used = Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or_default());
            files.push((now.saturating_sub(used), size(&stat), name));
        }
        files.sort();
        let mut kept = 0_u64;
        for (age, size, name) in files {
            let most = if name.ends_with(UNFINISHED) {
                UNFINISHED_FOR
            } else {
                KEEP
            };
            kept = kept.saturating_add(size);
            if age > most || kept > self.most {
                kept = kept.saturating_sub(size);
                let _ = unlinkat(&self.folder, &name, AtFlags::empty());
            }
        }
    }
}

/// Whether this is a file of a cache.
pub(super) fn is_kept(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// The file of a component in the form that this engine makes of it.
pub(super) fn name(engine: &wasmtime::Engine, component: [u8; 32], fuel: bool) -> String {
    struct Feed(Sha256);
    impl Hasher for Feed {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
        fn finish(&self) -> u64 {
            0
        }
    }
    let mut feed = Feed(Sha256::new());
    feed.write(&component);
    feed.write(&[u8::from(fuel)]);
    engine.precompile_compatibility_hash().hash(&mut feed);
    hex(&feed.0.finalize()) + SUFFIX
}

/// The usual place: nothing below the current folder, which may be anybody's.
fn usual() -> Option<PathBuf> {
    let absolute = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = absolute("XDG_CACHE_HOME")
        .or_else(|| geteuid().is_root().then(|| PathBuf::from("/var/cache")))
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("piecework/compiled"))
}

/// Of this kind, this user's, and nobody else may write to it.
fn private(stat: &Stat, kind: FileType) -> anyhow::Result<()> {
    ensure!(
        FileType::from_raw_mode(stat.st_mode) == kind,
        "it is of another kind"
    );
    if stat.st_uid != geteuid().as_raw() {
        bail!(
            "it belongs to uid {}, not to uid {}",
            stat.st_uid,
            geteuid().as_raw()
        );
    }
    ensure!(
        stat.st_mode & 0o022 == 0,
        "others than its owner may write to it"
    );
    Ok(())
}

fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or_default()
}

fn checksum(name: &str, compiled: &[u8]) -> [u8; 32] {
    Sha256::new()
        .chain_update(name)
        .chain_update(compiled)
        .finalize()
        .into()
}

/// Native code from bytes.
#[expect(
    unsafe_code,
    reason = "deserialize runs what it is given: these bytes were read once, from a file of this user in a folder that only this user \
              can write to, and have the checksum that this program wrote over the output of Component::serialize; or they come \
              whole from the pipe of a child that this process started, the same program, in which nothing but the compiler ran"
)]
pub(super) fn deserialize(
    engine: &wasmtime::Engine,
    compiled: &[u8],
) -> wasmtime::Result<Component> {
    // SAFETY: see the reason above. Whether the engine's settings and version fit is checked by wasmtime.
    unsafe { Component::deserialize(engine, compiled) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_limit_of_all_what_was_not_used_longest_goes() {
        let path = std::env::temp_dir().join(format!("piecework-sweep-{:x}", fastrand::u64(..)));
        let mut cache = Cache::open_folder(&path).unwrap();
        assert_eq!(cache.most, KEEP_BYTES);
        cache.most = 250;
        let put = |name: &str, size: usize, days: u64| {
            std::fs::write(path.join(name), vec![0; size]).unwrap();
            let file = File::options().write(true).open(path.join(name)).unwrap();
            let then = SystemTime::now() - Duration::from_secs(days * 86_400);
            file.set_modified(then).unwrap();
        };
        put("new.compiled", 100, 0);
        put("old.compiled", 100, 9);
        put("used.compiled", 100, 1);
        // It does not fit, those that are older and smaller may.
        put("huge.compiled", 1000, 2);
        put("tiny.compiled", 10, 8);
        put("notes.txt", 1000, 20);
        cache.sweep();
        let mut left: Vec<_> = std::fs::read_dir(&path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        std::fs::remove_dir_all(&path).unwrap();
        let expected = [
            "new.compiled",
            "notes.txt",
            "tiny.compiled",
            "used.compiled",
        ];
        assert_eq!(left, expected);
    }
}
