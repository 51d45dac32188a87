//! What keeps the schema in order over time.

use sqlx::Row;

use super::{Error, Store};

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
