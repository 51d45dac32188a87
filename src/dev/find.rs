//! Finds the server's binaries: named by the user, installed, or in the cache.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use rustix::process::Signal;

use super::user::ServerUser;

/// The oldest major version that the schema and the settings are tested with.
const OLDEST: u32 = 13;

const WAYS_OUT: &str = "three ways out: install the distribution's postgresql package (or run scripts/setup.sh); \
    set PIECEWORK_PG_BIN to a folder that holds initdb and postgres; set DATABASE_URL to a database of your own";

/// A folder with `initdb` and `postgres`, both tried with `--version`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    /// The folder.
    pub bin: PathBuf,
    /// The major version, for example 15.
    pub major: u32,
    /// How the folder was found.
    pub source: Source,
}

/// How the binaries were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// `PIECEWORK_PG_BIN` names them.
    Variable,
    /// On `PATH`, or where a distribution, Homebrew or Postgres.app puts them.
    Installed,
    /// A copy that was fetched into the cache folder.
    Cache,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Variable => "PIECEWORK_PG_BIN",
            Self::Installed => "installed",
            Self::Cache => "cache",
        })
    }
}

/// Where to look; [`Environment::current`] is the process's own, tests make others.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `PIECEWORK_PG_BIN`. When set, nothing else is looked at.
    pub pg_bin: Option<PathBuf>,
    /// `PATH`.
    pub path: Option<OsString>,
    /// Stands before the well-known places: `/`.
    pub root: PathBuf,
    /// Holds the `postgres-*` folders of fetched copies.
    pub cache: Option<PathBuf>,
}

