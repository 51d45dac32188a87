//! How the process tells what it does: log records on standard error, and the stream of [`Event`]s.

use tracing_subscriber::EnvFilter;

mod events;

pub use events::{Event, Events};

/// How log records look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging to standard error. `RUST_LOG` decides what is logged, `level` where it is not set.
pub fn init(format: LogFormat, level: &str) {
    // Its warnings are whole statements that took a second.
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(format!("sqlx=error,{level}")));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // Twice in one process (tests): the first one stays.
    let _ = match format {
        LogFormat::Text => builder
            .with_target(false)
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}
