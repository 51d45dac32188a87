//! `log`: to the host's log, as data of one record, and into the attempt's output.

use super::HostState;
use crate::engine::bindings::piecework::handler::log;

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
            output.write(format!("{name}: {message}\n").as_bytes(), false);
            room
        };
        // A guest that floods its log fills its own record, not the host's.
        if room {
            let (job, job_type) = (self.job, &*self.job_type);
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
