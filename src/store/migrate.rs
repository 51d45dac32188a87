//! Migrations: forward only, in transactions that hold an advisory lock, so that many hosts may start at once.

use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};

use super::link::within;
use super::{Demand, Error, Store};
use crate::job::RunnerId;

/// What this program knows, oldest first. A released file is never edited.
const MIGRATIONS: [(i32, &str, &str); 4] = [
    (1, "init", include_str!("../../migrations/0001_init.sql")),
    (2, "keys", include_str!("../../migrations/0002_keys.sql")),
    (3, "queue", include_str!("../../migrations/0003_queue.sql")),
    (4, "fleet", include_str!("../../migrations/0004_fleet.sql")),
];

/// The same number on every host: the lock is about this queue's schema.
const LOCK: i64 = 0x7069_6563_6577_6f72;

/// A migration may rewrite or index a large table; the wait for another host's migration is as long.
const LIMIT: Duration = Duration::from_secs(3600);

/// Ends a step of a migration: what follows is done in the next transaction, so that no lock is held for long. A step but the last
/// may be done twice, by two hosts that start together.
const STEP: &str = "\n-- next transaction\n";

/// Pause before a step is tried again that could not get a table's lock.
const PAUSE: Duration = Duration::from_millis(300);

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
            ..Demand::default()
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
    let mut from = None;
    let mut at = (0, 0);
    loop {
        match step(connection, at).await {
            Ok(Step::Part(next)) => at = next,
            Ok(Step::Whole { found }) => {
                from.get_or_insert(found);
            }
            Ok(Step::Nothing { found }) => {
                let from = from.unwrap_or(found);
                return Ok(Migrated { from, to: found });
            }
            Err(error) if is_locked(&error) => {
                tracing::info!("a transaction uses a table that is to be changed; trying again");
                tokio::time::sleep(PAUSE.mul_f64(0.5 + fastrand::f64())).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// What one transaction came to.
enum Step {
    /// A part of a version was done; the next is this one, of this version.
    Part((i32, usize)),
    /// A version, or in an empty database all of them, was completed.
    Whole { found: i32 },
    /// There is nothing left to do.
    Nothing { found: i32 },
}

/// Does the next thing, in a transaction of its own that holds the lock: of the version `at.0` the step `at.1` is next, unless
/// another host was faster.
async fn step(connection: &mut PgConnection, at: (i32, usize)) -> Result<Step, sqlx::Error> {
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
    let found: i32 = sqlx::query(include_str!("sql/schema_version.sql"))
        .fetch_one(&mut *transaction)
        .await?
        .try_get("version")?;
    let mut left = MIGRATIONS
        .iter()
        .filter(|(version, ..)| *version > found)
        .peekable();
    if left.peek().is_none() {
        transaction.commit().await?;
        return Ok(Step::Nothing { found });
    }
    // Whoever waits for a table makes all others wait behind it. An autovacuum gives way after the deadlock timeout, usually a
    // second and so never within our wait; who may sets it, others try again until the autovacuum is done.
    sqlx::raw_sql(
        "set local lock_timeout = '500ms';
         do $$ begin
           perform set_config('deadlock_timeout', '100ms', true);
         exception when insufficient_privilege then null;
         end $$",
    )
    .execute(&mut *transaction)
    .await?;
    for (version, name, text) in left {
        let number = if at.0 == *version { at.1 } else { 0 };
        let mut steps = text.split(STEP).skip(number);
        // Nobody works in an empty database yet: there all is done at once.
        let now = if found == 0 { usize::MAX } else { 1 };
        for step in steps.by_ref().take(now) {
            sqlx::raw_sql(step).execute(&mut *transaction).await?;
        }
        if found > 0 && steps.next().is_some() {
            transaction.commit().await?;
            return Ok(Step::Part((*version, number + 1)));
        }
        sqlx::query("insert into piecework.migration (version, name) values ($1, $2)")
            .bind(version)
            .bind(name)
            .execute(&mut *transaction)
            .await?;
        if found > 0 {
            break;
        }
    }
    transaction.commit().await?;
    Ok(Step::Whole { found })
}

fn is_locked(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    // Deadlocks with transactions that use several tables: whoever noticed first was ended.
    matches!(code.as_deref(), Some("55P03" | "40P01"))
}
