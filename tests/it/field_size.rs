//! O-19: a big payload is refused early, and one that somebody wrote into the table by hand hurts nobody.

use std::io::Write as _;

use piecework::store::Error;

use super::support::field::{Field, misused, piecework, printed, probe};
use super::support::process::{Host, SHORT};

const MIB: usize = 1 << 20;

/// A JSON string of this many bytes, quotes included.
fn text_of(bytes: usize) -> String {
    format!("\"{}\"", "x".repeat(bytes - 2))
}

#[tokio::test]
async fn process_o_19_the_commands_refuse_a_big_payload_before_they_read_it_whole() {
    let field = Field::new().await;
    let url = field.db.url();
    let file = field.folder.path().join("payload.json");
    let argument = format!("@{}", file.display());
    std::fs::write(&file, text_of(MIB)).unwrap();
    printed(&piecework(url, &["enqueue", "probe", &argument], ""));
    printed(&piecework(url, &["enqueue", "probe", "-"], &text_of(MIB)));
    for size in [MIB + 1, 20 * MIB, 300 * MIB] {
        // Holes, so that nothing is written to the disk.
        std::fs::File::create(&file)
            .unwrap()
            .set_len(size as u64)
            .unwrap();
        for command in ["enqueue", "publish"] {
            misused(
                &piecework(url, &[command, "probe", &argument], ""),
                &[&format!("it has {size} bytes, the limit is 1048576")],
            );
        }
    }
    for size in [MIB + 1, 20 * MIB] {
        misused(
            &piecework(url, &["enqueue", "probe", "-"], &text_of(size)),
            &["on standard input", "more than 1048576 bytes"],
        );
    }
    // 300 MiB on standard input: it is not there to be read to its end.
    let mut child = super::support::process::command()
        .args(["enqueue", "probe", "-"])
        .env("DATABASE_URL", url)
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let block = vec![b' '; 64 * 1024];
    let taken = (0..4800)
        .take_while(|_| pipe.write_all(&block).is_ok())
        .count();
    assert!(taken < 4 * MIB / block.len(), "{taken} blocks were read");
    let output = child.wait_with_output().unwrap();
    misused(&output, &["more than 1048576 bytes"]);
    assert_eq!(
        field.db.number("select count(*) from piecework.jobs").await,
        2
    );
    field.db.drop().await;
}

#[tokio::test]
async fn o_19_sql_refuses_a_big_payload_with_its_size_and_the_limit() {
    let field = Field::new().await;
    let store = &field.db.store;
    store.subscribe("news", "probe", true).await.unwrap();
    store.enqueue(&probe(text_of(MIB))).await.unwrap();
    for size in [MIB + 1, 20 * MIB] {
        let says = format!("the payload has {size} bytes, the limit is 1048576");
        let payload = text_of(size);
        let many = format!(r#"[{{"job_type":"probe","payload":{payload}}}]"#);
        for answer in [
            store.enqueue(&probe(payload.clone())).await.map(drop),
            store.enqueue_many(&many).await.map(drop),
            store.publish("news", &probe(payload)).await.map(drop),
        ] {
            let error = answer.unwrap_err();
            assert!(matches!(error, Error::Refused { .. }), "{error:?}");
            assert!(error.to_string().contains(&says), "{error}");
        }
    }
    // More than any `jsonb` string may have: PostgreSQL's own error, which names its own limit.
    let huge = "select piecework.enqueue('probe', to_jsonb(repeat('x', 300 * 1024 * 1024)))";
    let error = sqlx::query(huge).execute(&field.db.pool).await.unwrap_err();
    assert!(error.to_string().contains("jsonb"), "{error}");
    // By hand, past the table's own limit.
    let by_hand = "insert into piecework.job (job_type, payload) values ('probe', to_jsonb(repeat('x', 20 * 1024 * 1024)))";
    let error = sqlx::query(by_hand)
        .execute(&field.db.pool)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("job_payload_check"), "{error}");
    assert_eq!(
        field.db.number("select count(*) from piecework.jobs").await,
        1
    );
    field.db.drop().await;
}

