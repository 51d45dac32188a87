//! The one client for all HTTP of handlers: policy, limits, secrets, pools. It knows neither Wasm nor SQL; the doors of the
//! guest are in `engine`, and both end here.
//!
//! A call goes through these steps, in this order; the first that fails is its error, and what comes after is not tried:
//!
//! ```text
//! count it → URL → allow list → ceiling → headers, secrets → look the name up → check each address → connect → TLS
//!          → send → head → body
//! ```
//!
//! - The address that is connected to is one that was checked: the name is not looked up twice. Redirects are not followed,
//!   so each hop is a call of its own, with its own check.
//! - Everything after the headers happens on one thread of its own ([`Net`]). A guest that computes delays no time limit
//!   here, and a flood of answers delays no lease.
//! - A connection is used again only after an answer that was read to its end. After an error, a time limit or a guest that
//!   went away it is closed (HTTP/2: after an error or a time limit, given to no further call).
//! - A request is sent once. The exception is one that came back from a connection as not written at all: it may go to one
//!   fresh connection.
//! - Sockets are counted, per plugin and in all, so that handlers leave the process enough of its files.
//! - gzip is unpacked where the caller is polled: that time is the caller's, and its limits hold for it.
//! - What works for a call ends with it: with the future or the body that the caller holds, and with the [`Session`].

mod body;
mod bounds;
mod call;
mod client;
mod connect;
mod error;
mod exchange;
mod head;
mod pool;
mod secrets;
mod session;
mod sockets;
mod tape;
mod tls;
mod whole;
mod wire;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::runtime::{Builder, Handle};
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};

pub use body::Body;
pub use bounds::Timeouts;
pub use call::Usage;
pub use client::{Client, Rules};
pub use error::Error;
pub use session::{Answer, Session};
pub use tape::Tape;

use body::Outgoing;

/// The target of this module's log records.
const LOG: &str = "piecework::http";

/// Headers that an answer may have.
const MAX_HEADERS: usize = 256;

/// Name lookups at a time; each blocks a thread for as long as the system's resolver likes.
const LOOKUPS: usize = 16;

/// One thread more reads the system's authorities, so that names that hang do not delay TLS.
const BLOCKING_THREADS: usize = LOOKUPS + 1;

/// How long a lookup's thread waits for the next one.
const LOOKUP_THREAD_IDLE: Duration = Duration::from_secs(5);

/// What all HTTP of a process shares.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A PEM file of certificate authorities to trust beside the system's.
    pub ca_file: Option<PathBuf>,
    /// How long an idle connection is kept.
    pub idle: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ca_file: None,
            idle: Duration::from_secs(30),
        }
    }
}

/// The network side of a process: a thread for all calls, the settings of TLS, a bounded number of threads for lookups.
/// Dropping it ends all calls and returns at once.
#[derive(Debug)]
pub struct Net {
    shared: Arc<Shared>,
    _stop: DropGuard,
}

/// What clients have of it. A client that outlives it gets `cancelled` for every call.
#[derive(Debug)]
struct Shared {
    handle: Handle,
    tls: tls::Tls,
    idle: Duration,
    lookups: Arc<Semaphore>,
    sockets: Arc<sockets::AllSockets>,
}

impl Net {
    /// Starts the thread. Raises the process's soft limit of open files to its hard one; where the system refuses that, it
    /// goes on with what there is.
    ///
    /// # Errors
    /// Names the file of authorities when it cannot be read or holds none.
    pub fn start(settings: &Settings) -> anyhow::Result<Self> {
        let tls = tls::Tls::new(settings.ca_file.as_deref())?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_keep_alive(LOOKUP_THREAD_IDLE)
            .thread_name("http-lookup")
            .build()
            .context("start the runtime for HTTP calls")?;
        let handle = runtime.handle().clone();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        std::thread::Builder::new()
            .name("http".into())
            .spawn(move || {
                runtime.block_on(stopped.cancelled());
                // A lookup that hangs is not waited for.
                runtime.shutdown_background();
            })
            .context("start the thread for HTTP calls")?;
        Ok(Self {
            shared: Arc::new(Shared {
                handle,
                tls,
                idle: settings.idle,
                lookups: Arc::new(Semaphore::new(LOOKUPS)),
                sockets: Arc::new(sockets::AllSockets::new()),
            }),
            _stop: stop.drop_guard(),
        })
    }
}
