//! What holds for every file of the tree.

use std::fs;
use std::path::{Path, PathBuf};

/// All `.rs` files below a folder.
pub(crate) fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

fn root() -> PathBuf {
    env!("CARGO_MANIFEST_DIR").into()
}

#[test]
fn every_file_says_what_it_is_for_and_stays_readable() {
    for file in rust_files(&root().join("src"))
        .into_iter()
        .chain(rust_files(&root().join("tests/it")))
    {
        let text = fs::read_to_string(&file).unwrap();
        let name = file.display();
        assert!(text.starts_with("//!"), "{name} does not begin with `//!`");
        assert!(
            text.lines().count() <= 600,
            "{name} has more than 600 lines: split it by reason to change"
        );
        assert!(
            !text.contains(&["super"; 2].join("::")),
            "{name} climbs the tree: name the path from `crate`"
        );
        assert!(
            text.lines().all(|line| line.trim_end() == line),
            "{name} has white space at the end of a line"
        );
    }
}

#[test]
fn every_statement_is_used_exactly_once() {
    let sources: String = rust_files(&root().join("src/store"))
        .iter()
        .map(|file| fs::read_to_string(file).unwrap())
        .collect();
    for entry in fs::read_dir(root().join("src/store/sql"))
        .unwrap()
        .map(Result::unwrap)
    {
        let name = entry.file_name().into_string().unwrap();
        let uses = sources.matches(&format!("sql/{name}\"")).count();
        // The round is explained too, the version asked twice.
        let expected =
            if ["round.sql", "schema_version.sql", "enqueue_many.sql"].contains(&name.as_str()) {
                2
            } else {
                1
            };
        assert_eq!(uses, expected, "{name}");
    }
}
