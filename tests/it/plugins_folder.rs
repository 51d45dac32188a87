//! What is loaded from a folder, and what is not. The folder is looked at by hand here: no waiting, no clock.

use std::collections::HashSet;
use std::fs;

use piecework::config::{self, Config};
use piecework::engine::Engine;
use piecework::job::JobType;
use piecework::plugins::{PluginState, Registry, Shelf};

use super::support::guests;

struct Bed {
    files: guests::Folder,
    engine: Engine,
    config: Config,
    registry: Registry,
    shelf: Shelf,
}

impl Bed {
    fn new(guests: &[(&str, &str)]) -> Self {
        let files = guests::Folder::with(guests);
        let mut bed = Self {
            engine: Engine::new(&Config::default(), 1).unwrap(),
            config: Config::default(),
            registry: Registry::default(),
            shelf: Shelf::open(files.path()).unwrap(),
            files,
        };
        assert!(bed.scan());
        bed
    }

    fn scan(&mut self) -> bool {
        self.shelf
            .scan(&self.engine, &self.config, &self.registry)
            .unwrap()
    }

    /// Twice: what changed is taken once it has stayed the same.
    fn settle(&mut self) {
        self.scan();
        self.scan();
    }

    fn version(&self, job_type: &str) -> Option<String> {
        Some(
            self.registry
                .find(&JobType::from(job_type))?
                .handler
                .version(),
        )
    }

    fn state(&mut self, name: &str) -> PluginState {
        self.shelf
            .states(&self.config)
            .into_iter()
            .find(|state| state.name == name)
            .unwrap()
    }
}

#[test]
fn a_broken_file_never_displaces_the_version_that_serves() {
    let mut bed = Bed::new(&[("mail", "noop")]);
    let before = bed.version("mail").unwrap();
    bed.files.put("mail", b"\0asm\x01\0\0\0");
    bed.settle();
    assert_eq!(bed.version("mail").unwrap(), before);
    assert_eq!(bed.state("mail").state, "refused");
    assert!(bed.state("mail").reason.unwrap().contains("core module"));
    assert!(!bed.scan(), "nothing changed, nothing is said again");
    bed.files.put("mail", &guests::bytes("flaky"));
    bed.settle();
    assert_ne!(bed.version("mail").unwrap(), before);
    assert_eq!(bed.state("mail").state, "serving");
}

#[test]
fn a_file_that_is_still_being_written_waits() {
    let mut bed = Bed::new(&[]);
    let whole = guests::bytes("noop");
    let path = bed.files.path().join("slow.wasm");
    for end in [100, 500, whole.len()] {
        fs::write(&path, &whole[..end]).unwrap();
        bed.scan();
        assert_eq!(bed.version("slow"), None);
    }
    bed.scan();
    assert!(bed.version("slow").is_some());
}

#[test]
fn a_deleted_plugin_serves_no_more_and_a_running_attempt_keeps_it() {
    let mut bed = Bed::new(&[("mail", "noop")]);
    let held = bed.registry.find(&JobType::from("mail")).unwrap();
    fs::remove_file(bed.files.path().join("mail.wasm")).unwrap();
    assert!(bed.scan());
    assert!(bed.registry.find(&JobType::from("mail")).is_none());
    assert_eq!(held.name, "mail");
}

#[test]
fn two_files_for_one_job_type_are_both_named_and_the_incumbent_stays() {
    let mut bed = Bed::new(&[("a", "noop")]);
    bed.config.plugins.insert(
        "b".into(),
        config::PluginSettings {
            job_types: Some(vec!["a".into()]),
            ..Default::default()
        },
    );
    bed.files.put("b", &guests::bytes("flaky"));
    let before = bed.version("a");
    bed.settle();
    assert_eq!(bed.version("a"), before);
    for name in ["a", "b"] {
        let state = bed.state(name);
        assert_eq!(state.state, "conflicting");
        assert!(state.reason.unwrap().contains("a, b"));
    }
    // From the start neither serves, whatever the order of the folder.
    let registry = Registry::default();
    Shelf::open(bed.files.path())
        .unwrap()
        .scan(&bed.engine, &bed.config, &registry)
        .unwrap();
    assert!(registry.job_types().is_empty());
}

