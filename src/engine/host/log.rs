//! `log`: to the host's log, as data of one record, and into the attempt's output.

use super::HostState;
use crate::engine::worlds::v0_1::piecework::handler::log;
use crate::job::storable;

impl log::Host for HostState {
    fn log(&mut self, level: log::Level, message: String) -> wasmtime::Result<()> {
        let name = match level {
            log::Level::Debug => "debug",
            log::Level::Info => "info",
            log::Level::Warn => "warn",
            log::Level::Error => "error",
        };
        let room = {
            let mut output = self
                .output
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            let room = output.has_room();
            output.write(format!("{name}: ").as_bytes(), false);
            output.write(message.as_bytes(), false);
            output.write(b"\n", false);
            room
        };
        // A guest that floods its log fills its own record, not the host's.
        if room {
            let (job, job_type) = (self.job, &*self.job_type);
            let message = one_line(&message);
            match level {
                log::Level::Debug => tracing::debug!(target: "guest", %job, job_type, message),
                log::Level::Info => tracing::info!(target: "guest", %job, job_type, message),
                log::Level::Warn => tracing::warn!(target: "guest", %job, job_type, message),
                log::Level::Error => tracing::error!(target: "guest", %job, job_type, message),
            }
        }
        Ok(())
    }
}

/// What one record of the host's log takes of a message, in bytes.
const MAX_LOGGED_BYTES: usize = 4 * 1024;

/// A message as part of one record: a line break would begin what looks like another.
fn one_line(message: &str) -> String {
    let message = storable(message, MAX_LOGGED_BYTES);
    if !message.contains(char::is_control) {
        return message;
    }
    message
        .chars()
        .map(|character| match character {
            character if character.is_control() => character.escape_default().to_string(),
            character => character.to_string(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_of_the_hosts_log_and_not_a_long_one() {
        assert_eq!(one_line("sent 3 mails"), "sent 3 mails");
        assert_eq!(
            one_line("a\n2026-11-30T00:00:00Z ERROR forged\u{1b}[2J"),
            "a\\n2026-11-30T00:00:00Z ERROR forged\\u{1b}[2J"
        );
        let long = one_line(&"x".repeat(1 << 20));
        assert!(long.len() <= MAX_LOGGED_BYTES && long.ends_with("[cut]"));
    }
}
