//! Where the cluster's files lie: data, log, lock, socket, and what the server writes about itself.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, lchown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::process::Pid;

use super::keeper::{exists, pause};
use super::user::ServerUser;

/// Length of a socket's path with its final zero byte: 108 bytes on Linux, 104 on macOS and the BSDs.
const SOCKET_PATH_MAX: usize = if cfg!(target_os = "linux") { 108 } else { 104 };
/// Longest wait for another process that is starting a server on the folder: its own limits, with room for initdb.
const LOCK_LIMIT: Duration = Duration::from_secs(120);
/// What an error shows of the end of the log.
const TAIL_BYTES: u64 = 4096;
const TAIL_LINES: usize = 12;

/// The data folder. The major version is part of its name, so that no version ever opens the data of another.
pub(super) fn data(folder: &Path, major: u32) -> PathBuf {
    folder.join(format!("data-{major}"))
}

/// The major versions that the folder holds data of.
pub(super) fn majors(folder: &Path) -> Vec<u32> {
    let names = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name());
    names
        .filter_map(|name| name.to_str()?.strip_prefix("data-")?.parse().ok())
        .collect()
}

/// Makes the folder, open to the server's user, and returns its full path.
pub(super) fn create(folder: &Path, user: &ServerUser) -> anyhow::Result<PathBuf> {
    let folder = std::path::absolute(folder).context("resolve the database folder")?;
    let missing: Vec<_> = folder
        .ancestors()
        .take_while(|path| !path.exists())
        .collect();
    let present = folder
        .ancestors()
        .nth(missing.len())
        .unwrap_or(Path::new("/"));
    let present = present
        .canonicalize()
        .with_context(|| format!("resolve {}", present.display()))?;
    if user.dropped
        && let Some(closed) = present
            .ancestors()
            .find(|path| fs::metadata(path).is_ok_and(|it| !may_enter(&it, user)))
    {
        // Checked before anything is made, and never chmodded: those folders are not ours.
        bail!(
            "PostgreSQL refuses to run as root and drops to {user}, who may not enter {} on the way to {}; \
             choose another folder, for example /var/lib/piecework",
            closed.display(),
            folder.display()
        );
    }
    for path in missing.into_iter().rev() {
        let made = DirBuilder::new().create(path);
        if let Err(error) = made {
            // Another process that starts at the same time may have been faster.
            ensure!(
                error.kind() == io::ErrorKind::AlreadyExists,
                "create {}: {error}",
                path.display()
            );
        } else if user.dropped {
            let open = Permissions::from_mode(0o755);
            fs::set_permissions(path, open)
                .with_context(|| format!("open {} to {user}", path.display()))?;
        }
    }
    folder
        .canonicalize()
        .with_context(|| format!("resolve {}", folder.display()))
}

fn may_enter(folder: &Metadata, user: &ServerUser) -> bool {
    let bit = if folder.uid() == user.uid {
        0o100
    } else if folder.gid() == user.gid {
        0o010
    } else {
        0o001
    };
    folder.mode() & bit != 0
}

/// Makes a folder that only the server's user may enter.
pub(super) fn create_private(path: &Path, user: &ServerUser) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)?;
    if user.dropped {
        lchown(path, Some(user.uid), Some(user.gid))?;
    }
    Ok(())
}

/// The folder for the server's socket: the data folder, or a private one in `/tmp` when the path would be too long.
pub(super) fn socket_folder(data: &Path, user: &ServerUser) -> anyhow::Result<PathBuf> {
    let bytes = data.as_os_str().as_bytes();
    // Commas separate folders, in the setting as in libpq's host; the rest would need quoting in one of the two.
    let plain = bytes
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || b"/._-+@ ".contains(byte));
    if plain && socket(data, 65535).as_os_str().len() < SOCKET_PATH_MAX {
        return Ok(data.to_owned());
    }
    // FNV-1a: the name must be the same in every build, so that a later process makes and checks the same folder.
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let folder = PathBuf::from(format!("/tmp/piecework-{}-{hash:016x}", user.uid));
    if let Err(error) = create_private(&folder, user) {
        ensure!(
            error.kind() == io::ErrorKind::AlreadyExists,
            "create {}: {error}",
            folder.display()
        );
        let found = fs::symlink_metadata(&folder)
            .with_context(|| format!("look at {}", folder.display()))?;
        ensure!(
            found.is_dir() && found.uid() == user.uid && found.mode() & 0o077 == 0,
            "{} should hold the database's socket, but is not a private folder of {user}",
            folder.display()
        );
    }
    Ok(folder)
}

