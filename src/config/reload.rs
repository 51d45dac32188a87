//! What of new settings can take the place of the old ones while a runner works, and what changed, named by its keys.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::load::Error;
use super::{Config, Secret};

impl Config {
    /// The file that these settings were read from, if there is one.
    pub fn file(&self) -> Option<&Path> {
        let path = self.source.path();
        (!path.as_os_str().is_empty()).then_some(path)
    }

    /// Whether these settings were read from this very text.
    pub fn is_text(&self, text: &str) -> bool {
        self.source.text() == text
    }

    /// The files of the secrets that some plugin is granted.
    pub fn secret_files(&self) -> Vec<PathBuf> {
        let granted = self.plugins.values().flat_map(|plugin| &plugin.secrets);
        let mut files: Vec<_> = granted
            .filter_map(|name| self.secrets.get(name)?.file.clone())
            .collect();
        files.sort();
        files.dedup();
        files
    }

    /// Takes from the settings that hold now what cannot change while a runner works, and returns the keys where that makes a
    /// difference: the connections, the engine and its pool, the lease's length and the slots are made once.
    ///
    /// # Errors
    /// When the rest does not fit to what stays.
    pub fn stay_with(&mut self, now: &Self) -> Result<Vec<String>, Error> {
        let wanted = self.clone();
        self.database = now.database.clone();
        self.engine = now.engine.clone();
        self.http = now.http.clone();
        // The pool of instances is made for these.
        self.ceiling.instances = now.ceiling.instances;
        self.ceiling.table_elements = now.ceiling.table_elements;
        let (own, old) = (&mut self.runner, &now.runner);
        own.name.clone_from(&old.name);
        own.slots = old.slots;
        own.plugins_folder.clone_from(&old.plugins_folder);
        own.plugins_from = old.plugins_from;
        own.lease = old.lease;
        own.listen = old.listen;
        self.recheck()?;
        Ok(self.changes(&wanted))
    }

    /// The keys whose values differ, in order, such as `plugins.mail.timeout`; never a value. A secret that was read anew is named by
    /// its section.
    pub fn changes(&self, other: &Self) -> Vec<String> {
        let mut keys = Vec::new();
        differ("", &self.table(), &other.table(), &mut keys);
        let value = |of: &Self, name: &str| {
            of.opened
                .get(name)
                .map(|Secret { value, .. }| value.clone())
        };
        for name in other
            .secrets
            .keys()
            .filter(|name| self.secrets.contains_key(*name))
        {
            let (before, after) = (value(self, name), value(other, name));
            if before.is_some() && after.is_some() && before != after {
                keys.push(format!("secrets.{name}"));
            }
        }
        keys.sort();
        keys.dedup();
        keys
    }

    fn table(&self) -> Table {
        Table::try_from(self).unwrap_or_default()
    }
}

fn differ(at: &str, one: &Table, other: &Table, keys: &mut Vec<String>) {
    let nothing = Table::new();
    let mut names: Vec<_> = one.keys().chain(other.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let key = if at.is_empty() {
            name.clone()
        } else {
            format!("{at}.{name}")
        };
        match (one.get(name), other.get(name)) {
            (Some(Value::Table(one)), Some(Value::Table(other))) => {
                differ(&key, one, other, keys);
            }
            // A section that is new or gone: by the keys that it has.
            (Some(Value::Table(table)), None) | (None, Some(Value::Table(table))) => {
                differ(&key, table, &nothing, keys);
            }
            (one, other) if one != other => keys.push(key),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Config {
        Config::parse(text, Path::new("runner.toml")).unwrap()
    }

    #[test]
    fn changes_are_named_by_their_keys() {
        let old = read("[runner]\npoll = \"2s\"\n[plugins.a]\ntimeout = \"3s\"\n");
        assert!(
            old.changes(&read(
                "# \n[runner]\npoll = \"2s\"\n[plugins.a]\ntimeout = \"3s\""
            ))
            .is_empty()
        );
        let new = read(
            "[runner]\npoll = \"3s\"\n[plugins.a.config]\npassword = \"hush\"\n[schedules.s]\nevery = \"1h\"\n",
        );
        let changes = old.changes(&new).join(" ");
        assert!(
            changes.starts_with(
                "plugins.a.config.password plugins.a.timeout runner.poll schedules.s."
            ),
            "{changes}"
        );
        assert!(!changes.contains("hush"));
    }

    #[test]
    fn what_cannot_change_stays_and_is_named() {
        let now = read("[runner]\nlease = \"20s\"\n");
        let mut new = read(
            "[runner]\nslots = 3\nlease = \"60s\"\nbeat = \"2s\"\n[engine]\ngc = true\n[ceiling]\ninstances = 77\n",
        );
        let stays = new.stay_with(&now).unwrap();
        assert_eq!(
            stays,
            [
                "ceiling.instances",
                "engine.gc",
                "runner.lease",
                "runner.slots"
            ]
        );
        assert_eq!(now.changes(&new), ["runner.beat"]);
        // A beat that fits to a lease that does not come.
        let mut new = read("[runner]\nlease = \"60s\"\nbeat = \"20s\"\n");
        let why = new.stay_with(&now).unwrap_err().to_string();
        assert!(
            why.starts_with("`runner.toml` line 3: `runner.beat` is 20s"),
            "{why}"
        );
    }
}
