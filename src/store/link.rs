//! One borrowed connection with a bound on its use. A call that times out, or whose caller goes away in the middle,
//! **detaches** its connection before dropping it.
//!
//! Why: in sqlx 0.8 and 0.9 the task that puts a connection back into the pool talks to the server without a bound. When
//! the peer has gone silent the pool's permit never comes back; a pool of two was dead for good after two such drops.
//! So no other code takes a connection from this pool, and there is no bare `timeout(execute(&pool))`.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgConnection, PgRow, Postgres};

use super::{Error, Store};

/// Connections that the rounds of a runner keep between two uses: the pool's way back costs a round trip each time.
#[derive(Clone, Debug, Default)]
pub(super) struct Hot(Arc<Mutex<Vec<PoolConnection<Postgres>>>>);

/// Rounds under way at once.
const HOT: usize = 2;

impl Hot {
    fn take(&self) -> Option<PoolConnection<Postgres>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn keep(&self, connection: PoolConnection<Postgres>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < HOT {
            kept.push(connection);
        }
    }

    /// Lets the pool have them.
    pub(super) fn clear(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}

/// A connection on loan; detached when dropped before [`settle`](Self::settle).
pub(super) struct Link {
    hot: Hot,
    connection: Option<PoolConnection<Postgres>>,
    /// Longest that the work may take.
    pub(super) limit: Duration,
}

impl Store {
    /// Borrows a connection.
    pub(super) async fn link(&self) -> Result<Link, Error> {
        // Bounded by the pool's own acquire_timeout.
        let connection = self.pool.acquire().await.map_err(|error| {
            if matches!(error, sqlx::Error::PoolTimedOut) {
                return Error::Unavailable(
                    "no connection within `database.connect_timeout`".into(),
                );
            }
            error.into()
        })?;
        Ok(self.lend(connection))
    }

    /// Borrows one of the connections that are kept for rounds.
    pub(super) async fn hot_link(&self) -> Result<Link, Error> {
        match self.hot.take() {
            Some(connection) => Ok(self.lend(connection)),
            None => self.link().await,
        }
    }

    fn lend(&self, connection: PoolConnection<Postgres>) -> Link {
        Link {
            hot: self.hot.clone(),
            connection: Some(connection),
            limit: self.call_timeout,
        }
    }
}

/// A statement with its arguments.
pub(super) type Query<'q> = sqlx::query::Query<'q, Postgres, PgArguments>;

/// The usual calls: one statement, one answer.
impl Store {
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

    /// Keeps the connection for the next round after `work`, whose result this passes on.
    pub(super) fn settle_hot<T>(
        mut self,
        work: Result<Result<T, sqlx::Error>, tokio::time::error::Elapsed>,
    ) -> Result<T, Error> {
        if matches!(work, Ok(Ok(_)))
            && let Some(connection) = self.connection.take()
        {
            self.hot.keep(connection);
        }
        self.settle(work)
    }

    /// Gives the connection back after `work`, whose result this passes on.
    pub(super) fn settle<T>(
        mut self,
        work: Result<Result<T, sqlx::Error>, tokio::time::error::Elapsed>,
    ) -> Result<T, Error> {
        match work {
            Ok(Ok(value)) => {
                // Back into the pool.
                drop(self.connection.take());
                Ok(value)
            }
            Ok(Err(error)) => {
                if error.as_database_error().is_some() || matches!(error, sqlx::Error::RowNotFound)
                {
                    drop(self.connection.take());
                }
                Err(error.into())
            }
            Err(_) => Err(Error::Unavailable(format!(
                "no answer within {:?}",
                self.limit
            ))),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            drop(connection.detach());
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
