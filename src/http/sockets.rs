//! How many sockets the HTTP of handlers has open. Files and sockets are the same to the system, and a process that has used
//! them up loses its database and its listener too: so each socket here has a permit, from before it is opened until it is
//! closed.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use super::Error;
use super::pool::Pool;

/// Sockets of one plugin: 32 attempts that have all the calls open that they may have by default.
const PER_PLUGIN: usize = 256;

/// Sockets of a process, however many files it may open.
const IN_ALL: usize = 4096;

/// How long to wait for sockets that are being closed: their tasks have to run once.
const CLOSED_WITHIN: Duration = Duration::from_millis(100);

/// The sockets of all plugins of a process.
#[derive(Debug)]
pub(super) struct AllSockets {
    free: Arc<Semaphore>,
    most: usize,
}

impl AllSockets {
    /// Lets the process open as many files as the system lets it, and takes half of them.
    pub(super) fn new() -> Self {
        let most = half(raise());
        Self {
            free: Arc::new(Semaphore::new(most)),
            most,
        }
    }
}

/// The sockets of one plugin.
pub(super) struct Sockets {
    plugin: Arc<str>,
    free: Arc<Semaphore>,
    all: Arc<AllSockets>,
    pool: Arc<Pool>,
}

/// Leave to have one socket open.
pub(super) struct Permit {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Sockets {
    /// None is open. Idle ones are those of the pool.
    pub(super) fn new(plugin: &Arc<str>, all: &Arc<AllSockets>, pool: &Arc<Pool>) -> Self {
        Self {
            plugin: plugin.clone(),
            free: Arc::new(Semaphore::new(PER_PLUGIN)),
            all: all.clone(),
            pool: pool.clone(),
        }
    }

    /// A permit that is free.
    pub(super) fn spare(&self) -> Option<Permit> {
        Some(Permit {
            _own: self.free.clone().try_acquire_owned().ok()?,
            _all: self.all.free.clone().try_acquire_owned().ok()?,
        })
    }

    /// A permit. Where none is free, the plugin's oldest idle connection is closed for it.
    pub(super) async fn permit(&self) -> Result<Permit, Error> {
        if let Some(permit) = self.spare() {
            return Ok(permit);
        }
        self.pool.close_oldest();
        match tokio::time::timeout(CLOSED_WITHIN, self.next()).await {
            Ok(permit) => permit.map_err(|_| Error::ended()),
            Err(_) => Err(self.used_up()),
        }
    }

    async fn next(&self) -> Result<Permit, AcquireError> {
        Ok(Permit {
            _own: self.free.clone().acquire_owned().await?,
            _all: self.all.free.clone().acquire_owned().await?,
        })
    }

    fn used_up(&self) -> Error {
        let plugin = &self.plugin;
        let most = self.all.most;
        Error::Limit(if self.free.available_permits() == 0 {
            format!(
                "the plugin `{plugin}` has {PER_PLUGIN} HTTP connections open, and more may not be at a time: lower its \
                 `concurrency`, or `concurrent` under `[plugins.{plugin}.http]`"
            )
        } else if most < IN_ALL {
            format!(
                "the runner has {most} HTTP connections open, half of the files that it may open, and more may not be at a \
                 time: raise its hard limit of open files (`ulimit -Hn`)"
            )
        } else {
            format!(
                "the runner has {most} HTTP connections open, and more may not be at a time: lower the `concurrency` of its \
                 plugins, or start another runner"
            )
        })
    }
}

/// An open connection with its permit, which ends after it.
pub(super) struct Socket {
    stream: TcpStream,
    _permit: Permit,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, permit: Permit) -> Self {
        Self {
            stream,
            _permit: permit,
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Raises the soft limit of open files to the hard one, and says what it is now; none: no limit. Shells start programs with
/// 1024, which 128 attempts with 8 calls each would use up.
fn raise() -> Option<u64> {
    let found = getrlimit(Resource::Nofile);
    if found.current == found.maximum {
        return found.current;
    }
    let raised = Rlimit {
        current: found.maximum,
        maximum: found.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised.current,
        Err(error) => {
            tracing::warn!(
                target: super::LOG,
                soft = found.current,
                hard = found.maximum,
                "the limit of open files was not raised: {error}"
            );
            found.current
        }
    }
}

/// The sockets of a process that may open so many files.
fn half(files: Option<u64>) -> usize {
    let half = files.and_then(|files| usize::try_from(files / 2).ok());
    half.map_or(IN_ALL, |half| half.clamp(1, IN_ALL))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets(most: usize) -> Sockets {
        let all = Arc::new(AllSockets {
            free: Arc::new(Semaphore::new(most)),
            most,
        });
        Sockets::new(&"mail".into(), &all, &Pool::new(Duration::from_secs(1)))
    }

    #[test]
    fn half_of_the_files_are_for_http() {
        assert_eq!(half(Some(256)), 128);
        assert_eq!(half(Some(1024)), 512);
        assert_eq!(half(Some(1)), 1);
        assert_eq!(half(Some(1 << 20)), 4096);
        assert_eq!(half(None), 4096);
    }

    #[tokio::test]
    async fn what_is_used_up_is_named() {
        let one = sockets(2);
        let held = [one.permit().await.unwrap(), one.permit().await.unwrap()];
        let text = one.permit().await.err().unwrap().to_string();
        assert!(text.contains("the runner has 2 HTTP connections"), "{text}");
        assert!(text.contains("`ulimit -Hn`"), "{text}");
        drop(held);
        assert!(one.spare().is_some());
        let one = sockets(1000);
        let mut held = Vec::new();
        for _ in 0..PER_PLUGIN {
            held.push(one.permit().await.unwrap());
        }
        let text = one.permit().await.err().unwrap().to_string();
        assert!(text.contains("the plugin `mail` has 256"), "{text}");
        // One that is closed in time is waited for.
        let waits = one.permit();
        let (permit, ()) = tokio::join!(waits, async {
            tokio::task::yield_now().await;
            held.pop();
        });
        assert!(permit.is_ok());
    }
}
