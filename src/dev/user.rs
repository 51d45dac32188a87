//! The user that the server runs as, and commands that run as that user.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use rustix::process::{Signal, getegid, geteuid};

/// What the server gets of our environment. The rest may hold secrets, which another user could read in `/proc`, and
/// `PG*` variables, which the server obeys (`PGPORT`, `PGDATA`).
const PASSED_ON: [&str; 6] = [
    "PATH",
    "TZ",
    "TZDIR",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
];

/// Who the server runs as. PostgreSQL refuses to run as root, so root drops to another user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerUser {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// We are root and give the child this uid and gid.
    pub(super) dropped: bool,
    name: String,
}

impl fmt::Display for ServerUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl ServerUser {
    /// The caller; for root the owner of `data` if it exists, else the user `postgres`, else `nobody`.
    pub(super) fn choose(data: Option<&Path>) -> anyhow::Result<Self> {
        if !geteuid().is_root() {
            let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
            return Ok(Self {
                uid,
                gid,
                dropped: false,
                name: format!("uid {uid}"),
            });
        }
        let owner = data
            .and_then(|data| fs::metadata(data).ok())
            .filter(|data| data.uid() != 0);
        if let Some(owner) = owner {
            let (uid, gid) = (owner.uid(), owner.gid());
            return Ok(Self {
                uid,
                gid,
                dropped: true,
                name: format!("uid {uid}"),
            });
        }
        let passwd = fs::read_to_string("/etc/passwd")
            .context("read /etc/passwd for a user to run PostgreSQL as")?;
        let Some((name, uid, gid)) = ["postgres", "nobody"]
            .into_iter()
            .find_map(|name| lookup(&passwd, name))
        else {
            bail!(
                "PostgreSQL refuses to run as root, and there is neither a user postgres nor a user nobody to drop to"
            );
        };
        Ok(Self {
            uid,
            gid,
            dropped: true,
            name: format!("user {name}"),
        })
    }

    /// A command that runs as this user, in its own process group (Ctrl-C must reach the host first, which drains and
    /// then stops the server), and gets `last` when the thread that spawns it ends.
    pub(super) fn command(&self, program: &Path, last: Signal) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .envs(
                PASSED_ON
                    .iter()
                    .filter_map(|name| Some((name, std::env::var_os(name)?))),
            )
            .env("LC_ALL", "C")
            // One that every user may enter; ours may be closed to the server's user.
            .current_dir("/")
            .stdin(Stdio::null())
            .process_group(0);
        if self.dropped {
            // std empties the supplementary groups too when root sets a uid.
            command.uid(self.uid).gid(self.gid);
        }
        die_with_parent(&mut command, last);
        command
    }
}

/// The uid and gid of a user in the text of `/etc/passwd`, of which macOS writes `nobody` as -2.
fn lookup<'a>(passwd: &str, name: &'a str) -> Option<(&'a str, u32, u32)> {
    let id = |field: &str| {
        field
            .parse()
            .ok()
            .or_else(|| field.parse().ok().map(i32::cast_unsigned))
    };
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then_some(())?;
        let (uid, gid) = (id(fields.nth(1)?)?, id(fields.next()?)?);
        (uid != 0).then_some((name, uid, gid))
    })
}

/// Has the kernel send `last` to the child when the spawning thread ends, however it ends.
///
/// SIGINT made PostgreSQL shut down cleanly within 0.5 s of a kill -9 of its host, so the next start needs no recovery.
#[cfg(target_os = "linux")]
#[expect(
    unsafe_code,
    reason = "pre_exec: the closure makes two system calls and allocates nothing, as fork demands"
)]
fn die_with_parent(command: &mut Command, last: Signal) {
    let host = rustix::process::getpid();
    let hook = move || {
        // std runs this after the change of uid, which would clear the signal.
        rustix::process::set_parent_process_death_signal(Some(last))?;
        // A host that died before the call above sends nothing any more.
        if rustix::process::getppid() == Some(host) {
            Ok(())
        } else {
            Err(rustix::io::Errno::SRCH.into())
        }
    };
    // SAFETY: see the reason above.
    unsafe { command.pre_exec(hook) };
}

/// Other systems have no such signal: the server outlives a killed host, and the next start joins it.
#[cfg(not(target_os = "linux"))]
fn die_with_parent(_command: &mut Command, _last: Signal) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_looked_up() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nnobody:*:-2:-2:x:/:/bin/false\npostgres:x:101:104:,,,:/x:/bin/sh\n";
        assert_eq!(lookup(passwd, "postgres"), Some(("postgres", 101, 104)));
        assert_eq!(
            lookup(passwd, "nobody"),
            Some(("nobody", 4_294_967_294, 4_294_967_294))
        );
        assert_eq!(lookup(passwd, "root"), None);
        assert_eq!(lookup(passwd, "post"), None);
    }
}
