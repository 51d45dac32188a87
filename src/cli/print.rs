//! Standard output: lines, tables, JSON. Text that came from jobs, plugins and errors is data: control characters are shown,
//! never sent to the terminal.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::Context;
use serde::Serialize;

/// Writes one line.
///
/// # Errors
/// When standard output is gone: the reader (a `head`, say) has seen enough.
pub(super) fn line(text: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{text}").context("write to standard output")
}

/// Writes one JSON document.
///
/// # Errors
/// As [`line`].
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(&serde_json::to_string_pretty(value).context("write JSON")?)
}

/// Shows control characters, and those that turn the direction of text, as escapes.
pub(super) fn plain(text: &str) -> String {
    let hostile = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(hostile) {
        return text.to_owned();
    }
    text.chars().fold(String::new(), |mut shown, c| {
        if hostile(c) {
            let _ = write!(shown, "{}", c.escape_default());
        } else {
            shown.push(c);
        }
        shown
    })
}

/// At most `most` characters of one line.
pub(super) fn short(text: &str, most: usize) -> String {
    let shown = plain(text);
    if shown.chars().count() <= most {
        return shown;
    }
    shown
        .chars()
        .take(most.saturating_sub(1))
        .chain(['…'])
        .collect()
}

/// As many digits of a version as are enough for people.
pub(super) fn version(digest: &str) -> String {
    plain(&digest.chars().take(12).collect::<String>())
}

/// Writes rows in columns; the first row is the heading.
///
/// # Errors
/// As [`line`].
pub(super) fn table(rows: &[Vec<String>]) -> anyhow::Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    for row in rows {
        let text = row
            .iter()
            .zip(&widths)
            .fold(String::new(), |mut text, (cell, width)| {
                let _ = write!(text, "{cell:width$}  ");
                text
            });
        line(text.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_is_shown_not_sent() {
        assert_eq!(plain("a\x1b[2J\nb\u{202e}c"), "a\\u{1b}[2J\\nb\\u{202e}c");
        assert_eq!(short("abcdef", 4), "abc…");
    }
}
