//! Compiled components are kept, and whatever speaks against a kept one makes it a miss: the component is compiled and serves.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use piecework::config::Config;
use piecework::engine::{Engine, Handler};
use sha2::{Digest, Sha256};

use super::support::guests::{self, Folder};
use super::support::process::command;

/// A cache in a folder of its own.
struct Kept {
    _files: Folder,
    folder: PathBuf,
}

impl Kept {
    fn new() -> Self {
        let files = Folder::new();
        let folder = files.path().join("compiled");
        Self {
            _files: files,
            folder,
        }
    }

    /// With the component in it.
    fn warm() -> Self {
        let kept = Self::new();
        assert!(!kept.hits());
        assert!(kept.hits(), "the second start has it");
        kept
    }

    /// Whether a process that starts now finds the component; it can serve in any case.
    fn hits(&self) -> bool {
        self.hits_as("", false)
    }

    fn hits_as(&self, engine: &str, fuel: bool) -> bool {
        compile(&self.folder, engine, fuel).cached()
    }

    /// The one file.
    fn file(&self) -> PathBuf {
        let files = self.files();
        assert_eq!(files.len(), 1, "{files:?}");
        files.into_iter().next().unwrap()
    }

    fn files(&self) -> Vec<PathBuf> {
        fs::read_dir(&self.folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect()
    }
}

fn compile(cache: &Path, engine: &str, fuel: bool) -> Handler {
    let settings = format!("[engine]\ncache = '{}'\n{engine}", cache.display());
    let config = Config::parse(&settings, Path::new("runner.toml")).unwrap();
    Engine::new(&config, 1)
        .unwrap()
        .compile(&guests::bytes("noop"), fuel)
        .unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn what_was_compiled_is_kept_for_this_user_alone() {
    let kept = Kept::warm();
    assert_eq!(mode(&kept.folder), 0o700);
    assert_eq!(mode(&kept.file()), 0o600);
}

#[test]
fn a_file_that_is_not_what_was_written_is_a_miss_and_made_again() {
    let kept = Kept::warm();
    let file = kept.file();
    let whole = fs::read(&file).unwrap();
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    for damaged in [
        Vec::new(),
        whole[..20].to_vec(),
        whole[..whole.len() / 2].to_vec(),
        whole[..whole.len() - 1].to_vec(),
        [whole.as_slice(), b"x"].concat(),
        flipped(3),
        flipped(30),
        flipped(whole.len() / 2),
        // What wasmtime itself would take.
        whole[53..].to_vec(),
    ] {
        fs::write(&file, damaged).unwrap();
        assert!(!kept.hits());
        assert!(kept.hits(), "it was made again");
    }
}

#[test]
fn the_form_for_other_settings_is_never_taken() {
    let kept = Kept::warm();
    let plain = kept.file();
    assert!(!kept.hits_as("", true), "fuel");
    assert!(!kept.hits_as("gc = true\n", false), "gc");
    // These are not compiled in.
    assert!(kept.hits_as("stack = '256KiB'\ntick = '10ms'\n", false));
    assert!(kept.hits_as("", true) && kept.hits_as("gc = true\n", false));
    // Nor under another's name.
    let others = kept.files();
    assert_eq!(others.len(), 3);
    for other in others.iter().filter(|other| **other != plain) {
        fs::copy(other, &plain).unwrap();
        assert!(!kept.hits());
    }
}

#[test]
fn a_file_that_others_could_have_written_is_a_miss() {
    let kept = Kept::warm();
    let file = kept.file();
    for mode in [0o620, 0o602, 0o666] {
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        assert!(!kept.hits());
        assert!(kept.hits());
    }
    let elsewhere = kept.folder.with_file_name("elsewhere");
    fs::rename(&file, &elsewhere).unwrap();
    symlink(&elsewhere, &file).unwrap();
    assert!(!kept.hits(), "a link");
    assert!(!fs::symlink_metadata(&file).unwrap().is_symlink());
    assert!(kept.hits());
    if rustix::process::geteuid().is_root() {
        chown(&file, Some(65_534), None).unwrap();
        assert!(!kept.hits(), "another's");
        assert!(kept.hits());
    }
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert!(!kept.hits() && !kept.hits(), "a folder in its place stays");
}

#[test]
fn a_folder_that_others_could_write_to_is_not_used() {
    let kept = Kept::warm();
    for mode in [0o770, 0o702, 0o1777] {
        fs::set_permissions(&kept.folder, Permissions::from_mode(mode)).unwrap();
        assert!(!kept.hits() && !kept.hits(), "{mode:o}");
    }
    fs::set_permissions(&kept.folder, Permissions::from_mode(0o755)).unwrap();
    assert!(kept.hits(), "others may read it");
    let link = kept.folder.with_file_name("link");
    symlink(&kept.folder, &link).unwrap();
    assert!(!compile(&link, "", false).cached(), "a link");
    let file = kept.folder.with_file_name("file");
    fs::write(&file, "").unwrap();
    assert!(!compile(&file, "", false).cached(), "no folder");
    if rustix::process::geteuid().is_root() {
        chown(&kept.folder, Some(65_534), None).unwrap();
        assert!(!kept.hits() && !kept.hits(), "another's");
    }
}

#[test]
fn a_folder_that_is_opened_to_others_later_is_not_used_any_more() {
    let kept = Kept::warm();
    let settings = format!("[engine]\ncache = '{}'\n", kept.folder.display());
    let config = Config::parse(&settings, Path::new("runner.toml")).unwrap();
    let engine = Engine::new(&config, 1).unwrap();
    let cached = || {
        let handler = engine.compile(&guests::bytes("noop"), false).unwrap();
        handler.cached()
    };
    assert!(cached());
    fs::set_permissions(&kept.folder, Permissions::from_mode(0o777)).unwrap();
    assert!(!cached());
}

#[test]
fn the_cache_can_be_off() {
    for _ in 0..2 {
        assert!(!compile(Path::new("off"), "", false).cached());
    }
    assert!(!Path::new("off").exists());
}

#[test]
fn what_nobody_used_for_a_month_is_removed_and_what_is_used_stays() {
    let kept = Kept::warm();
    let file = kept.file();
    let age = |path: &Path, days: u64| {
        let then = SystemTime::now() - Duration::from_secs(days * 86_400);
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(then).unwrap();
    };
    let foreign = kept.folder.join("notes.txt");
    let unfinished = kept.folder.join("x.unfinished");
    for path in [&foreign, &unfinished] {
        fs::write(path, "").unwrap();
        age(path, 40);
    }
    age(&file, 20);
    assert!(kept.hits());
    assert!(foreign.exists() && !unfinished.exists());
    let used = fs::metadata(&file).unwrap().modified().unwrap();
    assert!(used.elapsed().unwrap() < Duration::from_secs(86_400));
    age(&file, 31);
    assert!(!kept.hits());
}

#[test]
fn process_several_that_compile_at_once_all_serve_and_leave_one_file() {
    let kept = Kept::new();
    let files = Folder::with(&[("probe", "probe")]);
    let settings = format!("[engine]\ncache = '{}'\n", kept.folder.display());
    fs::write(files.path().join("runner.toml"), settings).unwrap();
    let check = || {
        let mut check = command();
        check.args(["plugins", "check", "probe.wasm", "--json"]);
        check.current_dir(files.path()).stdout(Stdio::piped());
        check.spawn().unwrap()
    };
    let answer = |check: std::process::Child| -> serde_json::Value {
        let output = check.wait_with_output().unwrap();
        assert!(output.status.success());
        serde_json::from_slice(&output.stdout).unwrap()
    };
    for check in [check(), check(), check()] {
        assert_eq!(answer(check)[0]["ok"], true);
    }
    assert_eq!(answer(check())[0]["cached"], true);
    kept.file();
    let mut list = command();
    list.args(["plugins", "list", "--plugins", ".", "--json"]);
    let listed = list.current_dir(files.path()).output().unwrap();
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed[0]["state"], "serving");
    assert_eq!(listed[0]["cached"], true);
}

/// As a file of the cache has it: under its own name, and with the checksum that goes with it.
fn sealed(file: &Path, compiled: &[u8]) -> Vec<u8> {
    let name = file.file_name().unwrap().to_str().unwrap();
    let checksum = Sha256::new().chain_update(name).chain_update(compiled);
    let begin = b"piecework compiled 1\n".as_slice();
    [begin, checksum.finalize().as_slice(), compiled].concat()
}

#[test]
fn o_36_the_form_of_another_wasmtime_is_a_miss_once() {
    let kept = Kept::warm();
    let file = kept.file();
    let whole = fs::read(&file).unwrap();
    assert_eq!(
        sealed(&file, &whole[53..]),
        whole,
        "the test knows the form"
    );
    // Version byte, length, then the version as text: 48 in `48.0.8`, or only what is before the dot.
    let at = whole.windows(4).position(|window| window == b"\0\x0248");
    let at = at.expect("the version in the compiled form") + 2;
    for version in [b"47", b"49"] {
        let mut other = whole.clone();
        other[at..at + 2].copy_from_slice(version);
        fs::write(&file, sealed(&file, &other[53..])).unwrap();
        assert!(!kept.hits(), "{version:?}");
        assert!(kept.hits(), "it was made again");
    }
    assert_eq!(fs::read(&file).unwrap(), whole);
}

#[test]
fn o_36_a_folder_without_write_permission_costs_only_time() {
    let kept = Kept::warm();
    fs::set_permissions(&kept.folder, Permissions::from_mode(0o500)).unwrap();
    assert!(kept.hits(), "what is there is read");
    fs::set_permissions(&kept.folder, Permissions::from_mode(0o700)).unwrap();
    fs::remove_file(kept.file()).unwrap();
    fs::set_permissions(&kept.folder, Permissions::from_mode(0o500)).unwrap();
    // Root writes there all the same; where root may not either is the test of a full disk.
    assert_eq!(
        (kept.hits(), kept.hits()),
        (false, rustix::process::geteuid().is_root())
    );
    fs::set_permissions(&kept.folder, Permissions::from_mode(0o700)).unwrap();
    // No folder can be made below a file.
    let file = kept.folder.with_file_name("plain");
    fs::write(&file, "").unwrap();
    assert!(!compile(&file.join("below"), "", false).cached());
}

/// Of this program with a log of its own: how often it compiled, and no line above a warning.
fn check_of(folder: &Path, cache: &Path) -> (bool, String) {
    let settings = format!("[engine]\ncache = '{}'\n", cache.display());
    fs::write(folder.join("runner.toml"), settings).unwrap();
    let mut check = command();
    check.args([
        "--log-level",
        "info",
        "plugins",
        "check",
        "noop.wasm",
        "--json",
    ]);
    let check = check.current_dir(folder).output().unwrap();
    let log = String::from_utf8_lossy(&check.stderr).into_owned();
    assert!(check.status.success() && !log.contains("ERROR"), "{log}");
    let answer: serde_json::Value = serde_json::from_slice(&check.stdout).unwrap();
    (answer[0]["cached"] == true, log)
}

#[test]
fn process_o_36_a_full_disk_or_a_read_only_one_costs_only_time() {
    let files = Folder::with(&[("noop", "noop")]);
    let disk = Folder::new();
    let mount = |options: &str| {
        let mut mount = std::process::Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", options, "none"])
            .arg(disk.path());
        mount
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    if !mount("size=64k,mode=700") {
        eprintln!("skipped: only root may mount a small disk");
        return;
    }
    let _mounted = Mounted(disk.path());
    let cache = disk.path().join("compiled");
    fs::create_dir(&cache).unwrap();
    fs::set_permissions(&cache, Permissions::from_mode(0o700)).unwrap();
    fs::write(disk.path().join("ballast"), vec![0; 60 * 1024]).unwrap();
    for _ in 0..2 {
        let (cached, log) = check_of(files.path(), &cache);
        assert!(!cached);
        assert_eq!(log.matches("was not written").count(), 1, "{log}");
        assert_eq!(
            fs::read_dir(&cache).unwrap().count(),
            0,
            "nothing is left half done"
        );
    }
    // With room it is compiled once more, and never again, also where nothing can be written any more.
    fs::remove_file(disk.path().join("ballast")).unwrap();
    assert!(mount("remount,size=64m"));
    assert!(!check_of(files.path(), &cache).0);
    assert!(check_of(files.path(), &cache).0);
    assert!(mount("remount,ro"));
    let (cached, log) = check_of(files.path(), &cache);
    assert!(cached && !log.contains("WARN"), "{log}");
    assert!(mount("remount,rw"));
    for file in fs::read_dir(&cache).unwrap() {
        fs::write(file.unwrap().path(), "").unwrap();
    }
    assert!(mount("remount,ro"));
    let (cached, log) = check_of(files.path(), &cache);
    assert!(!cached && log.matches("WARN").count() == 1, "{log}");
    assert!(mount("remount,rw"));
    assert!(!check_of(files.path(), &cache).0 && check_of(files.path(), &cache).0);
}

#[test]
fn process_o_36_a_limit_on_the_size_of_files_costs_only_time() {
    let files = Folder::with(&[("noop", "noop")]);
    let kept = Kept::new();
    let settings = format!("[engine]\ncache = '{}'\n", kept.folder.display());
    fs::write(files.path().join("runner.toml"), settings).unwrap();
    for _ in 0..2 {
        let program = command();
        let mut check = std::process::Command::new("sh");
        // Of 512 bytes; beyond it the system ends the process that writes.
        check.args(["-c", "ulimit -f 16; exec \"$0\" plugins check noop.wasm"]);
        check.arg(program.get_program()).current_dir(files.path());
        let check = check.output().unwrap();
        let log = String::from_utf8_lossy(&check.stderr);
        assert!(check.status.success(), "{}: {log}", check.status);
        assert_eq!(log.matches("WARN").count(), 1, "{log}");
        assert!(
            log.contains("LimitFSIZE") && !log.contains("ERROR"),
            "{log}"
        );
        assert_eq!(kept.files(), Vec::<PathBuf>::new());
    }
}

/// A disk that goes with the test.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(self.0).status();
    }
}
