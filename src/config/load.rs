//! Reads `runner.toml` and the environment into a [`Config`]. Refuses the whole file when anything is wrong, names the
//! line, and for an unknown key the nearest known one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Config;

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
    #[error("`{}`: {message}", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
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
        if let Some(url) = std::env::var("DATABASE_URL")
            .ok()
            .filter(|url| !url.is_empty())
        {
            config.database.url = url;
        }
        Ok(config)
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
        let config: Self = toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = text.as_bytes()[..start]
                .iter()
                .filter(|byte| **byte == b'\n')
                .count()
                + 1;
            Error::Invalid {
                path: path.into(),
                line,
                message: explain(error.message()),
            }
        })?;
        config.check().map_err(|message| Error::Unfit {
            path: path.into(),
            message,
        })?;
        Ok(config)
    }

    /// Holds the values against each other.
    fn check(&self) -> Result<(), String> {
        let runner = &self.runner;
        let (lease, beat, call) = (runner.lease.0, runner.beat.0, self.database.call_timeout.0);
        if runner.slots == 0 || runner.slots > 10_000 {
            return Err(format!(
                "`runner.slots` is {}, it must be 1 to 10000",
                runner.slots
            ));
        }
        if beat.is_zero() || beat * 3 > lease {
            return Err(format!(
                "`runner.beat` is {beat:?}, it must be at most a third of `runner.lease` ({lease:?})"
            ));
        }
        if call.is_zero() || call + beat > lease {
            return Err(format!(
                "`database.call_timeout` is {call:?}, together with `runner.beat` ({beat:?}) it must fit into `runner.lease` ({lease:?})"
            ));
        }
        if self.database.connections < 3 {
            return Err("`database.connections` must be 3 or more: two for claims and results, one for the lease and all else".into());
        }
        // Enqueue leaves the runners asleep for jobs that are due in 10 s or later; polls are jittered by a fifth.
        if runner.poll.0 > Duration::from_secs(8) {
            return Err(
                "`runner.poll` must be 8s or less: a sleeping runner finds future jobs by polling"
                    .into(),
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
                return Err(format!("`{key}` must be more than 0"));
            }
        }
        if self.engine.tick.0 > Duration::from_secs(1) {
            return Err("`engine.tick` must be 1s or less: limits are checked that often".into());
        }
        let mut served = std::collections::BTreeMap::new();
        for name in self.plugins.keys() {
            let rules = self.plugin(name);
            let at = format!("plugins.{name}");
            for job_type in &rules.job_types {
                if job_type.is_empty() || job_type.chars().count() > 200 {
                    return Err(format!(
                        "`{at}.job_types`: a job type has 1 to 200 characters"
                    ));
                }
                if let Some(other) = served.insert(job_type.clone(), name) {
                    return Err(format!(
                        "`plugins.{other}` and `{at}` both serve the job type `{job_type}`"
                    ));
                }
            }
            check_rules(&at, &rules)?;
        }
        check_rules("defaults", &self.plugin(""))
    }
}

/// Holds one plugin's limits and delays within what makes sense.
fn check_rules(at: &str, rules: &super::PluginRules) -> Result<(), String> {
    let year = Duration::from_secs(365 * 86_400);
    if rules.limits.timeout.is_zero() || rules.limits.timeout > year {
        return Err(format!(
            "`{at}.timeout` must be more than 0 and at most a year"
        ));
    }
    if rules.limits.memory < 64 * 1024 || rules.limits.memory > 4 << 30 {
        return Err(format!("`{at}.memory` must be 64KiB to 4GiB"));
    }
    let backoff = &rules.backoff;
    if !(1.0..=1000.0).contains(&backoff.factor) {
        return Err(format!("`{at}.retry_factor` must be 1 to 1000"));
    }
    if !(0.0..=1.0).contains(&backoff.jitter) {
        return Err(format!("`{at}.retry_jitter` must be 0 to 1"));
    }
    if backoff.max > year || backoff.base > year {
        return Err(format!(
            "`{at}.retry_base` and `{at}.retry_max` must be at most a year"
        ));
    }
    Ok(())
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
    use crate::config::Limits;

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
                .contains("known here are threads, pooling, tick, gc")
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
        assert_eq!(
            rules.limits,
            Limits {
                timeout: Duration::from_secs(3),
                memory: 1 << 20,
                fuel: None
            }
        );
        assert_eq!(
            (rules.concurrency, rules.job_types),
            (Some(2), vec!["mail".to_owned()])
        );
    }
}
