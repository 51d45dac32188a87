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
    // sqlx warns with whole statements that took a second; wasmtime's part of wasi:http warns of what guests do, as often as
    // they do it (20,000 lines in a second).
    let wanted = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    let wanted = if wanted.is_empty() { level } else { &wanted };
    let filter = EnvFilter::new(format!(
        "sqlx=error,wasmtime_wasi_http=error,wasmtime_wasi=error,{wanted}"
    ));
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
