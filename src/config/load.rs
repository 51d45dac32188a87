//! Reads `runner.toml` and the environment into a [`Config`]. Refuses the whole file when anything is wrong, names the
//! line, and for an unknown key the nearest known one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::source::{Source, line_at};
use super::{Config, PluginDefaults};
use crate::job::JobType;

/// What is wrong with the settings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read the settings file `{}`: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is not TOML, has an unknown key, or a value of the wrong kind.
    #[error("`{}` line {line}: {message}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong and what to write instead.
        message: String,
    },
    /// The values do not fit together.
    #[error("{at}: {message}")]
    Unfit {
        /// The file, and the line where there is one.
        at: String,
        /// What is wrong and what to write instead.
        message: String,
    },
}

impl Config {
    /// Reads the settings: `path`, or `runner.toml` in the current folder when there is one, or the defaults.
    /// `DATABASE_URL` wins over the file.
    ///
    /// # Errors
    /// Names the file and line, and what to do.
    pub fn load(path: Option<&Path>) -> Result<Self, Error> {
        let usual = Path::new("runner.toml");
        let mut config = match path {
            Some(path) => Self::read(path)?,
            None if usual.exists() => Self::read(usual)?,
            None => Self::default(),
        };
        config.take_environment();
        Ok(config)
    }

    /// `DATABASE_URL` wins over the file.
    pub fn take_environment(&mut self) {
        if let Some(url) = std::env::var("DATABASE_URL")
            .ok()
            .filter(|url| !url.is_empty())
        {
            self.database.url = url;
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Unreadable {
            path: path.into(),
            source,
        })?;
        Self::parse(&text, path)
    }

