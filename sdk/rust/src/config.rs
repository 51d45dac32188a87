//! The plugin's settings.

use crate::bindings::wasi::config::store;

/// A setting of `[plugins.NAME.config]` in runner.toml, as text.
pub fn get(name: &str) -> Option<String> {
    store::get(name).ok().flatten()
}

/// The placeholder of a secret that the plugin is granted. Put it into a header or the query of a request: the host puts the
/// secret in its place, in requests to the secret's own hosts only.
pub fn secret(name: &str) -> Option<String> {
    get(&format!("secrets.{name}"))
}
