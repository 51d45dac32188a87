//! Components in the database, under the digests of their bytes. They cross the wire in pieces, so that none of the calls takes long
//! on a slow link, and what arrives is held against its digest.

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use sqlx::{Connection, Row};

use super::link::{Query, within};
use super::{Error, Store};

/// The SHA-256 of a component's bytes.
pub type Digest = [u8; 32];

/// Largest component that the database takes, the check of `piecework.component`. It is put together in the server's memory.
pub const LARGEST_COMPONENT: usize = 256 << 20;

/// Bytes of a call: with the default `database.call_timeout` of 8 s a link of 64 KiB/s is fast enough.
const PIECE: usize = 512 << 10;

/// The server puts a component together, hashes and writes it: 256 MiB take seconds.
const JOIN_LIMIT: Duration = Duration::from_secs(120);

impl Store {
    /// The bytes of a component. `None`: the database has none with this digest (any more).
    ///
    /// # Errors
    /// [`Error::Refused`] when the bytes are not those of the digest.
    pub async fn component(&self, digest: &Digest) -> Result<Option<Vec<u8>>, Error> {
        let query = sqlx::query(include_str!("sql/component_size.sql")).bind(&digest[..]);
        let Some(row) = self.optional(query).await? else {
            return Ok(None);
        };
        let size = usize::try_from(row.try_get::<i32, _>("size")?).unwrap_or(0);
        let mut bytes = Vec::with_capacity(size.min(LARGEST_COMPONENT));
        while bytes.len() < size {
            let query = sqlx::query(include_str!("sql/component_piece.sql"))
                .bind(&digest[..])
                .bind(i32::try_from(bytes.len() + 1).unwrap_or(i32::MAX))
                .bind(i32::try_from(PIECE).unwrap_or(i32::MAX));
            let Some(row) = self.optional(query).await? else {
                return Ok(None);
            };
            let piece: &[u8] = row.try_get("piece")?;
            if piece.is_empty() {
                break;
            }
            bytes.extend_from_slice(piece);
        }
        if Sha256::digest(&bytes)[..] != digest[..] {
            return Err(Error::Refused {
                message: "the bytes that the database has for this component are not those of its digest: push it again".into(),
            });
        }
        Ok(Some(bytes))
    }

    /// Stores a component with its signature, and returns its digest. One that is there already keeps its signature unless a new one
    /// is given.
    ///
    /// # Errors
    /// [`Error::Refused`] when it is empty or larger than [`LARGEST_COMPONENT`].
    pub async fn push(&self, bytes: &[u8], signature: Option<&str>) -> Result<Digest, Error> {
        if bytes.len() > LARGEST_COMPONENT {
            return Err(Error::Refused {
                message: format!(
                    "the component has {} bytes, the limit is {LARGEST_COMPONENT}",
                    bytes.len()
                ),
            });
        }
        let row = if bytes.len() <= PIECE {
            let query = sqlx::query(include_str!("sql/component_put.sql"));
            self.one(query.bind(bytes).bind(signature)).await?
        } else {
            // Any number will do: what two uploads with the same one put together fits neither digest.
            let upload = fastrand::i64(..);
            for (place, piece) in (0_i32..).zip(bytes.chunks(PIECE)) {
                let query = sqlx::query(include_str!("sql/component_part.sql"));
                self.run(query.bind(upload).bind(place).bind(piece)).await?;
            }
            let digest = Sha256::digest(bytes);
            let query = sqlx::query(include_str!("sql/component_join.sql"));
            self.join(query.bind(upload).bind(&digest[..]).bind(signature))
                .await?
        };
        digest(row.try_get("digest")?)
    }

    async fn join(&self, query: Query<'_>) -> Result<sqlx::postgres::PgRow, Error> {
        let mut link = self.link().await?;
        link.limit = JOIN_LIMIT;
        let connection = link.connection();
        let work = async {
            let mut transaction = connection.begin().await?;
            sqlx::raw_sql("set local statement_timeout = '120s'")
                .execute(&mut *transaction)
                .await?;
            let row = query.fetch_one(&mut *transaction).await?;
            transaction.commit().await?;
            Ok(row)
        };
        let work = within(JOIN_LIMIT, work).await;
        link.settle(work)
    }

    /// Forgets components that nobody can want any more; returns how many.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn prune_components(&self) -> Result<i32, Error> {
        let query = sqlx::query(include_str!("sql/prune_components.sql"));
        Ok(self.one(query).await?.try_get("gone")?)
    }
}

/// A digest as the database returns it.
pub(super) fn digest(bytes: &[u8]) -> Result<Digest, Error> {
    bytes
        .try_into()
        .map_err(|_| Error::Schema("a digest in the database has no 32 bytes".into()))
}
