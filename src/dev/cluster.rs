//! Starts, joins and stops the cluster.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::process::Signal;

use super::find::{self, Binaries, Environment};
use super::keeper::{Keeper, pause};
use super::layout::{self, Postmaster};
use super::user::ServerUser;
use super::{Options, default_folder};

/// How long a server may take until it takes connections. Recovery after a kill -9 took 4.9 s on a busy machine.
const READY: Duration = Duration::from_secs(60);
/// How long to try again while an old server's processes leave. They took up to 2.1 s.
const LEAVING: Duration = Duration::from_secs(10);
/// Between two looks at a server that is starting; a start takes 0.1 to 0.3 s.
const LOOK: Duration = Duration::from_millis(10);
/// Between two starts while an old server is leaving.
const AGAIN: Duration = Duration::from_millis(200);

/// Stronger than the cluster's `postgresql.conf`. No port, so no clash and no password: who may enter the socket's
/// folder (0700) may connect. `fsync` stays on, see [`Options::fast`].
const SETTINGS: [&str; 10] = [
    "listen_addresses=",
    "port=5432",
    "log_destination=stderr",
    "logging_collector=off",
    "shared_buffers=64MB",
    "max_wal_size=1GB",
    // A queue makes dead rows faster than the default minute: a claim cost 28 times as much after 1.3 M of them.
    "autovacuum_naptime=5s",
    "max_connections=200",
    // Compiling a claim costs more than running it.
    "jit=off",
    "fsync=on",
];

/// A PostgreSQL server of our own that is running: started by this process, or by another and joined.
#[derive(Debug)]
pub struct Cluster {
    url: String,
    binaries: Binaries,
    keeper: Option<Keeper>,
}

impl Cluster {
    /// Starts the server on the folder, or joins the one that runs there, and waits until it takes connections.
    ///
    /// It blocks: about 0.1 s, with the first start's initdb about 1 s, more on a busy machine. A joined server belongs
    /// to the process that started it and stops with that, whoever is still connected.
    ///
    /// # Errors
    ///
    /// No binaries ([`find_binaries`](super::find_binaries)), a folder that cannot be used, or a server that does not
    /// start, with the last lines of its log.
    pub fn start(options: &Options) -> anyhow::Result<Self> {
        let begun = Instant::now();
        let folder = options.folder.clone().unwrap_or_else(default_folder);
        let binaries = find::find_for(&Environment::current(), &folder)?;
        let user = ServerUser::choose(Some(&layout::data(&folder, binaries.major)))?;
        let folder = layout::create(&folder, &user)?;
        let data = layout::data(&folder, binaries.major);

        // Held to the end of this function: of two processes one starts the server and the other finds it ready.
        let _lock = layout::lock(&folder)?;
        let (postmaster, keeper) = match running(&data)? {
            Some(postmaster) => (postmaster, None),
            None => {
                if !data.exists() {
                    initialize(&binaries, &user, &data)?;
                }
                launch(&binaries, &user, &folder, &data, options)?
            }
        };
        let url = postmaster.url();
        tracing::info!(
            url, binaries = %binaries.bin.display(), source = %binaries.source, pid = %postmaster.pid,
            milliseconds = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            "{} the private PostgreSQL {} server", if keeper.is_some() { "started" } else { "joined" }, binaries.major
        );
        Ok(Self {
            url,
            binaries,
            keeper,
        })
    }

    /// The address of a server that runs on the folder already, whoever owns it; `None` when none does. Starts nothing.
    #[must_use]
    pub fn find_running(folder: Option<&Path>) -> Option<String> {
        let folder = folder.map_or_else(default_folder, Path::to_path_buf);
        let entries = fs::read_dir(folder).ok()?;
        entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| {
                path.file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with("data-"))
            })
            .find_map(|data| running(&data).ok().flatten())
            .map(|postmaster| postmaster.url())
    }

    /// Connects to the database `postgres` as the superuser `piecework`, for sqlx as for `psql`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// `false` when the server was running already and belongs to another process.
    #[must_use]
    pub fn owned(&self) -> bool {
        self.keeper.is_some()
    }

    /// What the server was started from; for a joined server, what it would have been started from.
    #[must_use]
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// Stops the server if it is ours: fast (SIGINT), after 10 s immediate (SIGQUIT). Dropping does the same.
    ///
    /// # Errors
    ///
    /// The server does not stop even then.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.keeper.as_mut().map_or(Ok(()), Keeper::stop)
    }
}

fn running(data: &Path) -> anyhow::Result<Option<Postmaster>> {
    Ok(Postmaster::read(data)?.filter(Postmaster::answers))
}

