//! Field cases of the plugins folder: O-31 (copies), O-32 (symlink swaps), O-34 (replacing and deleting under running jobs), O-35 (two
//! files for one job type), on the file system of the build and in memory.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use piecework::config::{Config, PluginSettings};
use piecework::engine::{Engine, digest, hex};
use piecework::job::JobId;
use piecework::plugins::{Registry, Shelf};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::support::copies::{Place, copy_slowly, version};
use super::support::db::Db;
use super::support::process::{Host, SHORT};
use super::support::{guests, large, until};

/// The promise is 3 s; the rest is for machines that are busy with other tests.
const SOON: Duration = Duration::from_secs(5);

/// Which version ran a job, in hex.
async fn ran(db: &Db, id: JobId) -> String {
    let plugin = "select encode(plugin, 'hex') from piecework.job_history where id = $1";
    db.text(plugin, id).await.unwrap()
}

/// Enqueues jobs until one is run by this version; it must be soon after the change.
async fn serves(db: &Db, job_type: &str, bytes: &[u8], changed: Instant) {
    let wanted = hex(&digest(bytes));
    until("the new version to serve", || async {
        let id = db.enqueue(job_type, "{}").await;
        db.becomes(id, "done").await;
        (ran(db, id).await == wanted).then_some(())
    })
    .await;
    let took = changed.elapsed();
    eprintln!("`{job_type}` served {took:?} after its last byte");
    assert!(took < SOON, "{took:?}");
}

/// All that has ended was done at the first attempt, by one of these versions.
async fn nothing_failed(db: &Db, versions: &[&[u8]]) {
    let query = "select count(*) from piecework.job_history where state <> 'done' or attempt <> 1 or plugin is null";
    assert_eq!(db.number(query).await, 0);
    let ran: Vec<Vec<u8>> = sqlx::query_scalar("select distinct plugin from piecework.job_history")
        .fetch_all(&db.pool)
        .await
        .unwrap();
    let versions: Vec<_> = versions
        .iter()
        .map(|bytes| digest(bytes).to_vec())
        .collect();
    for plugin in ran {
        assert!(versions.contains(&plugin), "an unknown version ran");
    }
}

