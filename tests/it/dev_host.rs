//! `piecework dev` as a process: it owns the private server, also when it is killed.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use sqlx::Row;
use sqlx::postgres::PgPool;

use crate::support::guests::Folder;
use crate::support::process::command;

struct Dev {
    child: Child,
    url: String,
    _lines: Lines<BufReader<ChildStdout>>,
}

impl Dev {
    fn start(data: &Path, arguments: &[&str]) -> Self {
        let mut child = command()
            .args(["dev", "--data"])
            .arg(data)
            .args(arguments)
            .env_remove("DATABASE_URL")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let url = first.strip_prefix("DATABASE_URL=").unwrap().to_owned();
        Self {
            child,
            url,
            _lines: lines,
        }
    }

    fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn process_a_dev_host_that_is_killed_loses_no_job_and_starts_again() {
    let folder = Folder::with(&[("probe", "probe")]);
    let data = folder.path().join("data");
    let mut dev = Dev::start(&data, &["--database-only"]);
    let pool = PgPool::connect(&dev.url).await.unwrap();
    let id: i64 = sqlx::query(r#"select piecework.enqueue('probe', '{"do":"ok"}')"#)
        .fetch_one(&pool)
        .await
        .unwrap()
        .get(0);
    dev.child.kill().unwrap();
    dev.child.wait().unwrap();
    pool.close().await;

    // At once, while the server of the killed host is still leaving; this time with a runner.
    let dev = Dev::start(&data, &["--plugins", folder.path().to_str().unwrap()]);
    let pool = PgPool::connect(&dev.url).await.unwrap();
    crate::support::until("the job to be done", || async {
        let done =
            sqlx::query("select from piecework.job_history where id = $1 and state = 'done'")
                .bind(id)
                .fetch_optional(&pool)
                .await
                .unwrap();
        done.map(drop)
    })
    .await;
    pool.close().await;
    dev.stop();
    // Stopped with its host: nobody answers any more.
    assert!(piecework::dev::Cluster::find_running(Some(&data)).is_none());
}
