//! New settings for plugins that are loaded: each whose rules change is made anew of the same handler, and all of them take the place
//! of the old ones at once. Attempts that run keep the plugin that they began with.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::load::trusted;
use super::signature::read_signature;
use super::{Plugin, Registry, Shelf, Source};
use crate::config::{Config, PluginRules};
use crate::engine::Engine;
use crate::store::Digest;

/// A plugin that new settings change.
#[derive(Debug)]
pub struct Refit {
    old: Arc<Plugin>,
    name: String,
    rules: PluginRules,
    /// Where its bytes are, for a file.
    path: Option<PathBuf>,
    bytes: Option<Vec<u8>>,
}

/// Plugins under new settings, by the address of the old ones.
#[derive(Debug)]
pub struct Refitted(Vec<(Arc<Plugin>, Arc<Plugin>)>);

impl Shelf {
    /// The plugins that these settings change.
    pub fn refits(&self, config: &Config) -> Vec<Refit> {
        let files = self.files().map(|(plugin, path)| {
            let name = plugin.name.clone();
            (plugin, name, Some(path))
        });
        let releases = self.releases().map(|(job_type, plugin)| {
            let name = config.plugin_of(job_type.as_str()).to_owned();
            (plugin, name, None)
        });
        let mut refits: Vec<Refit> = Vec::new();
        for (old, name, path) in files.chain(releases) {
            let rules = config.plugin(&name);
            let known = refits.iter().any(|refit| Arc::ptr_eq(&refit.old, old));
            if known || old.name == name && old.rules == rules {
                continue;
            }
            refits.push(Refit {
                old: old.clone(),
                name,
                rules,
                path: path.cloned(),
                bytes: None,
            });
        }
        refits
    }

    /// Puts the new plugins in the place of the old ones. What was refused is tried again.
    pub fn commit(&mut self, refitted: &Refitted, registry: &Registry) {
        let new: HashMap<_, _> = refitted
            .0
            .iter()
            .map(|(old, new)| (Arc::as_ptr(old), new.clone()))
            .collect();
        self.swap(&|plugin| {
            if let Some(new) = new.get(&Arc::as_ptr(plugin)) {
                *plugin = new.clone();
            }
        });
        self.publish(registry);
    }
}

impl Refit {
    /// The component that it needs from the database, to be [`given`](Self::give) before it is prepared.
    pub fn needs(&self) -> Option<Digest> {
        let needs = self.compiles() || self.verifies();
        (needs && self.old.source == Source::Fleet).then(|| self.old.handler.digest())
    }

    /// Gives it what the database has.
    pub fn give(&mut self, bytes: Option<Vec<u8>>) {
        self.bytes = bytes;
    }

    /// Fuel is counted by other machine code.
    fn compiles(&self) -> bool {
        self.rules.limits.fuel.is_some() != self.old.rules.limits.fuel.is_some()
    }

    /// Others may sign, or all must now.
    fn verifies(&self) -> bool {
        let (new, old) = (&self.rules.trust, &self.old.rules.trust);
        let asks = new.require_signature || !new.keys.is_empty();
        asks && (new.keys != old.keys || new.require_signature != old.require_signature)
    }

    fn make(&self, engine: &Engine) -> Result<Arc<Plugin>, String> {
        let (rules, old) = (&self.rules, &self.old);
        let pins = rules.trust.pins.as_ref();
        if pins.is_some_and(|pins| !pins.0.contains(&old.handler.digest())) {
            return Err(format!(
                "{} pins another component than the version {} that serves: bring in that one first, or pin both meanwhile",
                rules.trust.pins_at,
                old.handler.version()
            ));
        }
        let bytes = if self.compiles() || self.verifies() {
            self.component()?
        } else {
            Vec::new()
        };
        if self.verifies() {
            self.verify(&bytes)?;
        }
        let handler = if self.compiles() {
            let handler = engine.compile(&bytes, rules.limits.fuel.is_some());
            Arc::new(handler.map_err(|refusal| refusal.to_string())?)
        } else {
            old.handler.clone()
        };
        // Nothing else decides about the start.
        let same = rules.limits == old.rules.limits && rules.config == old.rules.config;
        if !same {
            engine
                .check_start(&self.name, &handler, rules)
                .map_err(|refusal| refusal.to_string())?;
        }
        Ok(Arc::new(Plugin {
            source: old.source,
            name: self.name.clone(),
            signature: old.signature.clone(),
            grants: engine.grants_after(&old.grants, &self.name, rules),
            handler,
            rules: rules.clone(),
        }))
    }

    /// The bytes of what serves, which may have been replaced meanwhile by what cannot.
    fn component(&self) -> Result<Vec<u8>, String> {
        let digest = self.old.handler.digest();
        let read = || self.path.as_ref().and_then(|path| std::fs::read(path).ok());
        let bytes = self.bytes.clone().or_else(read);
        bytes
            .filter(|bytes| crate::engine::digest(bytes) == digest)
            .ok_or_else(|| {
                let must = if self.verifies() {
                    "its signature must be looked at anew"
                } else {
                    "with or without `fuel` it must be compiled anew"
                };
                let version = self.old.handler.version();
                format!("{must}, and the version {version} that serves is not there any more")
            })
    }

    fn verify(&self, bytes: &[u8]) -> Result<(), String> {
        let rules = &self.rules;
        let signature = match &self.path {
            Some(path) => read_signature(path, &rules.trust),
            None => Ok(self.old.signature.clone()),
        };
        signature
            .and_then(|signature| trusted(bytes, signature.as_deref(), rules))
            .map(drop)
            .map_err(|refusal| refusal.to_string())
    }
}

/// Makes the plugins anew, and starts those whose limits change; computes, so it belongs on a blocking thread.
///
/// # Errors
/// Names the plugin that does not start under the new settings, and says why.
pub fn refit(refits: &[Refit], engine: &Engine) -> Result<Refitted, String> {
    let made = refits.iter().map(|refit| {
        let new = refit.make(engine).map_err(|reason| {
            format!(
                "the plugin `{}` cannot serve with them: {reason}",
                refit.name
            )
        })?;
        Ok((refit.old.clone(), new))
    });
    made.collect::<Result<_, String>>().map(Refitted)
}
