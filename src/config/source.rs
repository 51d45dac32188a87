//! The text that the settings were read from, so that errors can name a line of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

/// A settings file; empty where there is none.
#[derive(Clone, Default)]
pub(super) struct Source {
    path: PathBuf,
    text: Arc<str>,
}

impl Source {
    pub(super) fn new(path: &Path, text: &str) -> Self {
        Self {
            path: path.into(),
            text: text.into(),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The line, counted from 1, of the key at this path, or of the section nearest above it; `None` when not even that is
    /// there.
    pub(super) fn line(&self, path: &[&str]) -> Option<usize> {
        let document = DeTable::parse(&self.text).ok()?;
        let mut at = None;
        let mut table = document.get_ref();
        for name in path {
            let Some((key, value)) = table.iter().find(|(key, _)| key.get_ref() == name) else {
                break;
            };
            at = Some(key.span().start);
            let DeValue::Table(inner) = value.get_ref() else {
                break;
            };
            table = inner;
        }
        at.map(|at| line_at(&self.text, at))
    }

    /// The file and the line of a key, as an error begins.
    pub(super) fn at(&self, path: &[&str]) -> String {
        match self.line(path) {
            Some(line) => format!("`{}` line {line}", self.path.display()),
            None => format!("`{}`", self.path.display()),
        }
    }

    /// Where a key stands or belongs, for people: "`allow` under `[plugins.mail.http]` (runner.toml line 12)".
    pub(super) fn place(&self, path: &[&str]) -> String {
        let (key, section) = path.split_last().unwrap_or((&"", &[]));
        let file = if self.path.as_os_str().is_empty() {
            "runner.toml".to_owned()
        } else {
            self.path.display().to_string()
        };
        let line = self
            .line(path)
            .filter(|_| self.has(section))
            .map_or_else(String::new, |line| format!(" line {line}"));
        format!("`{key}` under `[{}]` ({file}{line})", section.join("."))
    }

    fn has(&self, section: &[&str]) -> bool {
        let Ok(document) = DeTable::parse(&self.text) else {
            return false;
        };
        let mut table = document.get_ref();
        for name in section {
            let Some(DeValue::Table(inner)) = table.get(*name).map(toml::Spanned::get_ref) else {
                return false;
            };
            table = inner;
        }
        true
    }
}

/// The line of a byte, counted from 1.
pub(super) fn line_at(text: &str, at: usize) -> usize {
    let start = at.min(text.len());
    text.as_bytes()[..start]
        .iter()
        .filter(|byte| **byte == b'\n')
        .count()
        + 1
}

/// The same settings are equal wherever they were read.
impl PartialEq for Source {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Without the text: it may hold the database's password.
impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.path.fmt(f)
    }
}