    /// Parses the text of a file; `path` is for messages.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn parse(text: &str, path: &Path) -> Result<Self, Error> {
        let mut config: Self = toml::from_str(text).map_err(|error| Error::Invalid {
            path: path.into(),
            line: line_at(text, error.span().map_or(0, |span| span.start)),
            message: explain(error.message()),
        })?;
        config.source = Source::new(path, text);
        config.recheck()?;
        Ok(config)
    }

    /// Checks the values again, after some were changed.
    pub(super) fn recheck(&self) -> Result<(), Error> {
        self.check()
            .map_err(|(key, message)| self.unfit(&parts(&key), &message))
    }

    /// What is wrong with the value of a key.
    pub(super) fn unfit(&self, key: &[&str], message: &str) -> Error {
        Error::Unfit {
            at: self.source.at(key),
            message: message.to_owned(),
        }
    }

    /// Holds the values against each other. The error is the key and what is wrong with it.
    fn check(&self) -> Result<(), Wrong> {
        let runner = &self.runner;
        let (lease, beat, call) = (runner.lease.0, runner.beat.0, self.database.call_timeout.0);
        if runner.slots == 0 || runner.slots > 10_000 {
            return wrong(
                "runner.slots",
                format!("`runner.slots` is {}, it must be 1 to 10000", runner.slots),
            );
        }
        if beat.is_zero() || beat * 3 > lease {
            return wrong(
                "runner.beat",
                format!(
                    "`runner.beat` is {beat:?}, it must be at most a third of `runner.lease` ({lease:?})"
                ),
            );
        }
        if call.is_zero() || call + beat > lease {
            return wrong(
                "database.call_timeout",
                format!(
                    "`database.call_timeout` is {call:?}, together with `runner.beat` ({beat:?}) it must fit into `runner.lease` ({lease:?})"
                ),
            );
        }
        if self.database.connections < 3 {
            return wrong(
                "database.connections",
                "`database.connections` must be 3 or more: two for claims and results, one for the lease and all else",
            );
        }
        if self.engine.compile_memory.0 < 256 * 1024 * 1024 {
            return wrong(
                "engine.compile_memory",
                "`engine.compile_memory` must be 256MiB or more: the compiler itself takes some",
            );
        }
        if self.engine.compile_timeout.0.is_zero() {
            return wrong(
                "engine.compile_timeout",
                "`engine.compile_timeout` must be more than 0: no large component would be compiled",
            );
        }
        // Enqueue leaves the runners asleep for jobs that are due in 10 s or later; polls are jittered by a fifth.
        if runner.poll.0 > Duration::from_secs(8) {
            return wrong(
                "runner.poll",
                "`runner.poll` must be 8s or less: a sleeping runner finds future jobs by polling",
            );
        }
        for (key, span) in [
            ("runner.reap_interval", runner.reap_interval),
            ("runner.poll", runner.poll),
            ("runner.poll_without_listen", runner.poll_without_listen),
            ("runner.plugins_interval", runner.plugins_interval),
            ("database.connect_timeout", self.database.connect_timeout),
            ("engine.tick", self.engine.tick),
        ] {
            if span.0.is_zero() {
                return wrong(key, format!("`{key}` must be more than 0"));
            }
        }
        if self.engine.tick.0 > Duration::from_secs(1) {
            return wrong(
                "engine.tick",
                "`engine.tick` must be 1s or less: limits are checked that often",
            );
        }
        let stack = self.engine.stack.0;
        if !(64 * 1024..=64 * 1024 * 1024).contains(&stack) {
            return wrong("engine.stack", "`engine.stack` must be 64KiB to 64MiB");
        }
        if self.trust.require_signature && self.trust.keys.is_empty() {
            return wrong(
                "trust.require_signature",
                "`trust.require_signature` needs `trust.keys`: without a key no signature could be good, and nothing would serve",
            );
        }
        for (name, secret) in &self.secrets {
            secret
                .check(name)
                .map_err(|message| (format!("secrets.{name}"), message))?;
        }
        for (name, schedule) in &self.schedules {
            schedule.check(name).map_err(|(key, message)| {
                let at = format!("schedules.{name}");
                (key.map_or(at.clone(), |key| format!("{at}.{key}")), message)
            })?;
        }
        self.check_plugins()
    }

    fn check_plugins(&self) -> Result<(), Wrong> {
        self.check_rules("defaults", &self.defaults)?;
        let mut served = std::collections::BTreeMap::new();
        for (name, own) in &self.plugins {
            let rules = self.plugin(name);
            let at = format!("plugins.{name}");
            for job_type in &rules.job_types {
                if !JobType::fits(job_type) {
                    return wrong(
                        &format!("{at}.job_types"),
                        format!("`{at}.job_types`: a job type has 1 to 200 characters"),
                    );
                }
                if let Some(other) = served.insert(job_type.clone(), name) {
                    return wrong(
                        &at,
                        format!(
                            "`plugins.{other}` and `{at}` both serve the job type `{job_type}`"
                        ),
                    );
                }
            }
            if let Some(secret) = own
                .secrets
                .iter()
                .find(|secret| !self.secrets.contains_key(*secret))
            {
                return wrong(
                    &format!("{at}.secrets"),
                    format!("there is no section `[secrets.{secret}]` for the secret `{secret}`"),
                );
            }
            if let Some(key) = own.config.keys().find(|key| key.starts_with("secrets.")) {
                return wrong(
                    &format!("{at}.config"),
                    format!("the setting `{key}` would hide a secret: begin it otherwise"),
                );
            }
            self.check_rules(&at, &self.defaults.under(own))?;
        }
        Ok(())
    }

    /// Holds one plugin's limits and delays within what makes sense, and under the ceiling.
    fn check_rules(&self, at: &str, rules: &PluginDefaults) -> Result<(), Wrong> {
        let fault = |key: &str, what: &str| {
            wrong(
                &format!("{at}.{key}"),
                format!("`{at}.{key}` must be {what}"),
            )
        };
        let month = Duration::from_secs(30 * 86_400);
        if rules.timeout.0.is_zero() || rules.timeout.0 > month {
            return fault("timeout", "more than 0 and at most 30 days");
        }
        if rules.memory.0 < 64 * 1024 || rules.memory.0 > 4 << 30 {
            return fault("memory", "64KiB to 4GiB");
        }
        for (key, most) in [
            ("result", 16 << 20),
            ("error_text", 1 << 20),
            ("progress", 1 << 20),
        ] {
            let size = match key {
                "result" => rules.result,
                "error_text" => rules.error_text,
                _ => rules.progress,
            };
            if size.0 < 256 || size.0 > most {
                return fault(key, &format!("256B to {most} bytes"));
            }
        }
        if rules.host_call.0 < 64 * 1024 {
            return fault("host_call", "64KiB or more");
        }
        for (key, count) in [
            ("instances", rules.instances),
            ("table_elements", rules.table_elements),
            ("handles", rules.handles),
            ("http.concurrent", rules.http.concurrent),
        ] {
            if count == 0 {
                return fault(key, "more than 0");
            }
        }
        if rules.http.headers.0 < 8 * 1024 {
            return fault("http.headers", "8KiB or more");
        }
        for (key, span) in [
            ("http.connect_timeout", rules.http.connect_timeout),
            ("http.first_byte_timeout", rules.http.first_byte_timeout),
            ("http.timeout", rules.http.timeout),
        ] {
            if span.0.is_zero() {
                return fault(key, "more than 0");
            }
        }
        if rules.starts_per.0 < Duration::from_millis(100)
            || rules.starts_per.0 > Duration::from_secs(7 * 86_400)
        {
            return fault("starts_per", "100 ms to 7 days");
        }
        if !(1.0..=1000.0).contains(&rules.retry_factor) {
            return fault("retry_factor", "1 to 1000");
        }
        if !(0.0..=1.0).contains(&rules.retry_jitter) {
            return fault("retry_jitter", "0 to 1");
        }
        let all = self.engine.memory.0;
        if all > 0 && rules.memory.0 > all {
            return fault(
                "memory",
                &format!("at most `engine.memory` ({all} bytes), which all handlers share"),
            );
        }
        if let Some((key, value, most)) = rules.above(&self.ceiling) {
            return wrong(
                &format!("{at}.{key}"),
                format!(
                    "`{at}.{key}` is {value}, the ceiling is {most}: lower it, or raise {}",
                    self.source.place(&parts(&format!("ceiling.{key}")))
                ),
            );
        }
        Ok(())
    }
}

