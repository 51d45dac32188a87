//! O-17 and O-18: what JSON becomes on its way: text that `jsonb` cannot keep is refused wherever it comes in, numbers arrive as they were sent.

use piecework::job::JobId;
use piecework::store::Error;
use serde_json::json;

use super::support::field::{Field, misused, piecework, printed, probe};

/// What `jsonb` cannot keep, and what a refusal calls it.
const UNKEPT: [(&str, &str); 4] = [
    (r#"{"a":"x\u0000y"}"#, "U+0000"),
    (r#"{"\u0000":1}"#, "U+0000"),
    (r#""\ud800""#, "half a surrogate pair"),
    (r#"["\udc00\ud800"]"#, "half a surrogate pair"),
];

/// The numbers of O-18. PostgreSQL's have no sign at zero: `-0` arrives as `0`.
const SENT: &str = r#"{"do":"echo","n":[9007199254740993,18446744073709551616,1.10,0.1000000000000000055511151231257827,-0]}"#;
const KEPT: &str =
    "[9007199254740993, 18446744073709551616, 1.10, 0.1000000000000000055511151231257827, 0]";

#[tokio::test]
async fn process_o_17_the_commands_name_what_cannot_be_kept() {
    let field = Field::new().await;
    let url = field.db.url();
    field
        .db
        .store
        .subscribe("news", "probe", true)
        .await
        .unwrap();
    let file = field.folder.path().join("payload.json");
    for (payload, cause) in UNKEPT {
        std::fs::write(&file, payload).unwrap();
        let from_file = format!("@{}", file.display());
        for argument in [payload, &from_file, "-"] {
            let words = &["the payload", "is refused", cause];
            misused(
                &piecework(url, &["enqueue", "probe", argument], payload),
                words,
            );
            misused(
                &piecework(url, &["publish", "news", argument], payload),
                words,
            );
        }
    }
    assert_eq!(
        field.db.number("select count(*) from piecework.jobs").await,
        0
    );
    field.db.drop().await;
}

/// PostgreSQL's own error, since the argument is `jsonb`.
#[tokio::test]
async fn o_17_sql_refuses_what_cannot_be_kept() {
    let field = Field::new().await;
    let store = &field.db.store;
    store.subscribe("news", "probe", true).await.unwrap();
    for (payload, _) in UNKEPT {
        let many =
            format!(r#"[{{"job_type":"probe"}},{{"job_type":"probe","payload":{payload}}}]"#);
        let answers = [
            store.enqueue(&probe(payload)).await.map(drop),
            store.enqueue_many(&many).await.map(drop),
            store.publish("news", &probe(payload)).await.map(drop),
        ];
        for answer in answers {
            let error = answer.unwrap_err();
            assert!(matches!(error, Error::Refused { .. }), "{error:?}");
            assert!(error.to_string().contains("nicode"), "{error}");
        }
        for statement in [
            "select piecework.enqueue('probe', $1::text::jsonb)",
            "select piecework.publish('news', $1::text::jsonb)",
            "insert into piecework.job (job_type, payload) values ('probe', $1::text::jsonb)",
        ] {
            let refused = sqlx::query(statement)
                .bind(payload)
                .execute(&field.db.pool)
                .await;
            let error = refused.unwrap_err();
            let code = error.as_database_error().unwrap().code().unwrap();
            assert!(code.starts_with("22P0"), "{statement}: {code} {error}");
        }
    }
    assert_eq!(
        field.db.number("select count(*) from piecework.jobs").await,
        0
    );
    field.db.drop().await;
}

/// The handler learns of it from its call; when it lets that be its end, the cause is the job's.
#[tokio::test(flavor = "multi_thread")]
async fn o_17_a_follow_up_that_cannot_be_kept_is_refused_in_the_handler() {
    let field = Field::new().await;
    let runner = field.start().await;
    for (payload, cause) in UNKEPT {
        let follow = json!({ "do": "follow", "job_type": "never", "payload_text": payload });
        let id = field.db.enqueue("probe", &follow.to_string()).await;
        assert_eq!(field.ended(id).await, "failed", "{payload}");
        let how =
            "select concat_ws(' ', attempt, failure, last_error) from piecework.jobs where id = $1";
        let how = field.db.text(how, id).await.unwrap();
        assert!(
            how.starts_with("1 guest_discard ") && how.contains(cause),
            "{how}"
        );
    }
    let followed = "select count(*) from piecework.jobs where job_type = 'never'";
    assert_eq!(field.db.number(followed).await, 0);
    field.end(runner).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn process_o_18_numbers_arrive_with_their_digits_whichever_way_they_come() {
    let field = Field::new().await;
    let db = &field.db;
    db.store.subscribe("news", "probe", true).await.unwrap();
    let cli = printed(&piecework(db.url(), &["enqueue", "probe", SENT], ""));
    let stdin = printed(&piecework(db.url(), &["enqueue", "probe", "-"], SENT));
    let mut ids = vec![
        JobId(cli.parse().unwrap()),
        JobId(stdin.parse().unwrap()),
        db.enqueue("probe", SENT).await,
    ];
    ids.extend(db.enqueue_times(2, "probe", SENT).await);
    db.store.publish("news", &probe(SENT)).await.unwrap();
    printed(&piecework(db.url(), &["publish", "news", SENT], ""));
    // Started anew after a cancel.
    let anew = db.enqueue("probe", SENT).await;
    db.store.cancel(anew).await.unwrap();
    db.store.retry(anew).await.unwrap();
    ids.push(anew);
    let follow = json!({ "do": "follow", "job_type": "probe", "payload_text": SENT }).to_string();
    let first = db.enqueue("probe", &follow).await;
    let runner = field.start().await;
    assert_eq!(field.ended(first).await, "done");
    let echoes =
        "select count(*) from piecework.jobs where state = 'done' and payload ->> 'do' = 'echo'";
    // The ids, two published ones, one follow-up.
    db.until(i64::try_from(ids.len()).unwrap() + 3, echoes)
        .await;
    // What the guest was given is what it answered with.
    let same = "select count(*) from piecework.jobs where payload ->> 'do' = 'echo' and result ->> 'n' =
        '[9007199254740993, 18446744073709551616, 1.10, 0.1000000000000000055511151231257827, 0]' and payload = result";
    assert_eq!(db.number(same).await, db.number(echoes).await);
    for id in [ids[0], anew] {
        for arguments in [&["jobs", "show"][..], &["jobs", "show", "--json"]] {
            let id = id.to_string();
            let shown = printed(&piecework(
                db.url(),
                &[arguments, &[id.as_str()]].concat(),
                "",
            ));
            // As payload and as result; spaces are the printer's.
            let bare = shown.replace(char::is_whitespace, "");
            let wanted = KEPT.replace(' ', "");
            assert_eq!(bare.matches(&wanted).count(), 2, "{shown}");
        }
    }
    let waited = printed(&piecework(
        db.url(),
        &["enqueue", "probe", SENT, "--wait"],
        "",
    ));
    assert!(waited.contains(KEPT), "{waited}");
    field.end(runner).await;
}