/// Makes the cluster, under another name first: a first run that was killed leaves no half cluster.
fn initialize(binaries: &Binaries, user: &ServerUser, data: &Path) -> anyhow::Result<()> {
    let unfinished = data.with_extension("tmp");
    let begun = Instant::now();
    while let Err(error) = fs::remove_dir_all(&unfinished) {
        if error.kind() == ErrorKind::NotFound {
            break;
        }
        // The killed run's initdb died with it, but the server that initdb had started may write for a moment longer.
        if begun.elapsed() >= LEAVING {
            return Err(error).with_context(|| format!("remove {}", unfinished.display()));
        }
        pause(AGAIN);
    }
    layout::create_private(&unfinished, user)
        .with_context(|| format!("create {}", unfinished.display()))?;
    let output = user
        .command(&binaries.bin.join("initdb"), Signal::KILL)
        .args("-N -A trust -E UTF8 --locale=C -U piecework --wal-segsize=1 -D".split(' '))
        .arg(&unfinished)
        .output()
        .with_context(|| format!("run initdb as {user}"))?;
    ensure!(
        output.status.success(),
        "initdb as {user} ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    fs::rename(&unfinished, data)
        .with_context(|| format!("rename {} to {}", unfinished.display(), data.display()))
}

/// Starts the server, again and again while an old one is leaving; a server that appears meanwhile is joined.
fn launch(
    binaries: &Binaries,
    user: &ServerUser,
    folder: &Path,
    data: &Path,
    options: &Options,
) -> anyhow::Result<(Postmaster, Option<Keeper>)> {
    let socket_folder = layout::socket_folder(data, user)?;
    let path = folder.join(format!("postgres-{}.log", binaries.major));
    let log = layout::open(&path).with_context(|| format!("open {}", path.display()))?;
    log.set_len(0)
        .with_context(|| format!("empty {}", path.display()))?;
    let begun = Instant::now();
    loop {
        let from = log.metadata().map_or(0, |log| log.len());
        let command = command(binaries, user, data, &socket_folder, options, &log)?;
        let keeper =
            Keeper::spawn(command).with_context(|| format!("start {}", binaries.bin.display()))?;
        let Some(postmaster) = wait_ready(&keeper, data)? else {
            let tail = layout::tail(&log, from);
            if !still_leaving(&tail) || begun.elapsed() >= LEAVING {
                let status = keeper.wait(Duration::ZERO).unwrap_or_default();
                bail!(
                    "PostgreSQL as {user} ended with {status} while starting; {} says:\n{tail}",
                    path.display()
                );
            }
            pause(AGAIN);
            if let Some(postmaster) = running(data)? {
                return Ok((postmaster, None));
            }
            continue;
        };
        keeper.serving();
        return Ok((postmaster, Some(keeper)));
    }
}

/// After a kill -9 of host and server: the old one is still a zombie, or its backends have not noticed yet. The pid
/// file is never deleted by us; PostgreSQL takes it over as soon as that is safe.
fn still_leaving(log: &str) -> bool {
    (log.contains("lock file \"") && log.contains("already exists"))
        || log.contains("pre-existing shared memory block")
}

/// `None` when the server has ended instead.
fn wait_ready(keeper: &Keeper, data: &Path) -> anyhow::Result<Option<Postmaster>> {
    let begun = Instant::now();
    while begun.elapsed() < READY {
        if keeper.wait(LOOK).is_some() {
            return Ok(None);
        }
        if let Some(postmaster) = running(data)?
            && postmaster.pid == keeper.pid
        {
            return Ok(Some(postmaster));
        }
    }
    bail!(
        "PostgreSQL was not ready within {READY:?}; see its log beside {}",
        data.display()
    );
}

fn command(
    binaries: &Binaries,
    user: &ServerUser,
    data: &Path,
    socket_folder: &Path,
    options: &Options,
    log: &File,
) -> anyhow::Result<Command> {
    let mut command = user.command(&binaries.bin.join("postgres"), Signal::INT);
    let mut sockets = OsString::from("unix_socket_directories=");
    sockets.push(socket_folder);
    command.arg("-D").arg(data).arg("-c").arg(sockets);
    for setting in SETTINGS {
        command.args(["-c", setting]);
    }
    if options.fast {
        command.args(["-c", "synchronous_commit=off"]);
    }
    for (name, value) in &options.settings {
        command.arg("-c").arg(format!("{name}={value}"));
    }
    command
        .stdout(log.try_clone().context("share the log")?)
        .stderr(log.try_clone().context("share the log")?);
    Ok(command)
}
