//! Plugins of the fleet: what shall serve each job type, what people change about it, what runners report, and canaries.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::components::{Digest, digest};
use super::{Error, Store};
use crate::job::{JobType, RunnerId};

/// A component that serves, or shall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Of its bytes.
    pub digest: Digest,
    /// Bytes. 0: somebody has deleted it by hand, and [`Store::component`] finds nothing.
    pub size: u64,
    /// The text of its minisign signature, if it came with one.
    pub signature: Option<String>,
}

/// What the fleet shall serve of one job type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The job type.
    pub job_type: JobType,
    /// Serves all jobs, but for the share of the canary.
    pub stable: Version,
    /// The canary and its share of the jobs in hundredths of a percent, 1 to 9999.
    pub canary: Option<(Version, u16)>,
    /// Grows with every change of the release. A new signature alone changes no revision.
    pub revision: i64,
}

/// A change of what the fleet serves of a job type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// This component serves all of it.
    Push(Digest),
    /// This component serves a share of it, in hundredths of a percent, beside the stable version.
    Canary(Digest, u16, AutoRollback),
    /// The canary serves all of it; with a digest only if that is the canary.
    Promote(Option<Digest>),
    /// The canary ends, or the stable version before serves again, or the one that is named.
    Rollback(Option<Digest>),
    /// The stable version, or the one that is named, stays until it is unpinned.
    Pin(Option<Digest>),
    /// It may change again.
    Unpin,
    /// The fleet serves it no more.
    Withdraw,
}

/// Whether a canary that is clearly worse ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoRollback {
    /// It does.
    On,
    /// It goes on.
    Off,
}

/// What a change came to.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Changed {
    /// False: it was so already.
    pub changed: bool,
    /// In words.
    pub message: String,
    /// The job type.
    pub job_type: String,
    /// After it.
    pub revision: i64,
    /// The stable version now, in hex.
    pub stable: Option<String>,
    /// The canary now, in hex.
    pub canary: Option<String>,
    /// Its share.
    pub percent: Option<f64>,
    /// Whether it is pinned now.
    pub pinned: bool,
}

/// Attempts of one version of a job type that has a canary, as a process has counted them since the canary began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanaryCount {
    /// The job type.
    pub job_type: JobType,
    /// The stable version or the canary.
    pub digest: Digest,
    /// [`Wanted::revision`] when the attempts began.
    pub revision: i64,
    /// Attempts that went well.
    pub done: u64,
    /// Attempts that failed, and for which the guest is to blame.
    pub failed: u64,
}

/// A canary that ended by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolledBack {
    /// The job type.
    pub job_type: JobType,
    /// What ended.
    pub canary: Digest,
    /// What serves all jobs now.
    pub stable: Digest,
    /// The numbers, in words.
    pub reason: String,
}

/// What the fleet serves of one job type, for people.
#[derive(Clone, Debug, Serialize)]
pub struct ReleaseLine {
    /// The job type.
    pub job_type: String,
    /// The stable version, in hex.
    pub stable: String,
    /// RFC 3339.
    pub stable_since: String,
    /// The canary, in hex.
    pub canary: Option<String>,
    /// Its share of the jobs.
    pub percent: Option<f64>,
    /// RFC 3339.
    pub canary_since: Option<String>,
    /// Whether a canary that is worse ends by itself.
    pub auto_rollback: bool,
    /// RFC 3339.
    pub pinned_at: Option<String>,
    /// Who has pinned it.
    pub pinned_by: Option<String>,
    /// Grows with every change.
    pub revision: i64,
    /// Attempts of the stable version since the canary began.
    pub stable_done: i64,
    /// Those that failed.
    pub stable_failed: i64,
    /// Attempts of the canary.
    pub canary_done: i64,
    /// Those that failed.
    pub canary_failed: i64,
}

/// One change of the past.
#[derive(Clone, Debug, Serialize)]
pub struct HistoryLine {
    /// RFC 3339.
    pub at: String,
    /// The role that asked for it.
    pub who: String,
    /// The job type.
    pub job_type: String,
    /// `push`, `canary`, `promote`, `rollback`, `auto_rollback`, `pin`, `unpin` or `withdraw`.
    pub action: String,
    /// What served before, or the canary that ended, in hex.
    pub from: Option<String>,
    /// What served from then on, or the canary that began, in hex.
    pub to: Option<String>,
    /// Of a canary.
    pub percent: Option<f64>,
    /// Why, where the program decided.
    pub reason: Option<String>,
    /// Attempts of both versions, when a canary ended.
    pub numbers: Option<Box<RawValue>>,
    /// After it.
    pub revision: i64,
}

/// What a live runner says of its plugins.
#[derive(Clone, Debug, Serialize)]
pub struct RunnerPlugins {
    /// The runner.
    pub id: RunnerId,
    /// Its name for people.
    pub name: String,
    /// Of the program.
    pub version: String,
    /// Whether it takes plugins from the fleet. `None`: it says nothing, being older than that.
    pub fleet: Option<bool>,
    /// Its plugins.
    pub plugins: Vec<RunnerPlugin>,
    /// Since it wrote that.
    pub age_seconds: Option<f64>,
}

