//! Secrets: named in `runner.toml`, read from the environment or a file, never written anywhere.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Config;
use super::load::Error;
use crate::policy::Target;

/// A secret longer than this is a mistake: it has to fit into a header. In bytes.
const MAX_SECRET_BYTES: usize = 16 * 1024;

/// `[secrets.NAME]`: where a secret's value is, and which hosts it belongs to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SecretSettings {
    /// The environment variable that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// The file that holds it; white space at the end is not part of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Where it may be sent: the same patterns as in `allow`.
    pub hosts: Vec<Target>,
}

/// A secret that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Secret {
    /// The name of its section.
    pub name: String,
    /// The secret itself.
    pub value: Hidden,
    /// Where it may be sent.
    pub hosts: Vec<Target>,
}

/// Text that no log, error or debug output shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Hidden(String);

impl Hidden {
    /// Hides a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself; whoever asks takes care that it is not shown.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

impl Config {
    /// Reads the values of all secrets that some plugin is granted. Until then plugins have none.
    ///
    /// # Errors
    /// Names the secret whose variable or file is missing, and never shows a value.
    pub fn open_secrets(&mut self) -> Result<(), Error> {
        self.open(SecretSettings::read)
    }

    /// The same for a trial that makes no call: what cannot be read is not missed.
    ///
    /// # Errors
    /// Never: something stands in for what cannot be read.
    pub fn open_secrets_for_trial(&mut self) -> Result<(), Error> {
        let stand_in = Hidden::new("stand-in");
        self.open(|settings| Ok(settings.read().unwrap_or_else(|_| stand_in.clone())))
    }

    fn open(
        &mut self,
        read: impl Fn(&SecretSettings) -> Result<Hidden, String>,
    ) -> Result<(), Error> {
        let granted = self.plugins.values().flat_map(|plugin| &plugin.secrets);
        let mut opened = BTreeMap::new();
        for name in granted {
            let Some(settings) = self.secrets.get(name) else {
                continue;
            };
            let value =
                read(settings).map_err(|message| self.unfit(&["secrets", name], &message))?;
            opened.insert(
                name.clone(),
                Secret {
                    name: name.clone(),
                    value,
                    hosts: settings.hosts.clone(),
                },
            );
        }
        self.opened = opened;
        Ok(())
    }
}

impl SecretSettings {
    /// Holds the keys against each other.
    pub(super) fn check(&self, name: &str) -> Result<(), String> {
        let plain = |character: char| character.is_ascii_alphanumeric() || character == '_';
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
            return Err(format!(
                "the secret's name `{name}` must be of 1 to 64 letters, digits and `_`"
            ));
        }
        if self.env.is_some() == self.file.is_some() {
            return Err(format!(
                "`secrets.{name}` needs one of `env` (an environment variable) and `file`"
            ));
        }
        if self.hosts.is_empty() {
            return Err(format!(
                "`secrets.{name}.hosts` is empty: name the hosts that the secret belongs to, such as \"https://api.example.com\""
            ));
        }
        let anywhere = |host: &&Target| {
            let host = host.to_string();
            host == "*" || host.ends_with("://*") || host.contains("://*:")
        };
        if let Some(host) = self.hosts.iter().find(anywhere) {
            return Err(format!(
                "`secrets.{name}.hosts` has `{host}`, which is any host: name those that the secret belongs to"
            ));
        }
        Ok(())
    }

    fn read(&self) -> Result<Hidden, String> {
        let (from, text) = match (&self.env, &self.file) {
            (Some(variable), _) => (
                format!("the environment variable `{variable}`"),
                std::env::var(variable).map_err(|error| match error {
                    std::env::VarError::NotPresent => {
                        format!("the environment variable `{variable}` is not set")
                    }
                    std::env::VarError::NotUnicode(_) => {
                        format!("the environment variable `{variable}` is not UTF-8")
                    }
                })?,
            ),
            (None, Some(path)) => (
                format!("the file `{}`", path.display()),
                read_file(path)?.trim_end().to_owned(),
            ),
            (None, None) => return Err("neither `env` nor `file` is given".into()),
        };
        if text.is_empty() {
            return Err(format!("{from} is empty"));
        }
        if text.len() > MAX_SECRET_BYTES {
            return Err(format!(
                "{from} has more than {MAX_SECRET_BYTES} bytes, which is no secret for a header"
            ));
        }
        // It goes into headers, where a line break would begin another one.
        if text.chars().any(char::is_control) {
            return Err(format!(
                "{from} has a control character or a line break in it"
            ));
        }
        Ok(Hidden(text))
    }
}

fn read_file(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read the file `{}`: {error}", path.display()))
}