/// Copies in place slowly, with a pause in which the file looks complete; truncates, then writes; renames: while jobs run all the time.
async fn slow_copies(place: Place) {
    let db = Arc::new(Db::new().await);
    let noop = guests::bytes("noop");
    place.put("mail", &noop);
    let host = Host::start(&db, place.path(), SHORT);
    host.ready().await;
    let (done, ends) = (Arc::new(AtomicBool::new(false)), db.clone());
    let until_done = done.clone();
    let jobs = tokio::spawn(async move {
        let mut count = 0;
        while !until_done.load(Ordering::Relaxed) {
            ends.enqueue_times(10, "mail", "{}").await;
            count += 10;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        count
    });
    let slow = version(&noop, "slow", 1 << 20);
    let (bytes, file) = (slow.clone(), place.file("mail"));
    let copied = tokio::task::spawn_blocking(move || {
        let pause = Duration::from_millis(100);
        copy_slowly(&bytes, &file, 20, pause, Duration::from_millis(1200))
    });
    serves(&db, "mail", &slow, copied.await.unwrap()).await;
    assert!(host.count("plugin refused") <= 1, "one warning a copy");
    let truncated = version(&noop, "truncated", 1000);
    fs::write(place.file("mail"), b"").unwrap();
    tokio::time::sleep(Duration::from_millis(150)).await;
    fs::write(place.file("mail"), &truncated).unwrap();
    serves(&db, "mail", &truncated, Instant::now()).await;
    let renamed = version(&noop, "renamed", 1000);
    let put = place.put("mail", &renamed);
    serves(&db, "mail", &renamed, put).await;
    assert!(host.count("plugin refused") <= 2);
    done.store(true, Ordering::Relaxed);
    assert!(jobs.await.unwrap() > 100);
    db.until(0, "select count(*) from piecework.job").await;
    nothing_failed(&db, &[&noop, &slow, &truncated, &renamed]).await;
    drop(host);
    Arc::into_inner(db).unwrap().drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_a_half_copied_file_is_never_loaded_o_31() {
    for place in Place::all() {
        slow_copies(place).await;
    }
}

/// A folder that is away and a copy that stalls are told of once, a file that cannot be read is told of at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_a_lasting_fault_is_one_warning_o_31() {
    let db = Db::new().await;
    let noop = guests::bytes("noop");
    let place = Place::all().remove(0);
    place.put("mail", &noop);
    // Many looks while the folder is away.
    let often = SHORT.replace("slots = 4", "slots = 4\nplugins_interval = '100ms'");
    let host = Host::start(&db, place.path(), &often);
    host.ready().await;
    let (bytes, file) = (version(&noop, "slow", 1 << 20), place.file("mail"));
    let slow = bytes.clone();
    let copied = tokio::task::spawn_blocking(move || {
        let pause = Duration::from_millis(1000);
        copy_slowly(&bytes, &file, 6, pause, pause)
    });
    serves(&db, "mail", &slow, copied.await.unwrap()).await;
    assert_eq!(host.count("plugin refused"), 1, "one warning a copy");
    let large = fs::File::create(place.file("large")).unwrap();
    large.set_len(300 << 20).unwrap();
    host.reaches("plugin refused", 2).await;
    fs::remove_file(place.file("large")).unwrap();
    let away = place.path().with_extension("away");
    fs::rename(place.path(), &away).unwrap();
    host.reaches("the plugins folder cannot be read", 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    fs::rename(&away, place.path()).unwrap();
    host.reaches("the plugins folder can be read again", 1)
        .await;
    assert_eq!(host.count("the plugins folder cannot be read"), 1);
    drop(host);
    db.drop().await;
}

/// A component that the compiler takes minutes for: neither the start nor a later file waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_a_compile_bomb_holds_nobody_up() {
    let db = Db::new().await;
    let place = Place::all().remove(0);
    let noop = guests::bytes("noop");
    place.put("mail", &noop);
    place.put("a_bomb", &large::nest(2_000_000));
    let host = Host::start(&db, place.path(), SHORT);
    host.ready().await;
    let id = db.enqueue("mail", "{}").await;
    db.becomes(id, "done").await;
    place.put("late", &version(&noop, "late", 1 << 20));
    host.reaches("plugin loaded", 2).await;
    let id = db.enqueue("late", "{}").await;
    db.becomes(id, "done").await;
    assert_eq!(host.count("plugin refused"), 0, "the bomb is still at it");
    drop(host);
    db.drop().await;
}

/// Makes the link `..data` lead to a new folder with these files, and removes the old one, as Kubernetes does.
fn swap(folder: &Path, files: &[(&str, &[u8])], old: Option<&str>, new: &str) -> Instant {
    fs::create_dir(folder.join(new)).unwrap();
    for (name, bytes) in files {
        fs::write(folder.join(new).join(name).with_extension("wasm"), bytes).unwrap();
    }
    symlink(new, folder.join("..data_tmp")).unwrap();
    fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    let swapped = Instant::now();
    if let Some(old) = old {
        fs::remove_dir_all(folder.join(old)).unwrap();
    }
    swapped
}

async fn symlink_swaps(place: Place) {
    let db = Db::new().await;
    let noop = guests::bytes("noop");
    let (a, b, mut c) = (
        version(&noop, "a", 1),
        version(&noop, "b", 1),
        version(&noop, "c", 1),
    );
    let folder = place.path();
    swap(folder, &[("a", &a), ("b", &b), ("c", &c)], None, "..v0");
    for name in ["a.wasm", "b.wasm", "c.wasm"] {
        symlink(Path::new("..data").join(name), folder.join(name)).unwrap();
    }
    let host = Host::start(&db, folder, SHORT);
    host.ready().await;
    for round in 1..=10 {
        c = version(&noop, &format!("c{round}"), round);
        let (old, new) = (format!("..v{}", round - 1), format!("..v{round}"));
        let files: [(&str, &[u8]); 3] = [("a", &a), ("b", &b), ("c", &c)];
        let swapped = swap(folder, &files, Some(&old), &new);
        serves(&db, "c", &c, swapped).await;
    }
    // Three at the start and one each swap: nothing unchanged was loaded again, and nothing came from the folders behind the link.
    assert_eq!(host.count("plugin loaded"), 13);
    assert_eq!(host.count("plugin refused"), 0);
    drop(host);
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_symlink_swaps_are_noticed_o_32() {
    for place in Place::all() {
        symlink_swaps(place).await;
    }
}

async fn replaced_and_deleted(place: Place) {
    let db = Db::new().await;
    let probe = guests::bytes("probe");
    let [one, two, again, three] = ["1", "2", "again", "3"].map(|name| version(&probe, name, 1));
    let nap = r#"{"do": "nap", "ms": 2500}"#;
    let ok = r#"{"do": "ok"}"#;
    place.put("probe", &one);
    let host = Host::start(&db, place.path(), SHORT);
    host.ready().await;
    let runs = async |bytes: &[u8]| {
        let wanted = hex(&digest(bytes));
        until("the version to run a job", || async {
            let id = db.enqueue("probe", ok).await;
            db.becomes(id, "done").await;
            (ran(&db, id).await == wanted).then_some(())
        })
        .await;
    };
    let first = db.enqueue("probe", nap).await;
    db.becomes(first, "running").await;
    // Replaced, deleted and added again while the first job runs.
    place.put("probe", &two);
    runs(&two).await;
    let second = db.enqueue("probe", nap).await;
    db.becomes(second, "running").await;
    fs::remove_file(place.file("probe")).unwrap();
    tokio::time::sleep(Duration::from_millis(700)).await;
    let waits = db.enqueue("probe", ok).await;
    place.put("probe", &again);
    db.becomes(waits, "done").await;
    // What is broken does not serve, and does not displace what does.
    place.put("probe", b"\0asm broken");
    host.reaches("plugin refused", 1).await;
    let meanwhile = db.enqueue("probe", ok).await;
    db.becomes(meanwhile, "done").await;
    assert_eq!(ran(&db, meanwhile).await, hex(&digest(&again)));
    place.put("probe", &three);
    runs(&three).await;
    for (id, version) in [(first, &one), (second, &two)] {
        db.becomes(id, "done").await;
        assert_eq!(ran(&db, id).await, hex(&digest(version)));
    }
    nothing_failed(&db, &[&one, &two, &again, &three]).await;
    // Deleted for good: jobs wait.
    fs::remove_file(place.file("probe")).unwrap();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let left = db.enqueue("probe", ok).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(db.state(left).await, "pending");
    drop(host);
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_replacing_and_deleting_does_not_disturb_running_jobs_o_34() {
    for place in Place::all() {
        replaced_and_deleted(place).await;
    }
}

/// The folder, looked at by hand: what serves `mail`, by the name of the file.
struct Bench {
    place: Place,
    engine: Engine,
    config: Config,
    registry: Registry,
    shelf: Shelf,
}

impl Bench {
    /// `a` and `b` are both for `mail`.
    fn new(place: Place) -> Self {
        let mut config = Config::default();
        for name in ["a", "b"] {
            let settings = PluginSettings {
                job_types: Some(vec!["mail".into()]),
                ..Default::default()
            };
            config.plugins.insert(name.into(), settings);
        }
        Self {
            engine: Engine::new(&config, 1).unwrap(),
            config,
            registry: Registry::default(),
            shelf: Shelf::open(place.path()).unwrap(),
            place,
        }
    }

    fn look(&mut self) {
        self.shelf.look(&self.config, &self.registry).unwrap();
    }

    fn scan(&mut self) {
        let (engine, config, registry) = (&self.engine, &self.config, &self.registry);
        self.shelf.scan(engine, config, registry).unwrap();
    }

    /// As a runner does: one after another, published after each. What served meanwhile.
    fn load(&mut self) -> Vec<Option<String>> {
        let mut served = Vec::new();
        while let Some(load) = self.shelf.next_load(&HashSet::new()) {
            let loaded = load.run(&self.engine, &self.config);
            self.shelf.put(loaded, &self.registry);
            served.push(self.serving());
        }
        served
    }

    fn serving(&self) -> Option<String> {
        let plugin = self.registry.find(&"mail".into())?;
        Some(plugin.name.clone())
    }

    fn stand(&mut self) -> Vec<(String, bool)> {
        let states = self.shelf.states(&self.config).into_iter();
        states
            .map(|state| {
                let both = state.reason.is_some_and(|reason| reason.contains("a, b"));
                (state.name, both && state.state == "conflicting")
            })
            .collect()
    }
}

#[test]
fn two_files_for_one_job_type_end_the_same_in_every_order_o_35() {
    let (noop, flaky) = (guests::bytes("noop"), guests::bytes("flaky"));
    let both = [("a".to_owned(), true), ("b".to_owned(), true)];
    for order in [["a", "b"], ["b", "a"]] {
        for place in Place::all() {
            // There from the start.
            for name in order {
                place.put(name, &noop);
            }
            let mut bench = Bench::new(place);
            bench.scan();
            assert_eq!(bench.serving(), None);
            assert_eq!(bench.stand(), both);
            // Removing one resolves it.
            fs::remove_file(bench.place.file(order[0])).unwrap();
            bench.look();
            assert_eq!(bench.serving().as_deref(), Some(order[1]));
            // The one that serves stays when another is added.
            bench.place.put(order[0], &flaky);
            bench.look();
            bench.look();
            assert_eq!(bench.load(), [Some(order[1].to_owned())]);
            assert_eq!(bench.stand(), both);
        }
        for place in Place::all() {
            // Both are added live.
            let mut bench = Bench::new(place);
            bench.scan();
            for name in order {
                bench.place.put(name, &noop);
            }
            bench.look();
            bench.look();
            assert_eq!(bench.load(), [None, None]);
            assert_eq!(bench.stand(), both);
        }
        for place in Place::all() {
            // One of them is no good, which the other does not know at first.
            let mut bench = Bench::new(place);
            bench.scan();
            bench.place.put(order[0], &noop);
            bench.place.put(order[1], b"no component");
            bench.look();
            bench.look();
            let served = bench.load();
            assert_eq!(served.last().unwrap().as_deref(), Some(order[0]));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_removing_one_of_two_files_resolves_the_conflict_o_35() {
    let db = Db::new().await;
    let noop = guests::bytes("noop");
    let settings = format!("{SHORT}[plugins.b]\njob_types = ['mail']\n");
    for place in Place::all() {
        let (a, b) = (version(&noop, "a", 1), version(&noop, "b", 1));
        place.put("mail", &a);
        place.put("b", &b);
        place.put("other", &noop);
        let host = Host::start(&db, place.path(), &settings);
        host.ready().await;
        let warning = "several plugins claim one job type";
        host.reaches(warning, 1).await;
        let waits = db.enqueue("mail", "{}").await;
        // What else changes is no reason to warn again.
        let changed = version(&noop, "changed", 1);
        let put = place.put("other", &changed);
        serves(&db, "other", &changed, put).await;
        assert_eq!(db.state(waits).await, "pending");
        assert_eq!(host.count(warning), 1);
        fs::remove_file(place.file("mail")).unwrap();
        let removed = Instant::now();
        db.becomes(waits, "done").await;
        assert!(removed.elapsed() < SOON, "{:?}", removed.elapsed());
        assert_eq!(ran(&db, waits).await, hex(&digest(&b)));
    }
    db.drop().await;
}

#[test]
fn what_is_no_file_is_no_plugin_and_holds_nothing_up() {
    for place in Place::all() {
        let fifo = Mode::RUSR | Mode::WUSR;
        fs::create_dir(place.file("x")).unwrap();
        mknodat(CWD, place.file("y"), FileType::Fifo, fifo, 0).unwrap();
        symlink("nowhere", place.file("z")).unwrap();
        for number in 0..2000 {
            fs::write(place.path().join(format!("{number}.txt")), "no plugin").unwrap();
        }
        place.put("a", &guests::bytes("noop"));
        let mut permissions = fs::metadata(place.path()).unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(place.path(), permissions).unwrap();
        let mut bench = Bench::new(place);
        bench.scan();
        assert_eq!(bench.serving().as_deref(), Some("a"));
        assert_eq!(bench.stand().len(), 1);
        #[expect(
            clippy::permissions_set_readonly_false,
            reason = "a folder of this test alone"
        )]
        {
            let mut permissions = fs::metadata(bench.place.path()).unwrap().permissions();
            permissions.set_readonly(false);
            fs::set_permissions(bench.place.path(), permissions).unwrap();
        }
        // A pipe that takes the place of a file at the last moment.
        bench.place.put("b", &guests::bytes("flaky"));
        bench.look();
        bench.look();
        let load = bench.shelf.next_load(&HashSet::new()).unwrap();
        fs::remove_file(bench.place.file("b")).unwrap();
        mknodat(CWD, bench.place.file("b"), FileType::Fifo, fifo, 0).unwrap();
        let loaded = load.run(&bench.engine, &bench.config);
        bench.shelf.put(loaded, &bench.registry);
        bench.look();
        assert_eq!(bench.serving().as_deref(), Some("a"));
        assert_eq!(bench.stand().len(), 1);
    }
}
