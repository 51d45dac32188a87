//! What of the fleet's releases serves on one runner, and what does not. The database's answers are given by hand: no waiting.

use std::collections::HashSet;

use piecework::config::Config;
use piecework::engine::{Engine, digest, hex};
use piecework::job::{JobId, JobType};
use piecework::plugins::{PluginState, Registry, Shelf, Source, refit};
use piecework::store::{Version, Wanted};

use super::support::guests::{self, Folder};

struct Bed {
    files: Folder,
    engine: Engine,
    config: Config,
    registry: Registry,
    shelf: Shelf,
    revision: i64,
}

fn version(component: &[u8]) -> Version {
    Version {
        digest: digest(component),
        size: component.len() as u64,
        signature: None,
    }
}

impl Bed {
    /// A folder with these files and a fleet that wants nothing.
    fn new(guests: &[(&str, &str)]) -> Self {
        let files = Folder::with(guests);
        let mut bed = Self {
            engine: Engine::new(&Config::default(), 1).unwrap(),
            config: Config::default(),
            registry: Registry::default(),
            shelf: Shelf::open(files.path()).unwrap(),
            files,
            revision: 0,
        };
        bed.shelf
            .scan(&bed.engine, &bed.config, &bed.registry)
            .unwrap();
        bed
    }

    /// The release of `mail` from now on; returns whether anything changed.
    fn release(&mut self, stable: &Version, canary: Option<(&Version, u16)>) -> bool {
        self.revision += 1;
        self.want(stable, canary)
    }

    fn want(&mut self, stable: &Version, canary: Option<(&Version, u16)>) -> bool {
        let wanted = Wanted {
            job_type: "mail".into(),
            stable: stable.clone(),
            canary: canary.map(|(version, share)| (version.clone(), share)),
            revision: self.revision,
        };
        self.shelf.want(vec![wanted], &self.registry)
    }

    /// Loads the next version, for which the database answers this; returns whether there was one.
    fn load(&mut self, answer: Result<Option<Vec<u8>>, String>) -> bool {
        let Some(mut load) = self.shelf.next_load(&HashSet::new()) else {
            return false;
        };
        assert!(load.needs().is_some());
        load.give(answer);
        let loaded = load.run(&self.engine, &self.config);
        assert!(self.shelf.put(loaded, &self.registry));
        true
    }

    /// Loads the next version, which is this one.
    fn load_good(&mut self, component: &[u8]) {
        assert_eq!(
            self.shelf.next_load(&HashSet::new()).unwrap().needs(),
            Some(digest(component))
        );
        assert!(self.load(Ok(Some(component.to_vec()))));
    }

    fn serves(&self) -> Option<String> {
        let plugin = self.registry.find(&JobType::from("mail"))?;
        Some(hex(&plugin.handler.digest()))
    }

    fn state(&mut self, source: Source) -> PluginState {
        let states = self.shelf.states(&self.config);
        states
            .into_iter()
            .find(|state| state.source == source)
            .unwrap()
    }
}

#[test]
fn the_fleet_goes_before_the_folder_once_it_is_loaded() {
    let mut bed = Bed::new(&[("mail", "noop")]);
    let (file, release) = (guests::bytes("noop"), guests::bytes("flaky"));
    assert!(bed.release(&version(&release), None));
    assert!(!bed.want(&version(&release), None), "nothing changed");
    assert_eq!(bed.serves(), Some(hex(&digest(&file))));
    assert_eq!(bed.state(Source::Folder).state, "serving");
    assert_eq!(bed.state(Source::Fleet).state, "compiling");
    bed.load_good(&release);
    assert_eq!(bed.serves(), Some(hex(&digest(&release))));
    assert_eq!(bed.state(Source::Fleet).state, "serving");
    let file_state = bed.state(Source::Folder);
    assert_eq!(file_state.state, "overridden");
    assert!(
        file_state
            .reason
            .unwrap()
            .contains("the fleet serves `mail`")
    );
    // Withdrawn, and the file serves at once.
    assert!(bed.shelf.want(Vec::new(), &bed.registry));
    assert_eq!(bed.serves(), Some(hex(&digest(&file))));
    assert_eq!(bed.state(Source::Folder).state, "serving");
    // The file may go while the fleet serves.
    bed.release(&version(&release), None);
    bed.load_good(&release);
    std::fs::remove_file(bed.files.path().join("mail.wasm")).unwrap();
    assert!(bed.shelf.look(&bed.config, &bed.registry).unwrap());
    assert_eq!(bed.serves(), Some(hex(&digest(&release))));
}

