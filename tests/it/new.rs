//! `piecework new`: projects are whole or not there.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;

use piecework::scaffold::Language;

use super::support::guests::Folder;
use super::support::process::command;

fn new(parent: &Path, name: &str, language: &str) -> Output {
    command()
        .args(["new", name, "--lang", language])
        .current_dir(parent)
        .output()
        .unwrap()
}

fn refused(parent: &Path, name: &str, because: &str) {
    let before = tree(parent);
    let output = new(parent, name, "rust");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{name}: {said}");
    assert!(said.contains(because), "{name}: {said}");
    assert_eq!(tree(parent), before, "{name} has left something");
}

/// All files below a folder, with their mode and content.
fn tree(folder: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_symlink() {
                files.insert(path, (0, Vec::new()));
            } else {
                let mode = entry.metadata().unwrap().permissions().mode();
                files.insert(path.clone(), (mode, fs::read(path).unwrap()));
            }
        }
    }
    files
}

#[test]
fn a_project_in_each_language_is_whole() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for language in Language::ALL {
        let parent = Folder::new();
        let output = new(parent.path(), "send-mail", language.as_str());
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("./build.sh"));
        let project = parent.path().join("send-mail");
        for (path, (mode, content)) in tree(parent.path()) {
            let shown = path.display();
            let own = path.strip_prefix(&project).unwrap().to_str().unwrap();
            assert!(
                !own.ends_with(".in") && own != "notes.md" && own != "gitignore",
                "{shown}"
            );
            assert_ne!(mode, 0, "{shown} is a link");
            assert_eq!(mode & 0o111 != 0, own.ends_with(".sh"), "{shown}");
            let text = String::from_utf8(content).unwrap();
            assert!(
                !text.contains("@NAME") && !text.contains("@NOTES"),
                "{shown} has a placeholder"
            );
        }
        for file in [
            "build.sh",
            "test.sh",
            "README.md",
            ".gitignore",
            "runner.toml",
            "tests/page.json",
        ] {
            assert!(
                project.join(file).is_file(),
                "{} has no {file}",
                language.as_str()
            );
        }
        for file in ["wit/world.wit", "wit/deps/config/store.wit"] {
            assert_eq!(
                fs::read(project.join(file)).unwrap(),
                fs::read(root.join(file)).unwrap()
            );
        }
        let readme = fs::read_to_string(project.join("README.md")).unwrap();
        assert!(readme.starts_with("# send-mail\n") && readme.lines().count() < 60);
        assert!(readme.contains("\n## "), "a section about the language");
        let settings = fs::read_to_string(project.join("runner.toml")).unwrap();
        piecework::config::Config::parse(&settings, Path::new("runner.toml")).unwrap();
    }
}

#[test]
fn a_name_that_is_none_or_means_something_else_is_refused() {
    let parent = Folder::new();
    let long = "a".repeat(65);
    for name in [
        "Mail",
        "1st",
        "send_mail",
        "a--b",
        "a-",
        "../up",
        "a/b",
        "ä",
        ".",
        &long,
    ] {
        refused(parent.path(), name, "is no name for a handler");
    }
    for name in ["test", "fn", "piecework", "main", "handler"] {
        refused(parent.path(), name, "choose another name");
    }
    assert!(new(parent.path(), "short", "ts").status.success());
    let output = new(parent.path(), "mail", "cobol");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("rust, typescript, javascript"));
}

#[test]
fn what_is_there_is_never_touched() {
    let parent = Folder::new();
    let at = |name: &str| parent.path().join(name);
    fs::create_dir(at("folder")).unwrap();
    fs::write(at("folder").join("mine"), "mine").unwrap();
    fs::create_dir(at("empty")).unwrap();
    fs::write(at("file"), "mine").unwrap();
    symlink("nowhere", at("link")).unwrap();
    for name in ["folder", "empty", "file", "link"] {
        refused(parent.path(), name, "is there already and stays as it is");
    }
}
