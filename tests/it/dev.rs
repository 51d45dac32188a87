//! The private PostgreSQL cluster, with real binaries. Without any on the machine these tests say so and pass.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use piecework::dev::{Cluster, Environment, Options, Source, find_binaries, find_in};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// A folder below the temporary one, because root's server drops to a user who could not enter a checkout in `/root`.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "piecework-dev-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        Self(std::env::temp_dir().join(name))
    }

    fn options(&self) -> Options {
        Options {
            folder: Some(self.0.clone()),
            ..Options::default()
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// `true` when the machine has PostgreSQL; says why not otherwise.
fn installed() -> bool {
    find_binaries().map_or_else(|error| skip(&format!("{error:#}")), |_| true)
}

fn skip(reason: &str) -> bool {
    drop(writeln!(std::io::stderr(), "skipped: {reason}"));
    false
}

/// Runs SQL through `psql`, which also proves that the URL is one that libpq takes.
fn sql(cluster: &Cluster, text: &str) -> anyhow::Result<String> {
    let output = Command::new(cluster.binaries().bin.join("psql"))
        .args([
            "-X",
            "-A",
            "-t",
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
            "-c",
            text,
            cluster.url(),
        ])
        .output()
        .context("run psql")?;
    ensure!(
        output.status.success(),
        "psql: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// `true` when the binaries come with `psql`; minimal copies of the server do not.
fn has_psql(cluster: &Cluster) -> bool {
    let psql = cluster.binaries().bin.join("psql");
    psql.is_file() || skip(&format!("no {}", psql.display()))
}

fn server(folder: &Folder, cluster: &Cluster) -> anyhow::Result<Pid> {
    let file = folder
        .0
        .join(format!("data-{}/postmaster.pid", cluster.binaries().major));
    let text = fs::read_to_string(file)?;
    Pid::from_raw(text.lines().next().context("pid")?.parse()?).context("pid")
}

fn running(pid: Pid) -> bool {
    test_kill_process(pid).is_ok()
}

#[test]
fn data_outlives_the_server() -> anyhow::Result<()> {
    if !installed() {
        return Ok(());
    }
    let folder = Folder::new();
    let cluster = Cluster::start(&folder.options())?;
    assert!(cluster.owned());
    let first = server(&folder, &cluster)?;
    let psql = has_psql(&cluster);
    if psql {
        sql(
            &cluster,
            "create table kept (n int); insert into kept values (1), (2)",
        )?;
    }
    cluster.stop()?;
    assert!(!running(first));

    let cluster = Cluster::start(&folder.options())?;
    let second = server(&folder, &cluster)?;
    if psql {
        assert_eq!(sql(&cluster, "select count(*) from kept")?, "2");
    }
    drop(cluster);
    assert!(!running(second), "dropping stops the server too");
    Ok(())
}

#[test]
fn settings_reach_the_server_and_ours_can_be_changed() -> anyhow::Result<()> {
    if !installed() {
        return Ok(());
    }
    let folder = Folder::new();
    let settings = vec![("max_connections".to_owned(), "17".to_owned())];
    let cluster = Cluster::start(&Options {
        fast: true,
        settings,
        ..folder.options()
    })?;
    if has_psql(&cluster) {
        let show = "select string_agg(name || '=' || setting, ' ' order by name) from pg_settings \
            where name in ('fsync', 'jit', 'listen_addresses', 'max_connections', 'synchronous_commit')";
        let shown = sql(&cluster, show)?;
        assert_eq!(
            shown,
            "fsync=on jit=off listen_addresses= max_connections=17 synchronous_commit=off"
        );
        assert_eq!(
            sql(&cluster, "select current_user || ' ' || current_database()")?,
            "piecework postgres"
        );
    }
    cluster.stop()
}

#[test]
fn a_running_server_is_joined_and_left_running() -> anyhow::Result<()> {
    if !installed() {
        return Ok(());
    }
    let folder = Folder::new();
    let owner = Cluster::start(&folder.options())?;
    let joined = Cluster::start(&folder.options())?;
    assert!(owner.owned() && !joined.owned());
    assert_eq!(owner.url(), joined.url());
    joined.stop()?;
    assert!(running(server(&folder, &owner)?));
    owner.stop()
}

#[test]
fn starts_at_the_same_time_end_with_one_server() -> anyhow::Result<()> {
    if !installed() {
        return Ok(());
    }
    let folder = Folder::new();
    let starts: Vec<_> = (0..4)
        .map(|_| {
            let options = folder.options();
            thread::spawn(move || Cluster::start(&options))
        })
        .collect();
    let started: Vec<Cluster> = starts
        .into_iter()
        .map(|start| start.join().expect("no panic"))
        .collect::<Result<_, _>>()?;
    assert_eq!(started.iter().filter(|cluster| cluster.owned()).count(), 1);
    let pid = server(&folder, &started[0])?;
    assert!(
        started
            .iter()
            .all(|cluster| cluster.url() == started[0].url())
    );
    // The threads that started it have ended, and with them must not end the server.
    assert!(running(pid));
    drop(started);
    assert!(!running(pid));
    Ok(())
}

#[test]
fn acknowledged_rows_survive_a_killed_server() -> anyhow::Result<()> {
    if !installed() {
        return Ok(());
    }
    let folder = Folder::new();
    let cluster = Cluster::start(&folder.options())?;
    let psql = has_psql(&cluster);
    if psql {
        sql(
            &cluster,
            "create table acknowledged as select generate_series(1, 1000) as n",
        )?;
    }
    kill_process(server(&folder, &cluster)?, Signal::KILL)?;
    // At once: the pid file still names the killed server, and its backends may not have noticed.
    let again = Cluster::start(&folder.options())?;
    assert!(again.owned());
    if psql {
        assert_eq!(sql(&again, "select count(*) from acknowledged")?, "1000");
    }
    cluster.stop()?;
    again.stop()
}

#[test]
fn a_path_too_long_for_a_socket_works() -> anyhow::Result<()> {
    if !installed() {
        return Ok(());
    }
    let outer = Folder::new();
    let deep = Folder(outer.0.join("x".repeat(120)).join("with, comma"));
    let owner = Cluster::start(&deep.options())?;
    assert!(!Cluster::start(&deep.options())?.owned());
    if has_psql(&owner) {
        let socket_folder = sql(&owner, "show unix_socket_directories")?;
        assert!(
            socket_folder.starts_with("/tmp/piecework-"),
            "{socket_folder}"
        );
        owner.stop()?;
        fs::remove_dir(socket_folder)?;
    }
    Ok(())
}

#[test]
fn a_half_made_cluster_is_made_anew() -> anyhow::Result<()> {
    let Ok(binaries) = find_binaries() else {
        return Ok(());
    };
    let folder = Folder::new();
    fs::create_dir_all(folder.0.join(format!("data-{}.tmp/base", binaries.major)))?;
    Cluster::start(&folder.options())?.stop()
}

#[test]
fn a_server_that_cannot_start_shows_its_log() {
    if !installed() {
        return;
    }
    let folder = Folder::new();
    let settings = vec![("no_such_setting".to_owned(), "1".to_owned())];
    let begun = Instant::now();
    let error = Cluster::start(&Options {
        settings,
        ..folder.options()
    })
    .expect_err("unknown setting");
    assert!(
        format!("{error:#}").contains("unrecognized configuration parameter \"no_such_setting\""),
        "{error:#}"
    );
    assert!(
        begun.elapsed() < Duration::from_secs(60),
        "it is not tried again"
    );
}

#[test]
fn missing_binaries_name_the_three_ways_out() {
    let nowhere = Environment {
        root: PathBuf::from("/nonexistent"),
        ..Environment::default()
    };
    let error = format!("{:#}", find_in(&nowhere).expect_err("nothing there"));
    for way in [
        "postgresql package",
        "scripts/setup.sh",
        "PIECEWORK_PG_BIN",
        "DATABASE_URL",
    ] {
        assert!(error.contains(way), "{way} is not in: {error}");
    }
    let named = Environment {
        pg_bin: Some("/nonexistent/bin".into()),
        ..Environment::current()
    };
    let error = format!(
        "{:#}",
        find_in(&named).expect_err("a named folder is not replaced by another")
    );
    assert!(
        error.contains("/nonexistent/bin") && error.contains("DATABASE_URL"),
        "{error}"
    );
}

#[test]
fn binaries_are_tried_in_order() -> anyhow::Result<()> {
    let places = Folder::new();
    let root = places.0.join("root");
    let cache = places.0.join("cache");
    fake(&root.join("usr/lib/postgresql/9.6/bin"), "9.6.24")?;
    fake(&root.join("usr/lib/postgresql/12/bin"), "12.20")?;
    let mut environment = Environment {
        root: root.clone(),
        cache: Some(cache.clone()),
        ..Environment::default()
    };
    let error = format!("{:#}", find_in(&environment).expect_err("both too old"));
    assert!(error.contains("PostgreSQL 12 is older than 13"), "{error}");

    for version in ["9.9", "17.4", "18.6.3", "18.10.1"] {
        fake(&cache.join(format!("postgres-{version}/bin")), version)?;
    }
    let found = find_in(&environment)?;
    assert_eq!(
        (found.bin, found.major, found.source),
        (cache.join("postgres-18.10.1/bin"), 18, Source::Cache)
    );

    fake(&root.join("usr/pgsql-14/bin"), "14.1")?;
    assert_eq!(find_in(&environment)?.major, 14, "installed before fetched");
    fake(
        &root.join("usr/lib/postgresql/15/bin"),
        "15.18 (Debian 15.18-0+deb12u1)",
    )?;
    assert_eq!(
        find_in(&environment)?.bin,
        root.join("usr/lib/postgresql/15/bin")
    );

    fake(&places.0.join("real"), "16.2")?;
    fs::create_dir(places.0.join("path"))?;
    std::os::unix::fs::symlink(
        places.0.join("real/postgres"),
        places.0.join("path/postgres"),
    )?;
    environment.path = Some(std::env::join_paths([
        places.0.join("empty"),
        places.0.join("path"),
    ])?);
    let found = find_in(&environment)?;
    assert_eq!(found.major, 16, "PATH before the well-known places");
    assert_eq!(
        found.bin,
        places.0.join("real").canonicalize()?,
        "a link is followed to where its company is"
    );

    fake(&places.0.join("named"), "13.0")?;
    environment.pg_bin = Some(places.0.join("named"));
    let found = find_in(&environment)?;
    assert_eq!((found.major, found.source), (13, Source::Variable));
    Ok(())
}

/// A folder with an `initdb` and a `postgres` that only know their version.
fn fake(bin: &Path, version: &str) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::create_dir_all(bin)?;
    for name in ["initdb", "postgres"] {
        let file = bin.join(name);
        fs::write(
            &file,
            format!("#!/bin/sh\necho '{name} (PostgreSQL) {version}'\n"),
        )?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}
