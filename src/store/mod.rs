//! Everything that speaks SQL, and nothing that speaks Wasm: a transaction cannot leave this module, so no guest can run
//! inside one. Each statement is a file in `sql/`, and every call has a bound (see `link`).

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;

use crate::config::Database;

mod bench;
mod checkpoints;
mod chores;
mod claim;
mod components;
mod enqueue;
mod finish;
mod fleet;
mod keys;
mod lease;
mod link;
mod listen;
mod migrate;
mod query;
mod queue;
mod quota;
mod round;
mod rows;
mod schedules;
mod scratch;

pub use bench::{Counters, Pin};
pub use checkpoints::{Save, Saved};
pub use chores::Dropped;
pub use claim::{Demand, Pick};
pub use components::{Digest, LARGEST_COMPONENT};
pub use enqueue::NewJob;
pub use finish::{Ended, Finish, Verdict};
pub use fleet::{
    AutoRollback, CanaryCount, Change, Changed, HistoryLine, ReleaseLine, RolledBack, RunnerPlugin,
    RunnerPlugins, Version, Wanted,
};
pub use lease::Reaped;
pub(crate) use listen::Notice;
pub use migrate::Migrated;
pub use query::{FinishedLine, JobLine, JobState, LocksHeld, RunnerLine, TypeLine};
pub use queue::Retention;
pub use quota::{Known, Note, Quota};
pub use round::Cycle;
pub use schedules::{DueSchedule, Fired, NewSchedule, ScheduleLine};
pub use scratch::Scratch;

/// What a call to the database came to, where the caller can tell the difference.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database cannot be reached, or did not answer in time: try again later.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// Another transaction holds a lock that the call needs: try again later.
    #[error("another transaction has locked what is to be written: {0}")]
    Locked(String),
    /// The database refused the data that it was given: the same call will fail again.
    #[error("{message}")]
    Refused {
        /// What is wrong, and what to do.
        message: String,
    },
    /// The schema is missing, or not the one that this program needs.
    #[error("{0}")]
    Schema(String),
    /// The database's role lacks a right.
    #[error("{0}")]
    Denied(String),
    /// Anything else that the database says.
    #[error("the database refused a statement: {0}")]
    Database(String),
}

impl Error {
    /// True when trying again later may help.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Locked(_))
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let Some(database) = error.as_database_error() else {
            let unreadable = matches!(
                error,
                sqlx::Error::Decode(_)
                    | sqlx::Error::ColumnDecode { .. }
                    | sqlx::Error::ColumnNotFound(_)
            );
            return if unreadable {
                Self::Schema(format!(
                    "the piecework schema of this database does not fit this program: {error}"
                ))
            } else {
                Self::Unavailable(error.to_string())
            };
        };
        let code = database.code().unwrap_or_default().into_owned();
        let text = database.message().to_owned();
        let hint = database
            .try_downcast_ref::<sqlx::postgres::PgDatabaseError>()
            .and_then(|error| error.hint().or_else(|| error.detail()))
            .map_or_else(String::new, |hint| {
                format!(" ({})", hint.trim_end_matches('.'))
            });
        match code.as_str() {
            "55P03" => return Self::Locked(text),
            "42501" => {
                return Self::Denied(format!(
                    "the database's role may not do this: {text}; docs/sql.md (Grants) lists what it needs"
                ));
            }
            _ => {}
        }
        match code.get(..2).unwrap_or_default() {
            // Data exceptions, broken constraints, limits of the server such as the depth of its stack.
            "22" | "23" | "54" => Self::Refused {
                message: format!("{text}{hint}"),
            },
            // Connection lost, wrong password, no such database, shutting down, too many connections, lock not available.
            "08" | "53" | "55" | "57" | "28" | "3D" | "40" => {
                Self::Unavailable(format!("{text}{hint}"))
            }
            "42" | "3F" => Self::Schema(format!(
                "the piecework schema of this database does not fit this program: {text}; run `piecework migrate`, or point DATABASE_URL at another database"
            )),
            _ => Self::Database(format!("{text}{hint} (SQLSTATE {code})")),
        }
    }
}

/// The queue's database: a few connections.
#[derive(Clone, Debug)]
pub struct Store {
    links: link::Links,
}

impl Store {
    /// Connects only when the first call needs it.
    ///
    /// # Errors
    /// [`Error::Refused`] when the URL is malformed. The message shows nothing of the URL, which may hold a password.
    pub fn open(settings: &Database) -> Result<Self, Error> {
        // sqlx takes any scheme and then looks for a host by that name.
        let scheme =
            settings.url.starts_with("postgres://") || settings.url.starts_with("postgresql://");
        let options = Some(&settings.url)
            .filter(|_| scheme)
            .and_then(|url| PgConnectOptions::from_str(url).ok())
            .ok_or_else(|| Error::Refused {
                message: "DATABASE_URL (or `database.url` in runner.toml) is not a PostgreSQL address such as postgres://user:password@host:5432/name".into(),
            })?
            .application_name("piecework")
            // The planner's estimates for the claim are far too high, and compiling it costs more than running it.
            // Each statement is written so that the plan that knows no arguments is the right one; planning a round anew
            // takes as long as running it.
            .options([("jit", "off"), ("plan_cache_mode", "force_generic_plan")]);
        Ok(Self {
            links: link::Links::new(options, settings),
        })
    }

    /// Closes all connections; waits a moment for those in use.
    pub async fn close(&self) {
        // What is still in use then is dropped with the process; nothing is lost, every statement stands for itself.
        let _ = tokio::time::timeout(Duration::from_millis(200), self.links.close()).await;
    }
}
