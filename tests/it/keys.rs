//! The key that a handler passes to outside services.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::db::Db;
use crate::support::guests::Folder;
use crate::support::process::{Host, SHORT};
use crate::support::until;

/// Two attempts that fail, one whose host is killed, and the last one on a host that was not there before. Shorter retries
/// than the case has: they only make the test wait.
#[tokio::test]
async fn process_o_08_the_key_stays_the_same_over_attempts_and_hosts() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("probe", "probe")]);
    let settings = SHORT.replace("retry_base = '1s'", "retry_base = '100ms'");
    let mut first = Host::start(&db, plugins.path(), &settings);
    first.ready().await;
    let jobs = db
        .enqueue_times(2, "probe", r#"{"do": "call", "ms": 700, "until": 2}"#)
        .await;
    until("both third attempts", || async {
        let third = |record: &&Value| record["attempt"] == 3;
        (first
            .records("attempt started")
            .iter()
            .filter(third)
            .count()
            == 2
            && calls(&first).len() == 6)
            .then_some(())
    })
    .await;
    first.kill();
    let second = Host::start(&db, plugins.path(), &settings);
    for id in &jobs {
        db.becomes(*id, "done").await;
    }

    let mut keys = BTreeSet::new();
    for id in &jobs {
        let hosts = [calls(&first), calls(&second)].concat();
        let of_job: Vec<_> = hosts
            .iter()
            .filter(|call| call[0] == id.to_string())
            .collect();
        let attempts: Vec<_> = of_job.iter().map(|call| call[1].as_str()).collect();
        assert_eq!(attempts, ["1", "2", "3", "4"]);
        let key = &of_job[0][2];
        assert!(of_job.iter().all(|call| call[2] == *key), "{of_job:?}");
        // What the handler returned at last is no other than what it sent before.
        let result = db
            .text(
                "select result::text from piecework.job_history where id = $1",
                *id,
            )
            .await
            .unwrap();
        let result: Value = serde_json::from_str(&result).unwrap();
        assert_eq!(result["key"], **key);
        assert_eq!(result["attempt"], 4);
        keys.insert(key.clone());
    }
    assert_eq!(keys.len(), 2, "each job has its own: {keys:?}");
    db.drop().await;
}

/// The calls that guests of this host made, each with job id, attempt and key.
fn calls(host: &Host) -> Vec<[String; 3]> {
    let lines = host
        .log()
        .into_iter()
        .filter_map(|line| serde_json::from_str::<Value>(&line).ok());
    let words = |line: Value| {
        let mut words = line["message"]
            .as_str()?
            .strip_prefix("called: ")?
            .split(' ')
            .skip(1)
            .step_by(2);
        let mut next = || words.next().map(str::to_owned);
        Some([next()?, next()?, next()?])
    };
    lines.filter_map(words).collect()
}
