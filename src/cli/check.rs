//! `piecework plugins check`: whether files can serve, as a host would decide it, and if not, what is wrong and what to do.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Ending, print};
use crate::config::Config;
use crate::engine::{Engine, Handler, Item, Lack, Refusal, Shape, digest, hex};
use crate::plugins::{read_signature, vet};

/// What is found out about a file.
#[derive(Debug, Default, Serialize)]
struct Answer {
    file: PathBuf,
    /// Whether it can serve.
    ok: bool,
    /// The plugin's name.
    name: String,
    job_types: Vec<String>,
    digest: Option<String>,
    size: Option<usize>,
    /// Whether it had been compiled before.
    #[serde(skip_serializing_if = "Option::is_none")]
    cached: Option<bool>,
    /// Whether its digest is pinned.
    pinned: bool,
    /// The trusted comment of its signature, when that was held against keys.
    signed: Option<String>,
    /// The world that it was built for.
    world: Option<String>,
    imports: Vec<Item>,
    exports: Vec<Item>,
    /// The imports that this host does not offer.
    unknown_imports: Vec<Lack>,
    /// Cause and remedy in one line.
    reason: Option<String>,
    /// Why it cannot serve.
    cause: Option<String>,
    /// What to do.
    remedy: Option<String>,
}

/// Checks files and prints what was found; fails when one cannot serve.
pub(super) fn run(
    engine: &Engine,
    config: &Config,
    files: &[PathBuf],
    json: bool,
) -> anyhow::Result<Ending> {
    let answers: Vec<_> = files
        .iter()
        .map(|file| Answer::about(file, engine, config))
        .collect();
    if json {
        print::json(&answers)?;
    } else {
        for line in answers.iter().flat_map(Answer::lines) {
            print::line(&line)?;
        }
    }
    Ok(if answers.iter().all(|answer| answer.ok) {
        Ending::Done
    } else {
        Ending::Failed
    })
}

impl Answer {
    fn about(file: &Path, engine: &Engine, config: &Config) -> Self {
        // As it would be loaded from the plugins folder.
        let name = file.file_stem().and_then(|name| name.to_str());
        let name = name.unwrap_or("handler");
        let mut answer = Self {
            file: file.to_owned(),
            name: name.to_owned(),
            job_types: config.plugin(name).job_types,
            ..Self::default()
        };
        match answer.look(file, engine, config) {
            Ok(handler) => {
                answer.ok = true;
                answer.cached = Some(handler.cached());
            }
            Err(refusal) => {
                answer.reason = Some(refusal.to_string());
                answer.cause = Some(refusal.cause);
                answer.remedy = Some(refusal.remedy);
                answer.unknown_imports = refusal.lacks;
            }
        }
        answer
    }

    fn look(&mut self, file: &Path, engine: &Engine, config: &Config) -> Result<Handler, Refusal> {
        let bytes = std::fs::read(file).map_err(|error| {
            Refusal::new(
                format!("it cannot be read: {error}"),
                "look at its path and its rights",
            )
        })?;
        self.size = Some(bytes.len());
        self.digest = Some(hex(&digest(&bytes)));
        if let Ok(shape) = Shape::read(&bytes) {
            self.world = shape.world();
            self.imports = shape.imports;
            self.exports = shape.exports;
        }
        let rules = config.plugin(&self.name);
        let signature = read_signature(file, &rules.trust)?;
        let (handler, trusted) = vet(engine, &self.name, &rules, &bytes, signature.as_deref())?;
        (self.pinned, self.signed) = (trusted.pinned, trusted.signed);
        Ok(handler)
    }

    /// What it says to people; at most three lines for a file that cannot serve.
    fn lines(&self) -> Vec<String> {
        let file = self.file.display();
        let mut lines = if self.ok {
            let types: Vec<_> = self
                .job_types
                .iter()
                .map(|name| format!("`{name}`"))
                .collect();
            let before = if self.cached == Some(true) {
                ", compiled before"
            } else {
                ""
            };
            vec![
                format!(
                    "{file}: can serve {} ({} bytes{before})",
                    types.join(", "),
                    self.size.unwrap_or_default()
                ),
                format!("  imports  {}", summary(&self.imports)),
                format!("  sha256   {}", self.digest.as_deref().unwrap_or_default()),
            ]
        } else {
            vec![
                format!(
                    "{file}: refused: {}",
                    self.cause.as_deref().unwrap_or_default()
                ),
                format!("  to do    {}", self.remedy.as_deref().unwrap_or_default()),
            ]
        };
        let pinned = self.pinned.then(|| "pinned".to_owned());
        let signed = self.signed.as_ref();
        let signed = signed.map(|comment| format!("signed: \"{comment}\""));
        let trust: Vec<_> = pinned.into_iter().chain(signed).collect();
        if self.ok && !trust.is_empty() {
            lines.push(format!("  trust    {}", trust.join(", ")));
        }
        // A line break in a name is shown, not printed.
        lines.iter().map(|line| print::plain(line)).collect()
    }
}

/// `piecework:handler@0.1.0 (jobs, types), WASI 0.2 (cli, io)`
fn summary(imports: &[Item]) -> String {
    let mut packages: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for import in imports.iter().filter(|import| import.kind != "type") {
        let (path, version) = import.name.split_once('@').unwrap_or((&import.name, ""));
        let (package, interface) = path.split_once('/').unwrap_or((path, ""));
        let (heading, member) = match package.strip_prefix("wasi:") {
            Some(package) if version.starts_with("0.2.") && !version.contains('-') => {
                ("WASI 0.2".to_owned(), package)
            }
            _ => (format!("{package}@{version}"), interface),
        };
        packages.entry(heading).or_default().insert(member);
    }
    if packages.is_empty() {
        return "nothing".to_owned();
    }
    let named: Vec<_> = packages
        .into_iter()
        .map(|(heading, members)| {
            let members: Vec<_> = members.into_iter().collect();
            format!("{heading} ({})", members.join(", "))
        })
        .collect();
    named.join(", ")
}
