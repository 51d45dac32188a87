//! `wasi:config/store`: the plugin's settings, and a placeholder for each secret that it is granted.

use super::HostState;
use crate::engine::worlds::v0_1::wasi::config::store;

/// What the name of a secret's placeholder begins with.
const SECRETS: &str = "secrets.";

impl store::Host for HostState {
    fn get(&mut self, key: String) -> wasmtime::Result<Result<Option<String>, store::Error>> {
        let value = match key.strip_prefix(SECRETS) {
            Some(secret) => self
                .http
                .session()
                .placeholders()
                .find(|(name, _)| *name == secret)
                .map(|(_, placeholder)| placeholder.to_owned()),
            None => self.config.get(&key).cloned(),
        };
        Ok(Ok(value))
    }

    fn get_all(&mut self) -> wasmtime::Result<Result<Vec<(String, String)>, store::Error>> {
        let settings = self
            .config
            .iter()
            .map(|(key, value)| (key.clone(), value.clone()));
        let secrets = self
            .http
            .session()
            .placeholders()
            .map(|(name, placeholder)| (format!("{SECRETS}{name}"), placeholder.to_owned()));
        Ok(Ok(settings.chain(secrets).collect()))
    }
}