/// A key and what is wrong with its value.
type Wrong = (String, String);

fn wrong(key: &str, message: impl Into<String>) -> Result<(), Wrong> {
    Err((key.to_owned(), message.into()))
}

/// `plugins.NAME.http.timeout` as its parts; a plugin's name may hold dots.
fn parts(key: &str) -> Vec<&str> {
    key.split('.').collect()
}

/// Makes the parser's message a sentence for the reader; for an unknown key it names the nearest known one.
fn explain(message: &str) -> String {
    let Some(rest) = message.strip_prefix("unknown field `") else {
        return message.lines().collect::<Vec<_>>().join(" ");
    };
    let mut names = rest.split('`');
    let unknown = names.next().unwrap_or_default();
    let known: Vec<&str> = names.skip(1).step_by(2).collect();
    let nearest = known
        .iter()
        .map(|name| (strsim::damerau_levenshtein(name, unknown), *name))
        .min()
        .filter(|(distance, name)| *distance <= name.len().max(unknown.len()) / 2);
    match nearest {
        Some((_, name)) => format!("the key `{unknown}` is not known; did you mean `{name}`?"),
        None => format!(
            "the key `{unknown}` is not known; known here are {}",
            known.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        Config::parse(text, Path::new("runner.toml"))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line_and_the_nearest_known_one() {
        assert_eq!(
            refusal("[runner]\nslots = 3\nplugin_folder = \"x\"\n"),
            "`runner.toml` line 3: the key `plugin_folder` is not known; did you mean `plugins_folder`?"
        );
        assert!(refusal("[runer]\n").contains("did you mean `runner`?"));
        assert!(
            refusal("[plugins.mail]\ntimout = \"3s\"\n")
                .contains("line 2: the key `timout` is not known; did you mean `timeout`?")
        );
        assert!(
            refusal("[engine]\nzzzzzzzzzzzz = 1\n")
                .contains("known here are threads, pooling, tick, stack, memory, gc")
        );
    }

    #[test]
    fn bad_values_are_refused_with_what_to_write() {
        assert!(refusal("[runner]\nlease = 20\n").contains("a duration such as \"30s\""));
        assert!(
            refusal("[defaults]\nmemory = \"many\"\n").contains("not a size such as \"64MiB\"")
        );
        assert!(refusal("[runner]\nbeat = \"10s\"\n").contains("a third of `runner.lease`"));
        assert!(refusal("[runner]\nslots = 0\n").contains("1 to 10000"));
        assert!(
            refusal("[plugins.a]\njob_types=['x']\n[plugins.b]\njob_types=['x']\n")
                .contains("both serve the job type `x`")
        );
        assert!(refusal("[runner\n").starts_with("`runner.toml` line 1: "));
    }

    #[test]
    fn a_plugin_takes_the_defaults_where_it_says_nothing() {
        let text =
            "[defaults]\ntimeout = \"3s\"\n[plugins.mail]\nmemory = \"1MiB\"\nconcurrency = 2\n";
        let rules = Config::parse(text, Path::new("runner.toml"))
            .unwrap()
            .plugin("mail");
        let limits = rules.limits;
        assert_eq!(
            (limits.timeout, limits.memory, limits.fuel, limits.result),
            (Duration::from_secs(3), 1 << 20, None, 1 << 20)
        );
        // As long as the wall-clock limit, unless it is set.
        assert_eq!(limits.cpu, limits.timeout);
        assert_eq!(
            (rules.concurrency, rules.job_types),
            (Some(2), vec!["mail".to_owned()])
        );
    }

    #[test]
    fn what_is_above_the_ceiling_is_refused_with_both_lines() {
        let text =
            "[plugins.mail]\nmemory = \"1MiB\"\ntimeout = \"2h\"\n\n[ceiling]\ntimeout = \"1h\"\n";
        assert_eq!(
            refusal(text),
            "`runner.toml` line 3: `plugins.mail.timeout` is \"2h\", the ceiling is \"1h\": lower it, or raise `timeout` under `[ceiling]` (runner.toml line 6)"
        );
        assert!(
            refusal("[defaults.http]\ncalls = 20000\n")
                .contains("line 2: `defaults.http.calls` is 20000, the ceiling is 10000")
        );
    }

    #[test]
    fn one_handler_must_fit_into_the_memory_of_all() {
        assert!(
            refusal("[engine]\nmemory = \"1MiB\"\n").contains("`defaults.memory` must be at most")
        );
    }

    #[test]
    fn http_rules_and_secrets_are_checked_when_they_are_read() {
        assert!(
            refusal("[plugins.mail.http]\ncalls = 3\nallow = [\"https://a.example/path\"]\n")
                .contains("line 3: ")
        );
        assert!(
            refusal(
                "[plugins.mail.http]\nallow = [{ to = \"https://a.example\", privat = true }]\n"
            )
            .contains("line 2: the key `privat` is not known; did you mean `private`?")
        );
        for (text, reason) in [
            (
                "[plugins.mail]\nsecrets = [\"stripe\"]\n",
                "line 2: there is no section `[secrets.stripe]`",
            ),
            (
                "[secrets.stripe]\nenv = \"A\"\nfile = \"b\"\nhosts = [\"https://a.example\"]\n",
                "line 1: `secrets.stripe` needs one of",
            ),
            (
                "[secrets.stripe]\nenv = \"A\"\n",
                "line 1: `secrets.stripe.hosts` is empty",
            ),
            (
                "[secrets.\"a b\"]\nenv = \"A\"\n",
                "must be of 1 to 64 letters",
            ),
        ] {
            let refusal = refusal(text);
            assert!(refusal.contains(reason), "{refusal}");
        }
    }

    #[test]
    fn places_in_the_file_are_named_with_their_line() {
        let text = "[plugins.a]\n[plugins.mail.http]\ncalls = 3\nallow = []\n";
        let config = Config::parse(text, Path::new("runner.toml")).unwrap();
        assert_eq!(
            config.plugin("mail").http.allow_at,
            "`allow` under `[plugins.mail.http]` (runner.toml line 4)"
        );
        // Nothing to point at: where it belongs.
        assert_eq!(
            config.plugin("a").http.allow_at,
            "`allow` under `[plugins.a.http]` (runner.toml)"
        );
        assert_eq!(
            Config::default().plugin("mail").http.allow_at,
            "`allow` under `[plugins.mail.http]` (runner.toml)"
        );
    }

    #[test]
    fn secrets_are_read_from_files_and_never_shown() {
        let folder = std::env::temp_dir().join(format!("piecework-secrets-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("stripe");
        let text = format!(
            "[secrets.stripe]\nfile = {:?}\nhosts = [\"https://api.stripe.com\"]\n[plugins.mail]\nsecrets = [\"stripe\"]\n",
            file
        );
        let mut config = Config::parse(&text, Path::new("runner.toml")).unwrap();
        let missing = config.open_secrets().unwrap_err().to_string();
        assert!(missing.starts_with("`runner.toml` line 1: cannot read the file"));
        for bad in ["", "  \n", "two\nlines"] {
            std::fs::write(&file, bad).unwrap();
            let refusal = config.open_secrets().unwrap_err().to_string();
            assert!(!refusal.contains("lines"), "{refusal}");
        }
        std::fs::write(&file, "sk_live_4711\n").unwrap();
        config.open_secrets().unwrap();
        let rules = config.plugin("mail");
        assert_eq!(rules.secrets[0].value.reveal(), "sk_live_4711");
        assert!(!format!("{config:?}{rules:?}").contains("4711"));
        // Nobody else has it.
        assert_eq!(config.plugin("other").secrets, []);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