/// Also when both were refused before: what is still to be loaded counts.
#[test]
fn two_refused_files_that_are_mended_together_conflict() {
    let mut bed = Bed::new(&[]);
    bed.config.plugins.insert(
        "b".into(),
        config::PluginSettings {
            job_types: Some(vec!["a".into()]),
            ..Default::default()
        },
    );
    for name in ["a", "b"] {
        bed.files.put(name, b"text");
    }
    bed.settle();
    for name in ["a", "b"] {
        assert_eq!(bed.state(name).state, "refused");
        bed.files.put(name, &guests::bytes("noop"));
    }
    for _ in 0..2 {
        bed.shelf.look(&bed.config, &bed.registry).unwrap();
    }
    while let Some(load) = bed.shelf.next_load(&HashSet::new()) {
        let loaded = load.run(&bed.engine, &bed.config);
        bed.shelf.put(loaded, &bed.registry);
        assert_eq!(bed.version("a"), None);
    }
    for name in ["a", "b"] {
        assert_eq!(bed.state(name).state, "conflicting");
    }
}

/// A network file system that is away for a moment, say; here a link that leads to itself.
#[test]
fn a_file_that_cannot_be_looked_at_is_not_taken_for_deleted() {
    let mut bed = Bed::new(&[("mail", "noop")]);
    let file = bed.files.path().join("mail.wasm");
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("mail.wasm", &file).unwrap();
    bed.settle();
    assert!(bed.version("mail").is_some());
    fs::remove_file(&file).unwrap();
    bed.settle();
    assert_eq!(bed.version("mail"), None);
}

/// What cannot become a plugin is told so, not passed over: somebody put it there and waits for it.
#[test]
fn a_file_whose_name_cannot_serve_is_refused_with_the_reason() {
    use std::os::unix::ffi::OsStringExt as _;
    let long = "x".repeat(201);
    let mut bed = Bed::new(&[(&long, "noop"), (&"y".repeat(200), "noop")]);
    let foreign = std::ffi::OsString::from_vec(b"caf\xe9.wasm".to_vec());
    fs::write(bed.files.path().join(foreign), guests::bytes("noop")).unwrap();
    bed.settle();
    let mut refused = |name: &str| {
        let state = bed.state(name);
        assert_eq!(state.state, "refused", "{name}");
        state.reason.unwrap()
    };
    assert!(refused("caf\\xE9").contains("not UTF-8; rename it"));
    assert!(refused(&long).contains("201 characters"));
    assert_eq!(
        bed.registry.job_types(),
        [JobType::from("y".repeat(200).as_str())]
    );
    // A job type of its own is the other way out.
    let given = config::PluginSettings {
        job_types: Some(vec!["short".into()]),
        ..Default::default()
    };
    bed.config.plugins.insert(long.clone(), given);
    fs::remove_file(bed.files.path().join(format!("{long}.wasm"))).unwrap();
    bed.settle();
    bed.files.put(&long, &guests::bytes("noop"));
    bed.settle();
    assert_eq!(bed.state(&long).state, "serving");
}

/// A link that leads to itself when it is first seen.
#[test]
fn a_file_that_could_never_be_looked_at_is_refused_with_the_reason() {
    let mut bed = Bed::new(&[]);
    let file = bed.files.path().join("mail.wasm");
    std::os::unix::fs::symlink("mail.wasm", &file).unwrap();
    bed.settle();
    let state = bed.state("mail");
    assert_eq!(state.state, "refused");
    assert!(state.reason.unwrap().contains("cannot be looked at"));
    fs::remove_file(&file).unwrap();
    bed.files.put("mail", &guests::bytes("noop"));
    bed.settle();
    assert_eq!(bed.state("mail").state, "serving");
}

#[test]
fn hidden_and_other_files_are_no_plugins_and_a_link_is_followed() {
    let mut bed = Bed::new(&[]);
    fs::write(bed.files.path().join(".hidden.wasm"), guests::bytes("noop")).unwrap();
    fs::write(bed.files.path().join("notes.txt"), "no plugin").unwrap();
    fs::create_dir_all(bed.files.path().join("..v1")).unwrap();
    fs::write(
        bed.files.path().join("..v1/linked.wasm"),
        guests::bytes("noop"),
    )
    .unwrap();
    std::os::unix::fs::symlink("..v1/linked.wasm", bed.files.path().join("linked.wasm")).unwrap();
    bed.settle();
    assert_eq!(bed.registry.job_types(), [JobType::from("linked")]);
}

