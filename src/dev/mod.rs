//! The private PostgreSQL cluster that `dev`, `demo`, `bench` and the tests run on when `DATABASE_URL` is not set.
//!
//! It is a real PostgreSQL, because the queue is made of what only PostgreSQL has (skip locked, listen/notify, advisory
//! locks): binaries that the machine already holds, a child process of this one, a Unix socket and no port, a data
//! folder next to the project. `find` looks for the binaries, `user` is who runs them, `layout` places the files, `keeper`
//! owns the child, `cluster` puts them together.
//!
//! One server runs on a folder, however many processes start on it: the first owns it, the others join it. It ends with
//! its owner, also when the owner is killed with -9 (on Linux; elsewhere the next start joins what still runs).

mod cluster;
mod find;
mod keeper;
mod layout;
mod user;

use std::path::PathBuf;

pub use cluster::Cluster;
pub use find::{Binaries, Environment, Source, find_binaries, find_in};

/// How to run the cluster.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Holds the data, the log and the lock; [`default_folder`] when `None`.
    pub folder: Option<PathBuf>,
    /// Sets `synchronous_commit=off`: many times the throughput of small commits, and a crash of the *server* may lose
    /// the last fraction of a second. Off by default: a queue that loses jobs in its own demo is a bad demo.
    pub fast: bool,
    /// Server settings, passed last and therefore stronger than ours. They do not reach a server that is joined.
    pub settings: Vec<(String, String)>,
}

/// Where the cluster lives when nobody says otherwise.
///
/// For root `/var/lib/piecework`: the server drops to another user, which could not walk below `/root`. For anybody else
/// `$XDG_DATA_HOME/piecework`, or `.piecework` in the current folder.
#[must_use]
pub fn default_folder() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/piecework");
    }
    std::env::var_os("XDG_DATA_HOME")
        .map(PathBuf::from)
        // The XDG specification tells readers to ignore a relative path.
        .filter(|home| home.is_absolute())
        .map_or_else(
            || PathBuf::from(".piecework"),
            |home| home.join("piecework"),
        )
}
