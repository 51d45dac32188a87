//! How the words of the domain cross the wire.

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgRow, PgTypeInfo, PgValueRef};
use sqlx::{Decode, Encode, Postgres, Row, Type};

use crate::job::{ClaimToken, Claimed, JobId, Priority, Timestamp};

// The wire has microseconds since 2000 too, so nothing is converted, and `-infinity` is just the smallest number. The time
// crates that sqlx offers panic on infinite timestamps.
impl Type<Postgres> for Timestamp {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_name("timestamptz")
    }
}

impl PgHasArrayType for Timestamp {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_name("timestamptz[]")
    }

    fn array_compatible(_: &PgTypeInfo) -> bool {
        true
    }
}

impl Encode<'_, Postgres> for Timestamp {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        Encode::<Postgres>::encode(self.0, buffer)
    }
}

impl<'r> Decode<'r, Postgres> for Timestamp {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        Ok(Self(i64::from_be_bytes(value.as_bytes()?.try_into()?)))
    }
}

/// A claimed row of `round.sql`.
pub(super) fn claimed(row: &PgRow) -> Result<Claimed, sqlx::Error> {
    let payload: Option<String> = row.try_get("payload")?;
    let count = |name: &str| row.try_get::<i32, _>(name).map(i32::cast_unsigned);
    Ok(Claimed {
        id: JobId(row.try_get("id")?),
        claim: ClaimToken(row.try_get("claim")?),
        job_type: row.try_get::<&str, _>("job_type")?.into(),
        priority: Priority(row.try_get("priority")?),
        due_at: row.try_get("due_at")?,
        attempt: count("attempt")?,
        max_attempts: count("max_attempts")?,
        oversized: payload.is_none(),
        payload: payload.unwrap_or_default(),
        ordering_key: row.try_get("ordering_key")?,
        group_key: row.try_get("group_key")?,
        batch: row.try_get::<Option<i64>, _>("batch")?.map(JobId),
        enqueued_at: row.try_get("enqueued_at")?,
        parent: row.try_get::<Option<i64>, _>("parent")?.map(JobId),
        root: JobId(row.try_get("root")?),
        checkpoint: row.try_get("checkpoint")?,
    })
}
