//! Imports look only down the ranks, and peers of a rank never meet: `store` and `engine` above all.

use std::fs;
use std::path::{Path, PathBuf};

/// Module and rank; `config` sees the pure words, and so on.
const RANKS: [(&str, u32); 16] = [
    ("job", 0),
    ("backoff", 0),
    ("policy", 0),
    ("schedule", 0),
    ("componentize", 0),
    ("scaffold", 0),
    ("config", 1),
    ("telemetry", 2),
    ("trust", 2),
    ("http", 2),
    ("store", 3),
    ("engine", 3),
    ("plugins", 4),
    ("runner", 5),
    ("dev", 5),
    ("cli", 7),
];

#[test]
fn imports_look_only_down() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    for (module, rank) in RANKS {
        for file in files(&source, module) {
            let text = fs::read_to_string(&file).unwrap();
            for named in names(&text) {
                let allowed = named == module
                    || RANKS
                        .iter()
                        .any(|(other, other_rank)| *other == named && other_rank < &rank);
                if !allowed {
                    wrong.push(format!(
                        "{} names crate::{named}",
                        file.strip_prefix(&source).unwrap().display()
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_module_has_a_rank() {
    let text =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).unwrap();
    let declared: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
        .collect();
    let mut ranked: Vec<_> = RANKS.iter().map(|(module, _)| *module).collect();
    ranked.sort_unstable();
    assert_eq!(declared, ranked);
}

fn files(source: &Path, module: &str) -> Vec<PathBuf> {
    let single = source.join(module).with_extension("rs");
    if single.exists() {
        return vec![single];
    }
    super::tidy::rust_files(&source.join(module))
}

/// The modules that a file names by `crate::…`, also inside `crate::{…}`.
fn names(text: &str) -> Vec<String> {
    let code: String = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join(" ");
    let mut found = Vec::new();
    for rest in code.split("crate::").skip(1) {
        let group = rest.strip_prefix('{').map_or_else(
            || vec![rest],
            |group| {
                group
                    .split('}')
                    .next()
                    .unwrap_or_default()
                    .split(',')
                    .collect()
            },
        );
        for name in group {
            let name: String = name
                .trim()
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            if !name.is_empty() && name != "self" {
                found.push(name);
            }
        }
    }
    found
}
