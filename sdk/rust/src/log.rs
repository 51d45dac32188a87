//! Text for the host's log and the job's record: [`info!`](crate::info) and its like.

pub use crate::bindings::piecework::handler::log::Level;

/// Logs a message.
pub fn log(level: Level, message: &str) {
    crate::bindings::piecework::handler::log::log(level, message);
}

/// Logs at the level debug, like `format!`.
#[macro_export]
macro_rules! debug {
    ($($text:tt)*) => { $crate::log::log($crate::log::Level::Debug, &::std::format!($($text)*)) };
}

/// Logs at the level info, like `format!`.
#[macro_export]
macro_rules! info {
    ($($text:tt)*) => { $crate::log::log($crate::log::Level::Info, &::std::format!($($text)*)) };
}

/// Logs at the level warn, like `format!`.
#[macro_export]
macro_rules! warn {
    ($($text:tt)*) => { $crate::log::log($crate::log::Level::Warn, &::std::format!($($text)*)) };
}

/// Logs at the level error, like `format!`.
#[macro_export]
macro_rules! error {
    ($($text:tt)*) => { $crate::log::log($crate::log::Level::Error, &::std::format!($($text)*)) };
}
