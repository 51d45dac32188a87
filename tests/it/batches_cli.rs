//! `piecework enqueue-batch`, and the options that all commands which enqueue share.

use piecework::job::JobId;

use super::cli::{refused, run, text};
use super::support::db::Db;
use super::support::guests::Folder;
use super::support::process::{Host, command};

/// The command with this on its standard input.
fn fed(db: &Db, folder: &std::path::Path, arguments: &[&str], input: &str) -> std::process::Output {
    std::fs::write(folder.join("input"), input).unwrap();
    command()
        .current_dir(folder)
        .args(arguments)
        .env("DATABASE_URL", db.url())
        .env_remove("RUST_LOG")
        .stdin(std::fs::File::open(folder.join("input")).unwrap())
        .output()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_a_batch_is_enqueued_and_its_last_job_waited_for() {
    let db = Db::new().await;
    let folder = Folder::with(&[("probe", "probe"), ("noop", "noop")]);
    let host = Host::start(&db, folder.path(), "");
    host.ready().await;
    let here = folder.path();
    let jobs = r#"[{"job_type": "noop", "group_key": "ann"}, {"job_type": "probe", "payload": {"do": "fail", "text": "no", "disposition": "discard"}}]"#;
    std::fs::write(here.join("jobs.json"), jobs).unwrap();
    let last = r#"{"job_type": "probe", "payload": {"do": "echo", "n": 7}}"#;
    let waited = run(
        Some(&db),
        here,
        &[
            "enqueue-batch",
            "@jobs.json",
            "--then",
            last,
            "--wait",
            "--json",
        ],
    );
    assert_eq!(waited.status.code(), Some(0), "{}", text(&waited.stderr));
    let answer: serde_json::Value = serde_json::from_slice(&waited.stdout).unwrap();
    assert_eq!(answer["state"], "done");
    let batch = answer["id"].to_string();
    let of_it = "select count(*)::text from piecework.job_history where batch = $1";
    let id = JobId(answer["id"].as_i64().unwrap());
    assert_eq!(db.text(of_it, id).await.as_deref(), Some("3"));
    // What a person sees of a job of it.
    let member = db
        .number("select id from piecework.job_history where group_key = 'ann'")
        .await;
    let shown = text(&run(Some(&db), here, &["jobs", "show", &member.to_string()]).stdout);
    for line in [
        format!("{:13} {batch}", "batch"),
        format!("{:13} ann", "group_key"),
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{shown}");
    }
    // Its last job fails: so does the command.
    let last = r#"{"job_type": "probe", "payload": {"do": "fail", "text": "all of it was in vain", "disposition": "discard"}}"#;
    let failed = fed(
        &db,
        here,
        &["enqueue-batch", "-", "--then", last, "--wait"],
        jobs,
    );
    assert_eq!(failed.status.code(), Some(1));
    assert!(
        text(&failed.stderr).contains("all of it was in vain"),
        "{}",
        text(&failed.stderr)
    );
    drop(host);
    db.drop().await;
}

#[tokio::test]
async fn a_batch_prints_its_id_and_says_what_is_wrong() {
    let db = Db::new().await;
    let folder = Folder::new();
    let here = folder.path();
    let last = r#"{"job_type": "report"}"#;
    let jobs = r#"[{"job_type": "mail"}]"#;
    let output = run(Some(&db), here, &["enqueue-batch", jobs, "--then", last]);
    let last_job = db
        .number("select id from piecework.job where job_type = 'report'")
        .await;
    assert_eq!(text(&output.stdout), last_job.to_string());
    let output = fed(
        &db,
        here,
        &["enqueue-batch", "-", "--then", last, "--json"],
        "[]",
    );
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(answer["id"].as_i64().unwrap() > last_job);
    let before = db.number("select count(*) from piecework.job").await;
    for (jobs, last, says) in [
        ("[", last, "the batch given is refused: it is not JSON"),
        ("{}", last, "takes a JSON array of jobs"),
        (
            r#"[{"job_type": "mail", "prio": 1}]"#,
            last,
            "job 0: `prio` is not known",
        ),
        ("[]", "{}", "and_then: it needs a `job_type`"),
        ("[]", "report", "the last job given is refused"),
        (
            "@nothing.json",
            last,
            "cannot read the batch file `nothing.json`",
        ),
    ] {
        let output = run(Some(&db), here, &["enqueue-batch", jobs, "--then", last]);
        refused(&output, 2, says);
    }
    let after = db.number("select count(*) from piecework.job").await;
    assert_eq!(after, before);
    db.drop().await;
}

#[tokio::test]
async fn publish_takes_the_options_of_enqueue() {
    let db = Db::new().await;
    let folder = Folder::new();
    let here = folder.path();
    db.store
        .subscribe("order.paid", "ship", true)
        .await
        .unwrap();
    let options = "--due 2100-01-01T00:00:00Z --priority 3 --max-attempts 7 --unique-key u --unique-for 1h --ordering-key o --group-key g";
    for command in ["publish order.paid", "enqueue bill"] {
        let line = format!("{command} {{}} {options}");
        let arguments: Vec<_> = line.split(' ').collect();
        let output = run(Some(&db), here, &arguments);
        assert_eq!(text(&output.stderr), "");
        assert_eq!(output.status.code(), Some(0));
    }
    let same = "
        select count(*) from piecework.job where job_type in ('ship', 'bill') and due_at = '2100-01-01 00:00:00+00'
          and priority = 3 and max_attempts = 7 and unique_key = 'u' and ordering_key = 'o' and group_key = 'g'";
    assert_eq!(db.number(same).await, 2);
    let windows = "select count(*) from piecework.unique_window";
    assert_eq!(db.number(windows).await, 2);
    // The options leave the commands their own help.
    let help = text(&run(None, here, &["publish", "--help"]).stdout);
    assert!(
        help.starts_with("Enqueue one job for each job type"),
        "{help}"
    );
    db.drop().await;
}
