//! The SQL interface: `piecework.enqueue` and `enqueue_many`, called as any application would.

use sqlx::{Executor, Row};

use super::support::db::Db;

#[tokio::test]
async fn a_job_has_the_documented_defaults() {
    let db = Db::new().await;
    let row = sqlx::query("select piecework.enqueue('mail') as id")
        .fetch_one(&db.pool)
        .await
        .unwrap();
    let id: i64 = row.get("id");
    let row = sqlx::query(
        "select state::text as state, priority, attempt, max_attempts, payload::text as payload, due_at <= clock_timestamp() as due, blocked as held
         from piecework.job where id = $1",
    )
    .bind(id)
    .fetch_one(&db.pool)
    .await
    .unwrap();
    assert_eq!(row.get::<String, _>("state"), "pending");
    assert_eq!(
        (
            row.get::<i16, _>("priority"),
            row.get::<i32, _>("attempt"),
            row.get::<i32, _>("max_attempts")
        ),
        (2, 0, 5)
    );
    assert_eq!(row.get::<String, _>("payload"), "{}");
    assert!(row.get::<bool, _>("due") && !row.get::<bool, _>("held"));
    db.drop().await;
}

#[tokio::test]
async fn options_are_taken_and_wrong_ones_refused_with_a_reason() {
    let db = Db::new().await;
    for (call, expected) in [
        (
            "piecework.enqueue('mail', '{}', delay => interval '10 minutes', priority => 1, max_attempts => 9)",
            Ok(()),
        ),
        (
            "piecework.enqueue('mail', '[1]', due_at => '2040-01-01 00:00:00+00', parent => 7)",
            Ok(()),
        ),
        (
            "piecework.enqueue('')",
            Err("a job type of 1 to 200 characters"),
        ),
        (
            "piecework.enqueue(null)",
            Err("a job type of 1 to 200 characters"),
        ),
        (
            "piecework.enqueue('mail', null)",
            Err("the payload is null"),
        ),
        (
            "piecework.enqueue('mail', to_jsonb(repeat('x', 1048576)))",
            Err("the payload has 1048578 bytes, the limit is 1048576"),
        ),
        (
            "piecework.enqueue('mail', priority => 5)",
            Err("priority 5 is not one of 1 (first) to 4 (last)"),
        ),
        (
            "piecework.enqueue('mail', max_attempts => 0)",
            Err("max_attempts 0 is not one of 1 to 100000"),
        ),
        (
            "piecework.enqueue('mail', due_at => 'infinity')",
            Err("cannot be due at infinity"),
        ),
        (
            "piecework.enqueue('mail', due_at => '-infinity')",
            Err("cannot be due at -infinity"),
        ),
        (
            "piecework.enqueue('mail', due_at => '2250-01-01')",
            Err("cannot be due at"),
        ),
        (
            "piecework.enqueue('mail', delay => interval '-1 second')",
            Err("cannot be due at"),
        ),
        (
            "piecework.enqueue('mail', delay => interval '1 second', due_at => now())",
            Err("both due_at and delay"),
        ),
        ("piecework.enqueue_many('{}')", Err("takes a JSON array")),
        (
            "piecework.enqueue_many('[{\"job_type\":\"a\"},{\"payload\":1}]')",
            Err("job 1: it needs a `job_type`"),
        ),
        (
            "piecework.enqueue_many('[{\"job_type\":\"a\",\"proirity\":1}]')",
            Err("job 0: `proirity` is not known"),
        ),
        (
            "piecework.enqueue_many('[{\"job_type\":\"a\",\"priority\":1.5}]')",
            Err("priority must be 1 (first) to 4 (last)"),
        ),
        (
            "piecework.enqueue_many('[{\"job_type\":\"a\",\"max_attempts\":0}]')",
            Err("max_attempts must be"),
        ),
        (
            "piecework.enqueue_many('[{\"job_type\":\"a\",\"delay\":-1}]')",
            Err("delay must be"),
        ),
        (
            "piecework.enqueue_many('[{\"job_type\":\"a\",\"delay\":1,\"due_at\":\"2040-01-01\"}]')",
            Err("both due_at and delay"),
        ),
        (
            "piecework.enqueue_many('[{\"job_type\":\"a\",\"due_at\":\"1999-01-01\"}]')",
            Err("between the years 2000 and 2200"),
        ),
        (
            "piecework.enqueue_many('[{\"job_type\":\"a\"},{\"job_type\":\"a\",\"due_at\":\"soon\"}]')",
            Err("job 1: due_at is not a time"),
        ),
        (
            "piecework.enqueue_many('[{\"job_type\":\"a\",\"due_at\":\"infinity\"}]')",
            Err("between the years 2000 and 2200"),
        ),
        (
            "piecework.enqueue_many('[{\"job_type\":\"a\",\"priority\":\"x\"}]')",
            Err("job 0: priority must be"),
        ),
        (
            "piecework.enqueue_many('[{\"job_type\":\"a\",\"max_attempts\":1.5}]')",
            Err("job 0: max_attempts must be"),
        ),
        (
            "piecework.enqueue_many('[{\"job_type\":\"a\",\"parent\":\"x\"}]')",
            Err("job 0: parent must be"),
        ),
        (
            "piecework.enqueue_many('[7]')",
            Err("job 0: it is not an object"),
        ),
    ] {
        let answer = db
            .pool
            .fetch_all(sqlx::raw_sql(text(format!("select {call}"))))
            .await;
        match (answer, expected) {
            (Ok(_), Ok(())) => {}
            (Err(error), Err(reason)) => {
                let error = error.as_database_error().unwrap();
                assert!(
                    error.message().contains(reason),
                    "{call}: {}",
                    error.message()
                );
                assert_eq!(error.code().as_deref(), Some("22023"), "{call}");
            }
            (answer, expected) => panic!("{call}: {answer:?} instead of {expected:?}"),
        }
    }
    assert_eq!(
        db.number("select count(*) from piecework.job").await,
        2,
        "what was refused left nothing"
    );
    db.drop().await;
}

