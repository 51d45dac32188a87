//! Ordering keys: deciding which keyed jobs may be claimed.

use sqlx::Row;

use super::{Error, Store};

impl Store {
    /// Decides about keyed jobs that are new, or whose predecessor somebody ended, at most `most`. Returns how many.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn settle(&self, most: u32) -> Result<u32, Error> {
        let row = self
            .one(
                sqlx::query(include_str!("sql/settle.sql"))
                    .bind(i32::try_from(most).unwrap_or(i32::MAX)),
            )
            .await?;
        Ok(row.try_get::<i32, _>("settled")?.unsigned_abs())
    }

    /// Notes ordering keys that stand still, for the next [`settle`](Self::settle). Returns how many.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn note_idle_keys(&self, most: u32) -> Result<usize, Error> {
        let rows = self
            .all(
                sqlx::query(include_str!("sql/note_idle_keys.sql"))
                    .bind(i32::try_from(most).unwrap_or(i32::MAX)),
            )
            .await?;
        Ok(rows.len())
    }
}