/// A file, or a version of a release, on a runner. What a newer runner adds is passed over.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct RunnerPlugin {
    /// `fleet` or `folder`.
    pub source: String,
    /// The file's name without `.wasm`, or the job type of the release.
    pub name: String,
    /// The file.
    pub file: Option<String>,
    /// What it serves, or would.
    pub job_types: Vec<String>,
    /// In hex.
    pub digest: String,
    /// In bytes.
    pub size: u64,
    /// `serving`, `canary`, `compiling`, `refused`, `conflicting`, `overridden`.
    pub state: String,
    /// Why it does not serve.
    pub reason: Option<String>,
    /// What serves meanwhile, in hex.
    pub serving: Option<String>,
    /// How long it had stood like this when it was reported.
    pub since_seconds: f64,
    /// Attempts that ran then, by version.
    pub in_flight: Vec<(String, u64)>,
    /// What compiling took, or loading what was compiled before.
    pub compile_ms: u64,
    /// Whether it had been compiled before.
    pub cached: bool,
}

impl Store {
    /// What the fleet shall serve, by job type. One small statement: every runner asks every few seconds.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn wanted(&self) -> Result<Vec<Wanted>, Error> {
        let rows = self
            .all(sqlx::query(include_str!("sql/wanted.sql")))
            .await?;
        rows.iter()
            .map(|row| {
                let canary = match row.try_get::<Option<i32>, _>("share")? {
                    Some(share) => Some((
                        version(row, "canary", "canary_size", "canary_signature")?,
                        u16::try_from(share).unwrap_or(0),
                    )),
                    None => None,
                };
                Ok(Wanted {
                    job_type: row.try_get::<&str, _>("job_type")?.into(),
                    stable: version(row, "stable", "stable_size", "stable_signature")?,
                    canary,
                    revision: row.try_get("revision")?,
                })
            })
            .collect()
    }

    /// Changes what the fleet serves of a job type, and tells the runners.
    ///
    /// # Errors
    /// [`Error::Refused`] says why it cannot be: pinned, no canary, no such version.
    pub async fn release(&self, job_type: &str, change: Change) -> Result<Changed, Error> {
        fn some(digest: &Option<Digest>) -> Option<&[u8]> {
            digest.as_ref().map(|digest| &digest[..])
        }
        let query = match &change {
            Change::Push(digest) => sqlx::query(include_str!("sql/plugin_push.sql"))
                .bind(job_type)
                .bind(&digest[..]),
            Change::Canary(digest, share, auto) => {
                sqlx::query(include_str!("sql/plugin_canary.sql"))
                    .bind(job_type)
                    .bind(&digest[..])
                    .bind(i32::from(*share))
                    .bind(*auto == AutoRollback::On)
            }
            Change::Promote(digest) => sqlx::query(include_str!("sql/plugin_promote.sql"))
                .bind(job_type)
                .bind(some(digest)),
            Change::Rollback(digest) => sqlx::query(include_str!("sql/plugin_rollback.sql"))
                .bind(job_type)
                .bind(some(digest)),
            Change::Pin(digest) => sqlx::query(include_str!("sql/plugin_pin.sql"))
                .bind(job_type)
                .bind(some(digest)),
            Change::Unpin => sqlx::query(include_str!("sql/plugin_unpin.sql")).bind(job_type),
            Change::Withdraw => sqlx::query(include_str!("sql/plugin_withdraw.sql")).bind(job_type),
        };
        let row = self.one(query).await?;
        read(row.try_get("answer")?)
    }

    /// The versions that a job type has had and whose digests, in hex, begin like this.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn plugin_versions(
        &self,
        job_type: &str,
        prefix: &str,
    ) -> Result<Vec<Digest>, Error> {
        let query = sqlx::query(include_str!("sql/plugin_versions.sql"));
        let rows = self.all(query.bind(job_type).bind(prefix)).await?;
        rows.iter()
            .map(|row| digest(row.try_get("digest")?))
            .collect()
    }

    /// The last changes of a job type, or of all, the newest first.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn plugin_history(
        &self,
        job_type: Option<&str>,
        most: u32,
    ) -> Result<Vec<HistoryLine>, Error> {
        let query = sqlx::query(include_str!("sql/plugin_history.sql"))
            .bind(job_type)
            .bind(i32::try_from(most).unwrap_or(i32::MAX));
        let rows = self.all(query).await?;
        rows.iter()
            .map(|row| {
                Ok(HistoryLine {
                    at: row.try_get("at")?,
                    who: row.try_get("who")?,
                    job_type: row.try_get("job_type")?,
                    action: row.try_get("action")?,
                    from: row.try_get("from_digest")?,
                    to: row.try_get("to_digest")?,
                    percent: row.try_get("percent")?,
                    reason: row.try_get("reason")?,
                    numbers: row
                        .try_get::<Option<&str>, _>("numbers")?
                        .map(read)
                        .transpose()?,
                    revision: row.try_get("revision")?,
                })
            })
            .collect()
    }

    /// What the fleet serves.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn releases(&self) -> Result<Vec<ReleaseLine>, Error> {
        let rows = self
            .all(sqlx::query(include_str!("sql/releases.sql")))
            .await?;
        let line = |row: &PgRow| {
            Ok::<_, sqlx::Error>(ReleaseLine {
                job_type: row.try_get("job_type")?,
                stable: row.try_get("stable")?,
                stable_since: row.try_get("stable_since")?,
                canary: row.try_get("canary")?,
                percent: row.try_get("percent")?,
                canary_since: row.try_get("canary_since")?,
                auto_rollback: row.try_get("auto_rollback")?,
                pinned_at: row.try_get("pinned_at")?,
                pinned_by: row.try_get("pinned_by")?,
                revision: row.try_get("revision")?,
                stable_done: row.try_get("stable_done")?,
                stable_failed: row.try_get("stable_failed")?,
                canary_done: row.try_get("canary_done")?,
                canary_failed: row.try_get("canary_failed")?,
            })
        };
        Ok(rows.iter().map(line).collect::<Result<_, _>>()?)
    }

    /// Writes what a runner says of its plugins: a JSON array of objects with at least the fields of [`RunnerPlugin`]. `fleet`: it takes
    /// plugins from the fleet.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn report_plugins(
        &self,
        runner: RunnerId,
        fleet: bool,
        plugins: &str,
    ) -> Result<(), Error> {
        let query = sqlx::query(include_str!("sql/report_plugins.sql"));
        self.run(query.bind(runner.0).bind(fleet).bind(plugins))
            .await
    }

    /// What the live runners say of their plugins.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn runner_plugins(&self) -> Result<Vec<RunnerPlugins>, Error> {
        let rows = self
            .all(sqlx::query(include_str!("sql/runner_plugins.sql")))
            .await?;
        rows.iter()
            .map(|row| {
                let plugins = row.try_get::<Option<&str>, _>("plugins")?;
                Ok(RunnerPlugins {
                    id: RunnerId(row.try_get("id")?),
                    name: row.try_get("name")?,
                    version: row.try_get("version")?,
                    fleet: row.try_get("fleet")?,
                    plugins: plugins.map(read).transpose()?.unwrap_or_default(),
                    age_seconds: row.try_get("age_seconds")?,
                })
            })
            .collect()
    }

    /// Writes what a process has counted of each canary since it began, in whole numbers: a count that is written twice counts once, and
    /// one of a canary that is over is passed over. `source` is a number that the process has drawn at its start.
    ///
    /// Count the first attempt of each job only: a job that fails whatever runs it comes back to the same version again and again,
    /// and would be taken for many.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn count_canaries(&self, source: i64, counts: &[CanaryCount]) -> Result<(), Error> {
        fn numbers(counts: &[CanaryCount], of: impl Fn(&CanaryCount) -> u64) -> Vec<i64> {
            let number = |count| i64::try_from(of(count)).unwrap_or(i64::MAX);
            counts.iter().map(number).collect()
        }
        let types: Vec<&str> = counts.iter().map(|count| count.job_type.as_str()).collect();
        let digests: Vec<&[u8]> = counts.iter().map(|count| &count.digest[..]).collect();
        let revisions: Vec<i64> = counts.iter().map(|count| count.revision).collect();
        let query = sqlx::query(include_str!("sql/count_canaries.sql"))
            .bind(source)
            .bind(types)
            .bind(digests)
            .bind(revisions)
            .bind(numbers(counts, |count| count.done))
            .bind(numbers(counts, |count| count.failed));
        self.run(query).await
    }

    /// Ends canaries that are clearly worse than the stable version; returns them. Called every second or so while there is a canary,
    /// by any runner.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn judge_canaries(&self) -> Result<Vec<RolledBack>, Error> {
        let rows = self
            .all(sqlx::query(include_str!("sql/judge_canaries.sql")))
            .await?;
        rows.iter()
            .map(|row| {
                Ok(RolledBack {
                    job_type: row.try_get::<&str, _>("job_type")?.into(),
                    canary: digest(row.try_get("canary")?)?,
                    stable: digest(row.try_get("stable")?)?,
                    reason: row.try_get("reason")?,
                })
            })
            .collect()
    }
}

fn version(row: &PgRow, name: &str, size: &str, signature: &str) -> Result<Version, Error> {
    Ok(Version {
        digest: digest(row.try_get(name)?)?,
        size: row
            .try_get::<Option<i32>, _>(size)?
            .and_then(|size| u64::try_from(size).ok())
            .unwrap_or(0),
        signature: row.try_get(signature)?,
    })
}

/// JSON that our functions wrote.
fn read<T: for<'d> Deserialize<'d>>(json: &str) -> Result<T, Error> {
    serde_json::from_str(json).map_err(|error| {
        Error::Schema(format!(
            "the piecework schema of this database does not fit this program: {error}"
        ))
    })
}