/// What the enqueue functions would not have let in.
#[tokio::test(flavor = "multi_thread")]
async fn o_19_a_big_payload_that_was_written_by_hand_fails_and_reaches_no_handler() {
    let field = Field::new().await;
    for by_hand in [
        // One byte too many, and the most that the table takes.
        "insert into piecework.job (job_type, payload) values ('probe', jsonb_build_object('do', 'ok', 'x', repeat('x', 1048576 - 20)))",
        "insert into piecework.job (job_type, payload) values ('probe', jsonb_build_object('do', 'ok', 'x', repeat('x', 16000000)))",
        // 1.6 KB in the table, 13 MB as text.
        "insert into piecework.job (job_type, payload, ordering_key, blocked) select 'probe', jsonb_agg('1e131071'::numeric), 'k', false from generate_series(1, 100)",
    ] {
        assert_eq!(
            sqlx::query(by_hand)
                .execute(&field.db.pool)
                .await
                .unwrap()
                .rows_affected(),
            1
        );
    }
    // The largest that may be, and one behind the last of its key.
    let largest = "select piecework.enqueue('probe', jsonb_build_object('do', 'ok', 'x', repeat('x', 1048576 - 21)))";
    sqlx::query(largest).execute(&field.db.pool).await.unwrap();
    let next = "select piecework.enqueue('probe', '{\"do\":\"ok\"}', ordering_key => 'k')";
    sqlx::query(next).execute(&field.db.pool).await.unwrap();
    let runner = field.start().await;
    field
        .db
        .until(5, "select count(*) from piecework.job_history")
        .await;
    let refused = "select count(*) from piecework.jobs where state = 'failed' and attempt = 1 and failure = 'payload_too_large'
        and last_error like '%more than 1048576 bytes%' and plugin is null and id <= 3";
    assert_eq!(field.db.number(refused).await, 3);
    let done = "select count(*) from piecework.jobs where state = 'done' and id > 3";
    assert_eq!(field.db.number(done).await, 2);
    field.end(runner).await;
}

/// The table's own limit is gone too. 200 jobs of 20 MiB each wait; the host has four slots, and never holds one of them.
#[tokio::test(flavor = "multi_thread")]
async fn process_o_19_big_payloads_that_wait_do_not_fill_the_host() {
    let field = Field::new().await;
    let db = &field.db;
    for statement in [
        "alter table piecework.job drop constraint job_payload_check",
        "create table big as select to_jsonb(repeat('x', 20 * 1024 * 1024)) as payload",
        // Compressed once, and copied as they are.
        "insert into piecework.job (job_type, payload) select 'probe', payload from big, generate_series(1, 200)",
    ] {
        sqlx::raw_sql(statement).execute(&db.pool).await.unwrap();
    }
    let ok = db.enqueue("probe", r#"{"do":"ok"}"#).await;
    let listed = printed(&piecework(
        db.url(),
        &["jobs", "list", "--limit", "500"],
        "",
    ));
    assert!(listed.lines().count() > 200 && listed.len() < 100_000);
    let host = Host::start(db, field.folder.path(), SHORT);
    host.ready().await;
    db.becomes(ok, "done").await;
    db.until(
        200,
        "select count(*) from piecework.job_history where failure = 'payload_too_large' and state = 'failed' and attempt = 1",
    )
    .await;
    assert_eq!(host.count("attempt started"), 1, "the small one");
    let peak = host.peak_memory();
    assert!(peak < 512 * MIB as u64, "the host had {peak} bytes");
    printed(&piecework(db.url(), &["jobs", "list", "--json"], ""));
    drop(host);
    field.db.drop().await;
}

/// Whatever it is that makes a claim of many jobs too slow: it is tried with fewer.
#[tokio::test(flavor = "multi_thread")]
async fn process_o_19_a_claim_that_takes_too_long_is_made_in_parts() {
    let field = Field::new().await;
    let db = &field.db;
    let slow = "create or replace function piecework.payload_text(payload jsonb) returns text language sql as $$
        select payload::text from pg_sleep(0.35) $$";
    sqlx::raw_sql(slow).execute(&db.pool).await.unwrap();
    db.enqueue_times(12, "probe", r#"{"do":"ok"}"#).await;
    // Four slots: a claim of four takes 1.4 s.
    let settings = SHORT.replace("call_timeout = '3s'", "call_timeout = '1s'");
    let host = Host::start(db, field.folder.path(), &settings);
    db.until(
        12,
        "select count(*) from piecework.job_history where state = 'done' and attempt = 1",
    )
    .await;
    assert!(host.count("the database did not take a round") > 0);
    drop(host);
    field.db.drop().await;
}
