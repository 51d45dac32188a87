//! What keeps the schema in order over time.

use sqlx::Row;
use sqlx::postgres::PgRow;

use super::{Error, Store};

/// A table of history that was dropped, or could not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Its name.
    pub table: String,
    /// How many jobs were deleted from it, where it is not the whole table that went.
    pub jobs: Option<i64>,
    /// Somebody reads it: the next call tries again.
    pub put_off: bool,
}

impl Store {
    /// Makes the history partitions of the days to come; returns how many were missing.
    ///
    /// # Errors
    /// As every call to the database; [`Error::Unavailable`] when somebody's long transaction is in the way.
    pub async fn make_history_partitions(&self) -> Result<i32, Error> {
        let row = self
            .one(sqlx::query(include_str!("sql/make_history_partitions.sql")))
            .await;
        Ok(row?.try_get("made")?)
    }

    /// Drops history that has been kept long enough, a little of it at once: nothing is left when nothing is returned.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn drop_old_history(&self) -> Result<Vec<Dropped>, Error> {
        let rows = self
            .all(sqlx::query(include_str!("sql/drop_old_history.sql")))
            .await?;
        let dropped = |row: &PgRow| {
            Ok::<_, sqlx::Error>(Dropped {
                table: row.try_get("dropped")?,
                jobs: row.try_get("jobs")?,
                put_off: row.try_get("put_off")?,
            })
        };
        Ok(rows.iter().map(dropped).collect::<Result<_, _>>()?)
    }

    /// Forgets runners that ended more than a day ago.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn prune_runners(&self) -> Result<(), Error> {
        self.run(sqlx::query(include_str!("sql/prune_runners.sql")))
            .await
    }

    /// Forgets unique keys whose window is over.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn forget_windows(&self) -> Result<(), Error> {
        self.run(sqlx::query(include_str!("sql/forget_windows.sql")))
            .await
    }
}
