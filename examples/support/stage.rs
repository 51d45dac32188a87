//! What is set up before an application is played, and taken down after it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use sqlx::postgres::{PgPool, PgPoolOptions};

use super::fleet::{Database, Fleet};

/// Arguments of both applications.
#[derive(Debug, clap::Args)]
pub(crate) struct Common {
    /// Every so many seconds a runner is killed and another started
    #[arg(long, value_name = "SECONDS")]
    kill_every: Option<f64>,
    /// A database to use, which should be empty; a private server when not given
    #[arg(long, value_name = "URL")]
    database: Option<String>,
}

/// A database with the application's tables, and three runners on it.
pub(crate) struct Stage {
    pub(crate) pool: PgPool,
    // In the order in which they end.
    pub(crate) fleet: Fleet,
    _database: Database,
    _work: Work,
}

impl Stage {
    /// The application `name`, whose settings name `usual` as the address of the service that plays at `address`.
    pub(crate) async fn set(
        name: &str,
        common: &Common,
        schema: &'static str,
        (usual, address): (&str, SocketAddr),
    ) -> Result<Self> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("examples")
            .join(name);
        let plugins = super::plugins(name)?;
        let work = Work::new()?;
        let settings = work.0.join("runner.toml");
        let text = std::fs::read_to_string(here.join("runner.toml"))?;
        std::fs::write(&settings, text.replace(usual, &address.to_string()))?;
        let folder = super::built()?.join(format!("{name}-postgres"));
        let database = Database::open(common.database.clone(), &folder)?;
        database.migrate()?;
        let pool = PgPoolOptions::new().connect(&database.url).await?;
        sqlx::raw_sql(schema).execute(&pool).await?;
        let kill_every = common.kill_every.map(Duration::from_secs_f64);
        let fleet = Fleet::start(3, &database.url, settings, plugins, kill_every)?;
        println!(
            "three runners, a service at http://{address}, psql {}",
            database.url
        );
        Ok(Self {
            pool,
            fleet,
            _database: database,
            _work: work,
        })
    }
}

/// A folder for the settings of one run.
struct Work(PathBuf);

impl Work {
    fn new() -> Result<Self> {
        let folder = super::built()?.join(format!("example-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