impl Environment {
    /// Reads the process's environment.
    #[must_use]
    pub fn current() -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let absolute = |name| {
            variable(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        let cache = if rustix::process::geteuid().is_root() {
            // Not below /root: the user that the server drops to could not reach it.
            Some(PathBuf::from("/var/cache/piecework"))
        } else {
            absolute("XDG_CACHE_HOME")
                .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
                .map(|cache| cache.join("piecework"))
        };
        Self {
            pg_bin: variable("PIECEWORK_PG_BIN").map(PathBuf::from),
            path: variable("PATH"),
            root: PathBuf::from("/"),
            cache,
        }
    }

    /// Folders worth a try, best first.
    fn candidates(&self) -> Vec<(PathBuf, Source)> {
        if let Some(bin) = &self.pg_bin {
            return vec![(bin.clone(), Source::Variable)];
        }
        // Debian and Ubuntu keep initdb and postgres off PATH, so PATH alone finds nothing there.
        let mut installed: Vec<PathBuf> = self
            .path
            .iter()
            .flat_map(std::env::split_paths)
            .filter(|folder| folder.is_absolute())
            .collect();
        installed.extend(versions(&self.root.join("usr/lib/postgresql"), ""));
        installed.extend(versions(&self.root.join("usr"), "pgsql-"));
        installed.extend(versions(&self.root.join("opt/homebrew/opt"), "postgresql@"));
        installed.extend(versions(&self.root.join("usr/local/opt"), "postgresql@"));
        installed.push(
            self.root
                .join("Applications/Postgres.app/Contents/Versions/latest/bin"),
        );
        let cached = self
            .cache
            .iter()
            .flat_map(|cache| versions(cache, "postgres-"));

        let mut found: Vec<_> = installed
            .into_iter()
            .map(|bin| (bin, Source::Installed))
            .collect();
        found.extend(cached.map(|bin| (bin, Source::Cache)));
        found.retain(|(bin, _)| bin.join("postgres").is_file());
        // A link on PATH (/usr/local/bin/postgres) often has no psql beside it, sometimes no initdb: go where it leads.
        for (bin, _) in &mut found {
            let linked = bin.join("postgres");
            if linked.is_symlink()
                && let Ok(real) = linked.canonicalize()
                && let Some(folder) = real.parent()
            {
                folder.clone_into(bin);
            }
        }
        found
    }
}

/// Finds the binaries in the process's environment: `PIECEWORK_PG_BIN`, then installed ones, then a cached copy.
///
/// # Errors
///
/// Nothing usable was found; the message says what was looked at and left, and names the three ways out.
pub fn find_binaries() -> anyhow::Result<Binaries> {
    find_in(&Environment::current())
}

/// [`find_binaries`] in a given environment.
///
/// # Errors
///
/// As [`find_binaries`].
pub fn find_in(environment: &Environment) -> anyhow::Result<Binaries> {
    first(environment, |_| true)
}

/// The binaries for a folder that may hold data already: those that match it, if there are any, so that a newer
/// PostgreSQL installed beside the old one does not make the jobs disappear.
pub(super) fn find_for(environment: &Environment, folder: &Path) -> anyhow::Result<Binaries> {
    let best = find_in(environment)?;
    let has_data = |binaries: &Binaries| super::layout::data(folder, binaries.major).exists();
    let present = super::layout::majors(folder);
    if has_data(&best) || present.is_empty() {
        return Ok(best);
    }
    if let Ok(matching) = first(environment, has_data) {
        return Ok(matching);
    }
    tracing::warn!(folder = %folder.display(), ?present, chosen = best.major,
        "the folder holds data of another major version of PostgreSQL: left alone, an empty cluster goes beside it");
    Ok(best)
}

fn first(
    environment: &Environment,
    wanted: impl Fn(&Binaries) -> bool,
) -> anyhow::Result<Binaries> {
    let mut left = Vec::new();
    for (bin, source) in environment.candidates() {
        match probe(&bin, source) {
            Ok(binaries) if wanted(&binaries) => return Ok(binaries),
            Ok(_) => {}
            Err(error) => left.push(format!("{}: {error:#}", bin.display())),
        }
    }
    if left.is_empty() {
        bail!("no PostgreSQL {OLDEST} or newer was found for the private database; {WAYS_OUT}");
    }
    bail!(
        "no usable PostgreSQL {OLDEST} or newer for the private database ({}); {WAYS_OUT}",
        left.join("; ")
    );
}

/// Runs the two programs as the user that the server will run as, which proves that this user reaches them and that
/// they find their libraries: a copied `initdb` may lack libpq, which `postgres` does not need.
fn probe(bin: &Path, source: Source) -> anyhow::Result<Binaries> {
    let bin = std::path::absolute(bin).context("resolve the folder")?;
    let user = ServerUser::choose(None)?;
    version(&bin, "initdb", &user)?;
    let text = version(&bin, "postgres", &user)?;
    let major = major(&text).with_context(|| format!("no version in {:?}", text.trim()))?;
    ensure!(major >= OLDEST, "PostgreSQL {major} is older than {OLDEST}");
    Ok(Binaries { bin, major, source })
}

fn version(bin: &Path, program: &str, user: &ServerUser) -> anyhow::Result<String> {
    let output = user
        .command(&bin.join(program), Signal::KILL)
        .arg("--version")
        .output()
        .with_context(|| format!("run {program} as {user}"))?;
    ensure!(
        output.status.success(),
        "{program} --version as {user} ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The major version in the output of `postgres --version`: `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`.
fn major(output: &str) -> Option<u32> {
    let version = output
        .split_whitespace()
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    version
        .split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

/// The `bin` folders of `<parent>/<prefix><version>`, highest version first.
fn versions(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let mut found: Vec<(Vec<u32>, PathBuf)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let version = name.strip_prefix(prefix)?;
            version.starts_with(|c: char| c.is_ascii_digit()).then(|| {
                let numbers = version
                    .split(|c: char| !c.is_ascii_digit())
                    .filter_map(|part| part.parse().ok());
                (numbers.collect(), entry.path().join("bin"))
            })
        })
        .collect();
    found.sort();
    found.into_iter().rev().map(|(_, bin)| bin).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read() {
        assert_eq!(
            major("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"),
            Some(15)
        );
        assert_eq!(major("postgres (PostgreSQL) 19beta1\n"), Some(19));
        assert_eq!(major("postgres (PostgreSQL) 9.6.24\n"), Some(9));
        assert_eq!(major("postgres\n"), None);
    }
}
