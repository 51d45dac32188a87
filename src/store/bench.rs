//! What only benchmarks and the plan test ask of the database.

use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{ConnectOptions, Row};

use super::claim::Demand;
use super::link::within;
use super::{Error, Store};

/// A snapshot that is held.
#[derive(Debug)]
pub struct Pin(#[expect(dead_code, reason = "held, not used")] PgConnection);

/// The server's counters.
#[derive(Clone, Debug)]
pub struct Counters {
    /// WAL written so far, in bytes.
    pub wal_bytes: i64,
    /// Transactions committed in this database so far; the server counts them up to a second late.
    pub commits: i64,
    /// The server's version.
    pub version: String,
    /// The settings that decide about durability and speed.
    pub settings: String,
}

impl Store {
    /// The server's counters.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn bench_counters(&self) -> Result<Counters, Error> {
        let row = self
            .one(sqlx::query(include_str!("sql/bench_counters.sql")))
            .await?;
        Ok(Counters {
            wal_bytes: row.try_get("wal_bytes")?,
            commits: row.try_get("commits")?,
            version: row.try_get("version")?,
            settings: row.try_get("settings")?,
        })
    }

    /// Vacuums and analyses the queue's tables. May take minutes.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn bench_vacuum(&self) -> Result<(), Error> {
        let mut connection = self.links.options.connect().await?;
        let work = sqlx::query(include_str!("sql/bench_vacuum.sql")).execute(&mut connection);
        long(work).await
    }

    /// Fills in jobs that are finished, for later, blocked by their ordering keys, and due of a type that nobody serves. May take
    /// minutes.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn bench_fill(
        &self,
        finished: i64,
        future: i64,
        blocked: i64,
        unknown: i64,
        job_type: &str,
    ) -> Result<(), Error> {
        let mut connection = self.links.options.connect().await?;
        let work = sqlx::query(include_str!("sql/bench_fill.sql"))
            .bind(finished)
            .bind(future)
            .bind(job_type)
            .bind(blocked)
            .bind(unknown)
            .execute(&mut connection);
        long(work).await
    }

    /// Holds a snapshot until dropped, as a forgotten transaction or a long report does: vacuum removes nothing meanwhile.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn bench_pin(&self) -> Result<Pin, Error> {
        let mut connection: PgConnection = self.links.options.connect().await?;
        sqlx::query("begin isolation level repeatable read")
            .execute(&mut connection)
            .await?;
        sqlx::query(include_str!("sql/bench_pin.sql"))
            .execute(&mut connection)
            .await?;
        Ok(Pin(connection))
    }

    /// The plan of a claim, a line an element. With `generic` the plan that the server makes without knowing the arguments.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn bench_claim_plan(
        &self,
        demand: &Demand,
        generic: bool,
    ) -> Result<Vec<String>, Error> {
        self.plan(demand, generic, false).await
    }

    /// The plan of a claim that was carried out and rolled back, with the buffers that each step touched.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn bench_claim_buffers(&self, demand: &Demand) -> Result<Vec<String>, Error> {
        self.plan(demand, true, true).await
    }

    async fn plan(&self, demand: &Demand, generic: bool, run: bool) -> Result<Vec<String>, Error> {
        let mut link = self.link().await?;
        let limit = link.limit;
        let plan = super::round::plan(link.connection(), demand, generic, run);
        let work = within(limit, plan).await;
        link.settle(work)
    }
}

/// Work that takes minutes, on a connection of its own: the others have the limits of a runner's calls.
async fn long<T>(work: impl Future<Output = Result<T, sqlx::Error>>) -> Result<(), Error> {
    match within(Duration::from_secs(3600), work).await {
        Ok(done) => Ok(done.map(drop)?),
        Err(_) => Err(Error::Unavailable("no answer within an hour".into())),
    }
}
