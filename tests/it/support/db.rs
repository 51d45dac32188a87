//! A database for each test, migrated, on the server of `DATABASE_URL`, or on a private one that this process starts.

use std::path::Path;
use std::sync::OnceLock;

use piecework::config::{self, Config};
use piecework::dev::{Cluster, Options};
use piecework::job::JobId;
use piecework::store::{Scratch, Store};
use rustix::process::{Pid, test_kill_process};
use sqlx::postgres::PgPool;

/// A migrated database of one test.
pub(crate) struct Db {
    scratch: Option<Scratch>,
    /// The product's own door.
    pub(crate) store: Store,
    /// For looking and meddling.
    pub(crate) pool: PgPool,
}

impl Db {
    /// An empty database, migrated.
    pub(crate) async fn new() -> Self {
        let db = Self::empty().await;
        db.store.migrate().await.unwrap();
        db
    }

    /// An empty database without a schema.
    pub(crate) async fn empty() -> Self {
        let scratch = Scratch::create(&server()).await.unwrap();
        let settings = config::Database {
            url: scratch.url().to_owned(),
            ..config::Database::default()
        };
        let store = Store::open(&settings).unwrap();
        let pool = PgPool::connect_lazy(scratch.url()).unwrap();
        Self {
            scratch: Some(scratch),
            store,
            pool,
        }
    }

    pub(crate) fn url(&self) -> &str {
        self.scratch.as_ref().unwrap().url()
    }

    /// Default settings on this database, with a plugins folder.
    pub(crate) fn config(&self, plugins: &Path) -> Config {
        let mut config = Config::default();
        config.database.url = self.url().to_owned();
        config.runner.plugins_folder = plugins.into();
        config
    }

    /// Enqueues one job with default options.
    pub(crate) async fn enqueue(&self, job_type: &str, payload: &str) -> JobId {
        let job = piecework::store::NewJob {
            job_type: job_type.into(),
            payload: payload.into(),
            ..Default::default()
        };
        self.store.enqueue(&job).await.unwrap()
    }

    /// Enqueues the same job so many times, in one transaction.
    pub(crate) async fn enqueue_times(
        &self,
        times: usize,
        job_type: &str,
        payload: &str,
    ) -> Vec<JobId> {
        let job = format!(r#"{{"job_type": "{job_type}", "payload": {payload}}}"#);
        let jobs = format!("[{}]", vec![job; times].join(","));
        self.store.enqueue_many(&jobs).await.unwrap()
    }

    /// One number that a query returns.
    pub(crate) async fn number(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query)
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }

    /// One text that a query about a job ($1) returns.
    pub(crate) async fn text(&self, query: &'static str, id: JobId) -> Option<String> {
        sqlx::query_scalar(query)
            .bind(id.0)
            .fetch_optional(&self.pool)
            .await
            .unwrap()
            .flatten()
    }

    /// What a call that must fail is told: `piecework.keep(..)`.
    #[expect(clippy::disallowed_methods, reason = "the calls stand in the tests")]
    pub(crate) async fn refusal(&self, call: &str) -> String {
        let text = sqlx::AssertSqlSafe(format!("select {call}"));
        let refused = sqlx::query(text).execute(&self.pool).await;
        refused.unwrap_err().to_string()
    }

    /// The state of a job.
    pub(crate) async fn state(&self, id: JobId) -> String {
        self.text("select state::text from piecework.jobs where id = $1", id)
            .await
            .unwrap_or_default()
    }

    /// Waits until a job has this state.
    pub(crate) async fn becomes(&self, id: JobId, state: &str) {
        let what = format!("job {id} to be {state}");
        super::until(&what, || async {
            (self.state(id).await == state).then_some(())
        })
        .await;
    }

    /// Waits until a query returns this number.
    pub(crate) async fn until(&self, number: i64, query: &'static str) {
        super::until(query, || async {
            (self.number(query).await == number).then_some(())
        })
        .await;
    }

    /// Drops the database. A test that fails leaves it to be looked at.
    pub(crate) async fn drop(mut self) {
        self.pool.close().await;
        self.store.close().await;
        self.scratch.take().unwrap().drop().await.unwrap();
    }
}

fn server() -> String {
    static PRIVATE: OnceLock<(Cluster, String)> = OnceLock::new();
    if let Some(url) = std::env::var("DATABASE_URL")
        .ok()
        .filter(|url| !url.is_empty())
    {
        return url;
    }
    // Kept to the end of the process; the server ends with it. Not shared with others: it would end for them too.
    let (_, url) = PRIVATE.get_or_init(|| {
        let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
        forget_ended(temporary);
        let folder = temporary.join(format!("{FOLDER}{}", std::process::id()));
        let cluster = Cluster::start(&Options {
            folder: Some(folder),
            ..Options::default()
        })
        .unwrap();
        let url = cluster.url().to_owned();
        (cluster, url)
    });
    url.clone()
}

const FOLDER: &str = "postgres-of-";

/// Removes the data folders of processes that have ended.
fn forget_ended(temporary: &Path) {
    for entry in std::fs::read_dir(temporary).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let pid = name
            .strip_prefix(FOLDER)
            .and_then(|pid| pid.parse().ok())
            .and_then(Pid::from_raw);
        if pid.is_some_and(|pid| test_kill_process(pid).is_err()) {
            // Its server may be going down at this moment; then the next one removes it.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
