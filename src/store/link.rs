//! The connections, and one borrowed at a time with a bound on its use. A call that fails, times out, or whose caller goes
//! away in the middle gives its connection up: the socket is closed at once, without a word to a peer that may be silent.
//!
//! Why not sqlx's pool: in 0.8 and 0.9 the task that takes a connection back talks to the server without a bound. When the
//! peer has gone silent the pool's place never comes back; a pool of two was dead for good after two such calls, and even
//! a call that had succeeded could cost its place that way (`tests/it/link.rs`). That task also costs a round trip each
//! time. So connections are kept here, and there is no bare `timeout(execute(..))` anywhere else.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::Connection;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgRow, Postgres};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Error, Store};

/// An idle connection this old may have been forgotten by a firewall; a new one costs a few milliseconds.
const OLD: Duration = Duration::from_secs(60);
/// Longest wait for a row that somebody else has locked, in milliseconds: below the second after which PostgreSQL looks for
/// deadlocks.
const LOCK_MILLIS: u32 = 500;
/// Between two tries while a server is starting.
const AGAIN: Duration = Duration::from_millis(200);

/// A small number of connections.
#[derive(Clone, Debug)]
pub(super) struct Links {
    /// For connections with work of its own length.
    pub(super) options: PgConnectOptions,
    /// The same with the server's own limits: a call whose connection was given up must not go on waiting there, locks in
    /// hand.
    bounded: PgConnectOptions,
    places: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<(PgConnection, Instant)>>>,
    connect_timeout: Duration,
    call_timeout: Duration,
}

/// A connection on loan; closed when dropped before [`settle`](Self::settle).
pub(super) struct Link {
    links: Links,
    connection: Option<PgConnection>,
    /// Longest that the work may take.
    pub(super) limit: Duration,
    _place: OwnedSemaphorePermit,
}

/// A statement with its arguments.
pub(super) type Query<'q> = sqlx::query::Query<'q, Postgres, PgArguments>;

impl Links {
    pub(super) fn new(options: PgConnectOptions, settings: &crate::config::Database) -> Self {
        let millis = settings.call_timeout.0.as_millis();
        let bounded = options.clone().options([
            ("statement_timeout", millis.to_string()),
            ("idle_in_transaction_session_timeout", millis.to_string()),
            ("lock_timeout", LOCK_MILLIS.to_string()),
        ]);
        Self {
            options,
            bounded,
            places: Arc::new(Semaphore::new(settings.connections as usize)),
            idle: Arc::default(),
            connect_timeout: settings.connect_timeout.0,
            call_timeout: settings.call_timeout.0,
        }
    }

    async fn lend(&self) -> Result<Link, Error> {
        let place = tokio::time::timeout(self.connect_timeout, self.places.clone().acquire_owned())
            .await
            .map_err(|_| {
                Error::Unavailable("no free connection within `database.connect_timeout`".into())
            })?
            .map_err(|_| Error::Unavailable("the connections are closed".into()))?;
        let connection = match self.take_idle() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        Ok(Link {
            links: self.clone(),
            connection: Some(connection),
            limit: self.call_timeout,
            _place: place,
        })
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<(PgConnection, Instant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_idle(&self) -> Option<PgConnection> {
        let mut idle = self.idle();
        idle.retain(|(_, since)| since.elapsed() < OLD);
        idle.pop().map(|(connection, _)| connection)
    }

    /// Connects, and waits as long as it may for a server that is just starting.
    async fn connect(&self) -> Result<PgConnection, Error> {
        let end = tokio::time::Instant::now() + self.connect_timeout;
        loop {
            match tokio::time::timeout_at(end, PgConnection::connect_with(&self.bounded)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error))
                    if is_starting(&error) && tokio::time::Instant::now() + AGAIN < end =>
                {
                    tokio::time::sleep(AGAIN).await;
                }
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => {
                    return Err(Error::Unavailable(
                        "no connection within `database.connect_timeout`".into(),
                    ));
                }
            }
        }
    }

    /// Says goodbye on the idle connections, and lends no more.
    pub(super) async fn close(&self) {
        self.places.close();
        let idle = std::mem::take(&mut *self.idle());
        for (connection, _) in idle {
            // A server that does not listen to it finds out by itself.
            let _ = connection.close().await;
        }
    }
}

/// Nobody listens yet, or the server says that it is starting up.
fn is_starting(error: &sqlx::Error) -> bool {
    if let sqlx::Error::Io(error) = error {
        return matches!(
            error.kind(),
            std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::NotFound
        );
    }
    error
        .as_database_error()
        .is_some_and(|error| error.code().is_some_and(|code| code == "57P03"))
}

/// The usual calls: one statement, one answer.
impl Store {
    /// Borrows a connection.
    pub(super) async fn link(&self) -> Result<Link, Error> {
        self.links.lend().await
    }

    pub(super) async fn all(&self, query: Query<'_>) -> Result<Vec<PgRow>, Error> {
        let mut link = self.link().await?;
        let limit = link.limit;
        let work = within(limit, query.fetch_all(link.connection())).await;
        link.settle(work)
    }

    pub(super) async fn one(&self, query: Query<'_>) -> Result<PgRow, Error> {
        let mut link = self.link().await?;
        let limit = link.limit;
        let work = within(limit, query.fetch_one(link.connection())).await;
        link.settle(work)
    }

    pub(super) async fn optional(&self, query: Query<'_>) -> Result<Option<PgRow>, Error> {
        let mut link = self.link().await?;
        let limit = link.limit;
        let work = within(limit, query.fetch_optional(link.connection())).await;
        link.settle(work)
    }

    pub(super) async fn run(&self, query: Query<'_>) -> Result<(), Error> {
        let mut link = self.link().await?;
        let limit = link.limit;
        let work = within(limit, query.execute(link.connection())).await;
        link.settle(work).map(drop)
    }
}

impl Link {
    /// The connection, for one piece of work that is given to [`settle`](Self::settle).
    pub(super) fn connection(&mut self) -> &mut PgConnection {
        self.connection
            .as_mut()
            .expect("a link holds its connection until it is settled")
    }

    /// Keeps the connection for the next caller after `work` that succeeded; passes the result on.
    pub(super) fn settle<T>(
        mut self,
        work: Result<Result<T, sqlx::Error>, tokio::time::error::Elapsed>,
    ) -> Result<T, Error> {
        match work {
            Ok(Ok(value)) => {
                let connection = self.connection.take();
                self.links
                    .idle()
                    .extend(connection.map(|connection| (connection, Instant::now())));
                Ok(value)
            }
            Ok(Err(error)) => {
                if error.as_database_error().is_none() {
                    // The link is down: what else was open is most likely gone too.
                    self.links.idle().clear();
                }
                Err(error.into())
            }
            Err(_) => {
                self.links.idle().clear();
                Err(Error::Unavailable(format!(
                    "no answer within {:?}",
                    self.limit
                )))
            }
        }
    }
}

/// Work with the limit of its link.
pub(super) async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<Result<T, sqlx::Error>, tokio::time::error::Elapsed> {
    tokio::time::timeout(limit, work).await
}