#[test]
fn what_served_serves_on_while_the_new_version_is_compiled() {
    let mut bed = Bed::new(&[("mail", "noop")]);
    let before = bed.version("mail").unwrap();
    bed.files.put("mail", &guests::bytes("flaky"));
    bed.files.put("new", &guests::bytes("markdown"));
    bed.shelf.look(&bed.config, &bed.registry).unwrap();
    assert!(
        bed.shelf.next_load(&HashSet::new()).is_none(),
        "it may be half written"
    );
    assert!(bed.shelf.look(&bed.config, &bed.registry).unwrap());
    let load = bed.shelf.next_load(&HashSet::new()).unwrap();
    for name in ["mail", "new"] {
        assert_eq!(bed.state(name).state, "compiling");
    }
    // The folder is looked at meanwhile.
    fs::remove_file(bed.files.path().join("new.wasm")).unwrap();
    assert!(bed.shelf.look(&bed.config, &bed.registry).unwrap());
    assert!(!bed.shelf.look(&bed.config, &bed.registry).unwrap());
    let loaded = load.run(&bed.engine, &bed.config);
    assert_eq!(bed.version("mail").unwrap(), before);
    assert!(bed.shelf.put(loaded, &bed.registry));
    assert_ne!(bed.version("mail").unwrap(), before);
    assert_eq!(bed.state("mail").state, "serving");
    assert!(bed.shelf.next_load(&HashSet::new()).is_none());
}

#[test]
fn what_changes_while_it_is_compiled_is_compiled_again() {
    let mut bed = Bed::new(&[]);
    bed.files.put("mail", &guests::bytes("noop"));
    bed.shelf.look(&bed.config, &bed.registry).unwrap();
    bed.shelf.look(&bed.config, &bed.registry).unwrap();
    let load = bed.shelf.next_load(&HashSet::new()).unwrap();
    let loaded = load.run(&bed.engine, &bed.config);
    bed.files.put("mail", &guests::bytes("flaky"));
    bed.shelf.look(&bed.config, &bed.registry).unwrap();
    bed.shelf.put(loaded, &bed.registry);
    let first = bed.version("mail").unwrap();
    assert!(
        bed.shelf.next_load(&HashSet::new()).is_none(),
        "it may be half written"
    );
    bed.scan();
    assert_ne!(bed.version("mail").unwrap(), first);
    // And what is removed meanwhile serves no more.
    bed.files.put("mail", &guests::bytes("noop"));
    bed.shelf.look(&bed.config, &bed.registry).unwrap();
    bed.shelf.look(&bed.config, &bed.registry).unwrap();
    let load = bed.shelf.next_load(&HashSet::new()).unwrap();
    let loaded = load.run(&bed.engine, &bed.config);
    fs::remove_file(bed.files.path().join("mail.wasm")).unwrap();
    bed.shelf.look(&bed.config, &bed.registry).unwrap();
    assert!(!bed.shelf.put(loaded, &bed.registry));
    assert_eq!(bed.version("mail"), None);
}

#[test]
fn what_does_not_start_is_refused_and_the_old_version_serves_on() {
    let mut bed = Bed::new(&[("mail", "noop")]);
    bed.config.defaults.timeout = config::Span::millis(300);
    let before = bed.version("mail").unwrap();
    for (component, class) in [
        (
            guests::text("start_trap"),
            "(trap): wasm trap: wasm `unreachable`",
        ),
        (guests::text("big_start_memory"), "(out_of_memory)"),
        (guests::bytes("start_loop"), "(timeout)"),
    ] {
        bed.files.put("mail", &component);
        bed.settle();
        let state = bed.state("mail");
        assert_eq!(state.state, "refused", "{class}");
        let reason = state.reason.unwrap();
        assert!(
            reason.contains("it does not start") && reason.contains(class),
            "{reason}"
        );
        assert_eq!(bed.version("mail").unwrap(), before);
    }
    bed.files.put("mail", &guests::bytes("noop"));
    bed.settle();
    assert_eq!(bed.state("mail").state, "serving");
}