/// The calls above stand in this file.
#[expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the calls stand in this file"
)]
fn text(call: String) -> sqlx::AssertSqlSafe<String> {
    sqlx::AssertSqlSafe(call)
}

#[tokio::test]
async fn many_jobs_keep_the_order_of_their_array() {
    let db = Db::new().await;
    let jobs: Vec<_> = (0..500)
        .map(|n| serde_json::json!({ "job_type": format!("t{}", n % 3), "payload": { "n": n }, "priority": 1 + n % 4, "delay": n }))
        .collect();
    let ids = db
        .store
        .enqueue_many(&serde_json::to_string(&jobs).unwrap())
        .await
        .unwrap();
    assert!(ids.is_sorted());
    let rows = sqlx::query("select (payload ->> 'n')::int as n from piecework.job order by id")
        .fetch_all(&db.pool)
        .await
        .unwrap();
    assert!(
        rows.iter()
            .enumerate()
            .all(|(place, row)| i32::try_from(place).unwrap() == row.get::<i32, _>("n"))
    );
    db.drop().await;
}

#[tokio::test]
async fn a_job_lives_and_dies_with_the_transaction_that_enqueues_it() {
    let db = Db::new().await;
    let mut transaction = db.pool.begin().await.unwrap();
    transaction
        .execute("create table invoice (id int)")
        .await
        .unwrap();
    transaction
        .execute("select piecework.enqueue('mail', '{\"invoice\": 1}')")
        .await
        .unwrap();
    transaction.rollback().await.unwrap();
    assert_eq!(db.number("select count(*) from piecework.job").await, 0);
    let mut transaction = db.pool.begin().await.unwrap();
    transaction
        .execute("select piecework.enqueue('mail', '{\"invoice\": 1}')")
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(db.number("select count(*) from piecework.job").await, 1);
    db.drop().await;
}

#[tokio::test]
async fn o_17_text_that_jsonb_cannot_keep_is_refused_with_its_cause() {
    let db = Db::new().await;
    for payload in [r#"{"a":"x\u0000y"}"#, r#""\ud800""#] {
        let job = piecework::store::NewJob {
            job_type: "mail".into(),
            payload: payload.into(),
            ..Default::default()
        };
        let error = db.store.enqueue(&job).await.unwrap_err();
        assert!(
            matches!(&error, piecework::store::Error::Refused { .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("nicode"), "{error}");
    }
    db.drop().await;
}

#[tokio::test]
async fn the_table_itself_keeps_out_what_breaks_readers() {
    let db = Db::new().await;
    for wrong in [
        "insert into piecework.job (job_type, due_at) values ('a', 'infinity')",
        "insert into piecework.job (job_type, due_at) values ('a', '9999-01-01')",
        "insert into piecework.job (job_type, enqueued_at) values ('a', '-infinity')",
        "insert into piecework.job (job_type) values ('')",
        "insert into piecework.job (job_type, state) values ('a', 'done')",
        "insert into piecework.job (job_type, priority) values ('a', 0)",
    ] {
        assert!(db.pool.execute(wrong).await.is_err(), "{wrong}");
    }
    db.drop().await;
}