fn socket(folder: &Path, port: u16) -> PathBuf {
    folder.join(format!(".s.PGSQL.{port}"))
}

/// Waits for the folder's lock. It is held while a server is looked for and started, and ends with the file.
pub(super) fn lock(folder: &Path) -> anyhow::Result<File> {
    let path = folder.join("lock");
    let file = open(&path).with_context(|| {
        format!(
            "open {}; if the folder is another user's, choose another",
            path.display()
        )
    })?;
    let begun = Instant::now();
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).with_context(|| format!("lock {}", path.display())),
        }
        ensure!(
            begun.elapsed() < LOCK_LIMIT,
            "another process has held {} for {LOCK_LIMIT:?}",
            path.display()
        );
        pause(Duration::from_millis(20));
    }
}

/// Opens a file of ours for appending. Not through a link: root may be working in a folder of somebody else's.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?.into())
}

/// The last lines that were written to the log since it was `from` bytes long.
pub(super) fn tail(mut log: &File, from: u64) -> String {
    let mut text = Vec::new();
    let length = log.metadata().map_or(0, |log| log.len());
    let start = from.max(length.saturating_sub(TAIL_BYTES));
    if log
        .seek(SeekFrom::Start(start))
        .and_then(|_| log.read_to_end(&mut text))
        .is_err()
    {
        return String::new();
    }
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// What a server says of itself in `postmaster.pid`.
#[derive(Debug)]
pub(super) struct Postmaster {
    pub(super) pid: Pid,
    port: u16,
    socket_folder: PathBuf,
    ready: bool,
}

impl Postmaster {
    /// Reads `postmaster.pid`; `None` without one, or while it is being written.
    pub(super) fn read(data: &Path) -> anyhow::Result<Option<Self>> {
        let path = data.join("postmaster.pid");
        match fs::read(&path) {
            Ok(bytes) => Ok(Self::parse(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
        }
    }

    /// Lines: pid, data folder, start time, port, socket folder, TCP address, shared memory, state.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        let text = |line: usize| std::str::from_utf8(lines.get(line)?.trim_ascii()).ok();
        Some(Self {
            pid: Pid::from_raw(text(0)?.parse().ok()?)?,
            port: text(3)?.parse().ok()?,
            socket_folder: PathBuf::from(OsStr::from_bytes(lines.get(4)?)),
            ready: text(7)? == "ready",
        })
    }

    /// `true` when the server runs and takes connections: the state alone would outlive a kill -9.
    pub(super) fn answers(&self) -> bool {
        self.ready
            && exists(self.pid)
            && UnixStream::connect(socket(&self.socket_folder, self.port)).is_ok()
    }

    /// A URL that sqlx and libpq both understand. What it states (port, no TLS) cannot be changed by `PG*` variables.
    pub(super) fn url(&self) -> String {
        let mut host = String::new();
        for byte in self.socket_folder.as_os_str().as_bytes() {
            if byte.is_ascii_alphanumeric() || b"._-".contains(byte) {
                host.push(char::from(*byte));
            } else {
                host.push_str(&format!("%{byte:02X}"));
            }
        }
        format!(
            "postgres://piecework@localhost:{}/postgres?host={host}&sslmode=disable",
            self.port
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_file_is_read() {
        let file = b"4711\n/x/data-15\n1700000000\n5433\n/x/a b\n\n  123 456\nready   \n";
        let postmaster = Postmaster::parse(file).unwrap();
        assert_eq!(
            (
                postmaster.pid.as_raw_pid(),
                postmaster.port,
                postmaster.ready
            ),
            (4711, 5433, true)
        );
        assert_eq!(
            postmaster.url(),
            "postgres://piecework@localhost:5433/postgres?host=%2Fx%2Fa%20b&sslmode=disable"
        );
        assert!(Postmaster::parse(b"4711\n/x/data-15\n").is_none());
        assert!(Postmaster::parse(b"").is_none());
    }
}
