//! Checkpoints: written at once, fenced, kept from attempt to attempt.

use std::time::Duration;

use piecework::config::{Config, Span};
use piecework::job::ClaimToken;
use piecework::runner::Runner;
use piecework::store::{Error, Save, Saved, Verdict};
use serde_json::json;

use super::fence::{demand, finish, runner};
use super::support::bed::{Bed, job, ties};
use super::support::db::Db;
use super::support::guests::Folder;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_goes_on_where_the_failed_attempt_was() {
    let db = Db::new().await;
    let folder = Folder::with(&[("probe", "probe")]);
    let mut config: Config = db.config(folder.path());
    config.defaults.retry_base = Span::millis(20);
    let host = Runner::start(config, db.store.clone()).await.unwrap();
    // Panics after the third step, which it had saved.
    let id = db
        .enqueue("probe", r#"{"do":"steps","steps":5,"fail_at":3,"ms":1}"#)
        .await;
    db.becomes(id, "done").await;
    let did = "select concat_ws(' ', attempt, result ->> 'did', attempts -> 0 ->> 'failure') from piecework.jobs where id = $1";
    assert_eq!(db.text(did, id).await.as_deref(), Some("2 [4, 5] trap"));
    // A job that ended well needs it no more; one that did not keeps it.
    let kept = "select checkpoint::text from piecework.jobs where id = $1";
    assert_eq!(db.text(kept, id).await, None);
    let id = db
        .enqueue(
            "probe",
            r#"{"do":"checkpoint_save","name":"a","json":"{\"n\":1.10}"}"#,
        )
        .await;
    db.becomes(id, "done").await;
    host.halt();
    host.join().await;
    db.drop().await;
}

#[tokio::test]
async fn a_stale_save_writes_nothing_and_a_bad_one_strands_nobody() {
    let db = Db::new().await;
    let runner = runner(&db).await;
    for _ in 0..2 {
        db.enqueue("a", "{}").await;
    }
    let claimed = db
        .store
        .claim(&demand(runner, &[("a", 2)], 2))
        .await
        .unwrap();
    let save = |n: usize, name: &str, json: &str| Save {
        id: claimed[n].id,
        claim: claimed[n].claim,
        name: name.into(),
        json: json.into(),
    };
    let mut late = save(1, "x", "1");
    late.claim = ClaimToken(late.claim.0 - 1);
    let stale = db
        .store
        .save_checkpoints(&[save(0, "a", "1.10"), late])
        .await
        .unwrap();
    assert_eq!(stale, [Saved::Written, Saved::Stale]);
    // Another name is added, the same one replaced.
    db.store
        .save_checkpoints(&[save(0, "b", r#"{"c": [1, null]}"#)])
        .await
        .unwrap();
    db.store
        .save_checkpoints(&[save(0, "a", "2.20")])
        .await
        .unwrap();
    let text = "select checkpoint::text from piecework.jobs where id = $1";
    assert_eq!(
        db.text(text, claimed[0].id).await.as_deref(),
        Some(r#"{"a": 2.20, "b": {"c": [1, null]}}"#)
    );
    assert_eq!(db.text(text, claimed[1].id).await, None);
    // No JSON check foresees this: the number is too large for the database.
    let bad = db
        .store
        .save_checkpoints(&[save(1, "n", "1e1000000")])
        .await;
    assert!(matches!(bad, Err(Error::Refused { .. })), "{bad:?}");
    // A row that somebody has locked holds up nobody else.
    let mut other = db.pool.begin().await.unwrap();
    sqlx::query("select from piecework.job where id = $1 for update")
        .bind(claimed[1].id.0)
        .execute(&mut *other)
        .await
        .unwrap();
    let saves = [save(0, "c", "3"), save(1, "c", "3")];
    assert_eq!(
        db.store.save_checkpoints(&saves).await.unwrap(),
        [Saved::Written, Saved::Locked]
    );
    other.rollback().await.unwrap();
    db.store
        .save_checkpoints(&[save(0, "c", "null")])
        .await
        .unwrap();
    // It comes with the next claim, and a failed job keeps it.
    let again = finish(
        &claimed[0],
        Verdict::Again {
            delay: Duration::ZERO,
            refund: false,
        },
    );
    db.store.round(&[again], None).await.unwrap();
    let next = db
        .store
        .claim(&demand(runner, &[("a", 2)], 2))
        .await
        .unwrap();
    assert_eq!(
        next[0].checkpoint.as_deref(),
        Some(r#"{"a": 2.20, "b": {"c": [1, null]}, "c": null}"#)
    );
    db.store
        .round(&[finish(&next[0], Verdict::Failed)], None)
        .await
        .unwrap();
    assert!(db.text(text, next[0].id).await.is_some());
    assert_eq!(db.state(next[0].id).await, "failed");
    // What the last attempt reported without its having been written in time is there too.
    let progress = "select progress ->> 'message' from piecework.jobs where id = $1";
    assert_eq!(
        db.text(progress, next[0].id).await.as_deref(),
        Some("under way")
    );
    db.drop().await;
}

#[tokio::test]
async fn what_a_handler_saves_it_can_load_and_limits_hold() {
    let bed = Bed::with("probe", "[defaults]\ncheckpoint = \"1KiB\"\n");
    let mut attempt = job(r#"{"do":"checkpoint_load","name":"a"}"#);
    attempt.checkpoint = Some(r#"{"a": {"n": 1.10}, "b": 2}"#.into());
    let outcome = bed
        .engine
        .call(&bed.handler, &bed.grants, &attempt, &ties())
        .await;
    assert_eq!(
        outcome.verdict.unwrap().as_deref(),
        Some(r#"{"value":"{\"n\": 1.10}"}"#)
    );
    assert_eq!(
        bed.answer(r#"{"do":"checkpoint_load","name":"a"}"#).await,
        json!({ "value": null })
    );
    let save = |name: &str, json: &str| {
        json!({ "do": "checkpoint_save", "name": name, "json": json }).to_string()
    };
    assert_eq!(
        bed.answer(&save("a", "[1]")).await,
        json!({ "saved": true })
    );
    for (payload, reason) in [
        (save("a", "{"), "not JSON"),
        (save("a", r#""\u0000""#), "U+0000"),
        // Eight bytes that PostgreSQL would write out as a hundred thousand.
        (save("a", "[1e131071]"), "the limit is 1024"),
        (save("a", "1e1000000"), "more digits"),
        (save("", "1"), "1 to 200 bytes"),
        (save(&"n".repeat(201), "1"), "1 to 200 bytes"),
        (
            save("a", &format!("\"{}\"", "x".repeat(1022))),
            "would have 1025",
        ),
        (
            save("a", &format!("\"{}\"", "x".repeat(2000))),
            "the limit is 1024",
        ),
    ] {
        let answer = bed.answer(&payload).await;
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(error.contains(reason), "{payload}: {answer}");
    }
}