#[test]
fn a_release_that_does_not_load_leaves_what_served() {
    let mut bed = Bed::new(&[]);
    let good = guests::bytes("noop");
    bed.release(&version(&good), None);
    bed.load_good(&good);
    let before = bed.serves();
    let bad = guests::text("start_trap");
    bed.release(&version(&bad), None);
    assert_eq!(bed.serves(), before);
    bed.load_good(&bad);
    assert_eq!(bed.serves(), before);
    let state = bed.state(Source::Fleet);
    assert_eq!(state.state, "refused");
    assert!(state.reason.unwrap().contains("it does not start (trap)"));
    assert_eq!(
        (Some(state.digest), state.serving),
        (Some(hex(&digest(&bad))), before.clone())
    );
    assert!(!bed.load(Ok(None)), "it is not tried again by itself");

    // Bytes that are others, bytes that are gone.
    let other = guests::bytes("flaky");
    for (answer, reason) in [
        (Some(good.clone()), "not those of its digest"),
        (None, "push it again"),
    ] {
        bed.release(&version(&other), None);
        assert!(bed.load(Ok(answer)));
        assert!(bed.state(Source::Fleet).reason.unwrap().contains(reason));
        assert_eq!(bed.serves(), before);
    }
    // Pushed again, it is a new change; and then it serves.
    bed.release(&version(&other), None);
    bed.load_good(&other);
    assert_eq!(bed.serves(), Some(hex(&digest(&other))));
}

#[tokio::test]
async fn a_component_that_cannot_be_fetched_is_tried_again() {
    let mut bed = Bed::new(&[]);
    let good = guests::bytes("noop");
    bed.release(&version(&good), None);
    assert!(bed.load(Err("the database is not available".into())));
    let state = bed.state(Source::Fleet);
    assert_eq!(state.state, "compiling");
    assert!(state.reason.unwrap().contains("not available"));
    assert!(!bed.load(Ok(None)), "not at once");
    tokio::time::sleep(std::time::Duration::from_millis(2100)).await;
    bed.load_good(&good);
    assert!(bed.serves().is_some());
}

#[test]
fn what_nobody_wants_any_more_is_not_put_back() {
    let mut bed = Bed::new(&[]);
    let (first, second) = (guests::bytes("noop"), guests::bytes("flaky"));
    bed.release(&version(&first), None);
    let mut load = bed.shelf.next_load(&HashSet::new()).unwrap();
    bed.release(&version(&second), None);
    load.give(Ok(Some(first)));
    let loaded = load.run(&bed.engine, &bed.config);
    assert!(!bed.shelf.put(loaded, &bed.registry));
    assert_eq!(bed.serves(), None);
    bed.load_good(&second);
    assert_eq!(bed.serves(), Some(hex(&digest(&second))));
}

