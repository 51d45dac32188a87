//! Databases that a benchmark, the demo or a test makes for itself and drops again, so that it touches nobody's queue.

use std::str::FromStr;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection};

use super::Error;

/// A database of its own beside the one that a URL names.
#[derive(Debug)]
pub struct Scratch {
    url: String,
    beside: PgConnectOptions,
    name: String,
}

impl Scratch {
    /// Creates an empty database on the server of `url`. The role needs CREATEDB.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn create(url: &str) -> Result<Self, Error> {
        let beside = PgConnectOptions::from_str(url)?;
        // Letters and digits of our own, nothing that anybody passes in.
        let name = format!(
            "piecework_scratch_{}_{:08x}",
            std::process::id(),
            fastrand::u32(..)
        );
        command(&beside, &format!("create database {name}")).await?;
        let (address, options) = url
            .split_once('?')
            .map_or((url, String::new()), |(address, options)| {
                (address, format!("?{options}"))
            });
        let server = address
            .rsplit_once('/')
            .filter(|(server, _)| server.contains("//") && !server.ends_with('/'))
            .map_or(address, |(server, _)| server);
        Ok(Self {
            url: format!("{server}/{name}{options}"),
            beside,
            name,
        })
    }

    /// Where the new database is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Drops the database, and whoever is still connected to it.
    ///
    /// # Errors
    /// As every call to the database.
    pub async fn drop(self) -> Result<(), Error> {
        command(
            &self.beside,
            &format!("drop database if exists {} with (force)", self.name),
        )
        .await
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a database's name cannot be a parameter; this one is made above"
)]
async fn command(server: &PgConnectOptions, text: &str) -> Result<(), Error> {
    let mut connection: PgConnection = server.connect().await?;
    let done = sqlx::raw_sql(sqlx::AssertSqlSafe(text.to_owned()))
        .execute(&mut connection)
        .await;
    let _ = connection.close().await;
    done?;
    Ok(())
}
