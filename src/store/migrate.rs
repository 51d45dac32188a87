//! Migrations: forward only, in one transaction that holds an advisory lock, so that many hosts may start at once.

use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};

use super::link::within;
use super::{Demand, Error, Store};
use crate::job::RunnerId;

/// What this program knows, oldest first. A released file is never edited.
const MIGRATIONS: [(i32, &str, &str); 3] = [
    (1, "init", include_str!("../../migrations/0001_init.sql")),
    (2, "keys", include_str!("../../migrations/0002_keys.sql")),
    (3, "queue", include_str!("../../migrations/0003_queue.sql")),
];

/// The same number on every host: the lock is about this queue's schema.
const LOCK: i64 = 0x7069_6563_6577_6f72;

/// A migration may rewrite or index a large table; the wait for another host's migration is as long.
const LIMIT: Duration = Duration::from_secs(3600);

/// What a migration came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// The schema's version before; 0 for none.
    pub from: i32,
    /// The schema's version now.
    pub to: i32,
}

impl Store {
    /// The newest schema version that this program knows.
    pub fn known_version() -> i32 {
        MIGRATIONS[MIGRATIONS.len() - 1].0
    }

    /// Brings the schema to the newest version this program knows. Hosts that start together wait for the one that does it.
    ///
    /// # Errors
    /// [`Error::Schema`] when the schema is newer than this program, or belongs to something else.
    pub async fn migrate(&self) -> Result<Migrated, Error> {
        let mut link = self.link().await?;
        let work = within(LIMIT, migrate(link.connection())).await;
        let migrated = link.settle(work)?;
        refuse_newer(migrated.to)?;
        Ok(migrated)
    }

    /// Checks that this program can work with the schema, before a runner does.
    ///
    /// # Errors
    /// [`Error::Schema`] says which version was found, which is wanted, and what to do.
    pub async fn check_schema(&self) -> Result<(), Error> {
        let row = self
            .one(sqlx::query(include_str!("sql/schema_version.sql")))
            .await;
        let known = Self::known_version();
        let found: i32 = match row {
            Ok(row) => row.try_get("version")?,
            Err(Error::Schema(_)) => 0,
            Err(error) => return Err(error),
        };
        if found < known {
            let found = if found == 0 {
                "no piecework schema".to_owned()
            } else {
                format!("version {found} of the piecework schema")
            };
            return Err(Error::Schema(format!(
                "this database has {found}, this program needs version {known}: run `piecework migrate`"
            )));
        }
        refuse_newer(found)?;
        // A schema of the right version that somebody has changed shows itself in the claim.
        let nothing = Demand {
            runner: RunnerId(0),
            picks: Vec::new(),
            total: 0,
            deadlines: std::collections::BTreeMap::new(),
        };
        self.claim(&nothing).await.map(drop)
    }
}

/// Old and new hosts run side by side for one version.
fn refuse_newer(found: i32) -> Result<(), Error> {
    let known = Store::known_version();
    if found > known + 1 {
        return Err(Error::Schema(format!(
            "this database has version {found} of the piecework schema, this program knows up to {known}: use a newer piecework"
        )));
    }
    Ok(())
}

async fn migrate(connection: &mut PgConnection) -> Result<Migrated, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    // It has its own limit, and hosts that start together wait for each other.
    sqlx::raw_sql(
        "set local statement_timeout = 0; set local lock_timeout = 0; set local idle_in_transaction_session_timeout = 0",
    )
    .execute(&mut *transaction)
    .await?;
    let free: bool = sqlx::query("select pg_try_advisory_xact_lock($1)")
        .bind(LOCK)
        .fetch_one(&mut *transaction)
        .await?
        .try_get(0)?;
    if !free {
        tracing::info!("another host migrates the database; waiting for it");
        sqlx::query("select pg_advisory_xact_lock($1)")
            .bind(LOCK)
            .execute(&mut *transaction)
            .await?;
    }
    sqlx::raw_sql(
        "create schema if not exists piecework;
         create table if not exists piecework.migration (
           version int primary key, name text not null, applied_at timestamptz not null default clock_timestamp())",
    )
    .execute(&mut *transaction)
    .await?;
    let from: i32 = sqlx::query(include_str!("sql/schema_version.sql"))
        .fetch_one(&mut *transaction)
        .await?
        .try_get("version")?;
    let mut to = from;
    for (version, name, text) in MIGRATIONS {
        if version > from {
            sqlx::raw_sql(text).execute(&mut *transaction).await?;
            sqlx::query("insert into piecework.migration (version, name) values ($1, $2)")
                .bind(version)
                .bind(name)
                .execute(&mut *transaction)
                .await?;
            to = version;
        }
    }
    transaction.commit().await?;
    Ok(Migrated { from, to })
}