#[test]
fn a_canary_gets_its_share_of_the_jobs_and_always_the_same() {
    let mut bed = Bed::new(&[]);
    let (stable, canary) = (guests::bytes("noop"), guests::bytes("flaky"));
    bed.release(&version(&stable), Some((&version(&canary), 1000)));
    bed.load_good(&stable);
    let runs = |bed: &Bed, id: i64| {
        let serving = bed.registry.serving();
        let served = &serving[&JobType::from("mail")];
        served.version_for(JobId(id)).handler.digest() == digest(&canary)
    };
    assert!((0..1000).all(|id| !runs(&bed, id)), "it is not there yet");
    bed.load_good(&canary);
    let first: Vec<_> = (0..10_000).map(|id| runs(&bed, id)).collect();
    let share = first.iter().filter(|canary| **canary).count();
    // 10,000 draws of a tenth: 1,000 with a deviation of 30.
    assert!((850..1150).contains(&share), "{share}");
    // Ids that differ by the same number are spread as well.
    let steps = (0..10_000).filter(|n| runs(&bed, n * 1024)).count();
    assert!((850..1150).contains(&steps), "{steps}");
    // A larger share keeps those that were in the smaller one.
    bed.release(&version(&stable), Some((&version(&canary), 3000)));
    assert!(
        first
            .iter()
            .zip(0..)
            .all(|(before, id)| !before || runs(&bed, id))
    );
    assert_eq!(bed.serves(), Some(hex(&digest(&stable))));
    // When it ends nobody runs it; promoted, everybody, without another load.
    bed.release(&version(&stable), None);
    assert!((0..10_000).all(|id| !runs(&bed, id)));
    bed.release(&version(&stable), Some((&version(&canary), 1000)));
    bed.load_good(&canary);
    bed.release(&version(&canary), None);
    assert!((0..1000).all(|id| runs(&bed, id)));
    assert!(bed.shelf.next_load(&HashSet::new()).is_none());
}

#[test]
fn a_canary_that_is_refused_gets_no_job() {
    let mut bed = Bed::new(&[]);
    let (stable, canary) = (guests::bytes("noop"), guests::text("start_trap"));
    bed.release(&version(&stable), Some((&version(&canary), 5000)));
    bed.load_good(&stable);
    bed.load_good(&canary);
    assert!(
        bed.registry.serving()[&JobType::from("mail")]
            .canary
            .is_none()
    );
    let states = bed.shelf.states(&bed.config);
    let named: Vec<_> = states.iter().map(|state| state.state.as_str()).collect();
    assert!(
        named.contains(&"serving") && named.contains(&"refused"),
        "{named:?}"
    );
}

#[test]
fn new_settings_make_releases_anew_once_all_of_them_start() {
    let mut bed = Bed::new(&[("other", "noop")]);
    let release = guests::bytes("noop");
    bed.release(&version(&release), None);
    bed.load_good(&release);
    let mail = JobType::from("mail");
    let before = bed.registry.find(&mail).unwrap();
    assert!(bed.shelf.refits(&bed.config).is_empty());
    // Another section is about it from now on, with fuel: the bytes are needed again.
    let text = "[plugins.letters]\njob_types = ['mail']\nfuel = 5000000\n";
    let new = Config::parse(text, std::path::Path::new("runner.toml")).unwrap();
    let mut refits = bed.shelf.refits(&new);
    assert_eq!(refits.len(), 1);
    assert_eq!(refits[0].needs(), Some(digest(&release)));
    let why = refit(&refits, &bed.engine).unwrap_err();
    assert!(
        why.starts_with("the plugin `letters` cannot serve with them:"),
        "{why}"
    );
    refits[0].give(Some(guests::bytes("flaky")));
    assert!(refit(&refits, &bed.engine).is_err(), "other bytes");
    refits[0].give(Some(release));
    let refitted = refit(&refits, &bed.engine).unwrap();
    assert!(
        bed.registry
            .find(&mail)
            .unwrap()
            .rules
            .limits
            .fuel
            .is_none()
    );
    bed.shelf.commit(&refitted, &bed.registry);
    let now = bed.registry.find(&mail).unwrap();
    assert_eq!(now.name, "letters");
    assert_eq!(now.rules.limits.fuel, Some(5_000_000));
    assert_eq!(now.handler.digest(), before.handler.digest());
    assert!(bed.shelf.refits(&new).is_empty());
    // Without another kind of code the handler is the same.
    let text = text.replace("5000000", "6000000\ntimeout = '5s'");
    let newer = Config::parse(&text, std::path::Path::new("runner.toml")).unwrap();
    let refits = bed.shelf.refits(&newer);
    assert_eq!(refits[0].needs(), None);
    let refitted = refit(&refits, &bed.engine).unwrap();
    bed.shelf.commit(&refitted, &bed.registry);
    let newest = bed.registry.find(&mail).unwrap();
    assert!(std::sync::Arc::ptr_eq(&newest.handler, &now.handler));
    assert_eq!(newest.rules.limits.timeout.as_secs(), 5);
}
