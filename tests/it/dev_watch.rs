//! `piecework dev --watch` as a process: a save builds, swaps and runs the last job anew.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::support::db::Db;
use super::support::guests::{self, Folder};
use super::support::process::command;
use super::support::until;

/// Copies the component that `source` names: a build, as far as the host can tell.
const BUILD: &str = "#!/bin/sh
set -eu
cd \"$(dirname \"$0\")\"
mkdir -p plugins build
if [ -f broken ]; then printf 'handler.c:7: no such thing\\nhandler.c:8: nor this\\n' >&2; exit 3; fi
if [ -f slow ]; then echo $$ >build/pid; sleep 600; fi
cp \"build/$(cat source).wasm\" plugins/.work.tmp
mv plugins/.work.tmp plugins/work.wasm
";

struct Watch {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Watch {
    async fn says(&self, text: &str) -> String {
        until(text, || async {
            let lines = self.lines.lock().unwrap();
            lines.iter().find(|line| line.contains(text)).cloned()
        })
        .await
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.lines.lock().unwrap().join("\n"));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_dev_watch_builds_swaps_and_runs_the_last_job_anew() {
    use std::os::unix::fs::PermissionsExt;
    let db = Db::new().await;
    let project = Folder::new();
    let at = |name: &str| project.path().join(name);
    fs::create_dir(at("build")).unwrap();
    for guest in ["noop", "probe"] {
        fs::write(
            at("build").join(guest).with_extension("wasm"),
            guests::bytes(guest),
        )
        .unwrap();
    }
    fs::write(at("build.sh"), BUILD).unwrap();
    fs::set_permissions(at("build.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(at("source"), "noop").unwrap();
    let mut child = command()
        .args(["--log-level", "error", "dev", "--watch"])
        .arg(project.path())
        .env("DATABASE_URL", db.url())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = Arc::new(Mutex::new(Vec::new()));
    let (reader, into) = (BufReader::new(child.stdout.take().unwrap()), lines.clone());
    std::thread::spawn(move || {
        for line in reader.lines().map_while(Result::ok) {
            into.lock().unwrap().push(line);
        }
    });
    let mut watch = Watch { child, lines };

    // The first version, and no job yet.
    watch
        .says("`work` serves; its first job is up to you")
        .await;
    let first = db.enqueue("work", r#"{"do":"echo","n":7}"#).await;
    db.becomes(first, "done").await;

    // A save: the next version runs the same payload.
    fs::write(at("source"), "probe").unwrap();
    watch
        .says("job 2, again with {\"n\": 7, \"do\": \"echo\"}")
        .await;
    let said = watch.says("job 2 done").await;
    assert!(said.contains("\"n\""), "{said}");

    // What cannot be built changes nothing.
    fs::write(at("broken"), "").unwrap();
    watch.says("handler.c:7: no such thing").await;
    let line = watch.says("nor this").await;
    assert_eq!(line, "handler.c:8: nor this");
    watch
        .says("the build failed (exit status: 3); what served before serves on")
        .await;
    let id = db.enqueue("work", r#"{"do":"echo"}"#).await;
    db.becomes(id, "done").await;

    // A build that is overtaken is ended, with what it has started.
    fs::write(at("slow"), "").unwrap();
    fs::remove_file(at("broken")).unwrap();
    let pid = |not: &str| {
        let (file, not) = (at("build/pid"), not.to_owned());
        async move {
            until("the slow build", || async {
                let pid = fs::read_to_string(&file).ok()?;
                (pid.ends_with('\n') && pid.trim() != not).then(|| pid.trim().to_owned())
            })
            .await
        }
    };
    let gone = |pid: String| async move {
        let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
        until("the end of a build", || async {
            test_kill_process(pid).is_err().then_some(())
        })
        .await;
    };
    let slow = pid("").await;
    fs::write(at("note"), "saved meanwhile").unwrap();
    watch.says("saved again, building anew").await;
    let second = pid(&slow).await;
    gone(slow).await;

    // And so is one that runs when the host is told to stop.
    kill_process(Pid::from_child(&watch.child), Signal::TERM).unwrap();
    let ended = tokio::task::spawn_blocking(move || {
        let status = watch.child.wait().unwrap();
        (status, watch)
    });
    let (status, _watch) = ended.await.unwrap();
    assert!(status.success(), "{status}");
    gone(second).await;
    db.drop().await;
}

#[test]
fn process_dev_watch_wants_a_project() {
    let empty = Folder::new();
    let output = command()
        .args(["dev", "--watch"])
        .arg(empty.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("build.sh` to build with"), "{said}");
}
