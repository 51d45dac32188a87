//! The figures for people: what is counted, what is estimated, and that neither reads the whole of a table.

use piecework::store::TypeLine;
use sqlx::Connection;

use super::fence::{demand, runner};
use super::support::db::Db;

async fn fill(db: &Db, statement: &'static str) {
    sqlx::raw_sql(statement).execute(&db.pool).await.unwrap();
}

fn of<'a>(lines: &'a [TypeLine], job_type: &str) -> &'a TypeLine {
    lines.iter().find(|line| line.job_type == job_type).unwrap()
}

#[tokio::test]
async fn few_jobs_are_counted() {
    let db = Db::new().await;
    assert!(db.store.status_jobs().await.unwrap().is_empty());
    let me = runner(&db).await;
    fill(
        &db,
        "select piecework.enqueue('a', priority => 1 + n % 4, delay => n % 2 * interval '1 hour') from generate_series(1, 30) n;
         select piecework.enqueue('b', ordering_key => 'k', delay => n / 5 * interval '1 hour') from generate_series(1, 5) n;
         select piecework.enqueue('c', delay => interval '1 hour');
         update piecework.job set due_at = now() - interval '1 minute' where id = (select max(id) from piecework.job where job_type = 'a' and due_at < now());
         select piecework.pause('b')",
    )
    .await;
    while db.store.settle(100).await.unwrap() > 0 {}
    assert_eq!(
        db.store
            .claim(&demand(me, &[("a", 4)], 4))
            .await
            .unwrap()
            .len(),
        4
    );
    let lines = db.store.status_jobs().await.unwrap();
    let types: Vec<_> = lines.iter().map(|line| line.job_type.as_str()).collect();
    assert_eq!(types, ["a", "b", "c"]);
    let a = of(&lines, "a");
    assert_eq!((a.due, a.blocked, a.later, a.running), (11, 0, 15, 4));
    assert!(a.served && !a.paused);
    let b = of(&lines, "b");
    assert_eq!((b.due, b.blocked, b.later, b.running), (1, 3, 1, 0));
    assert!(!b.served && b.paused);
    let c = of(&lines, "c");
    assert_eq!((c.due, c.blocked, c.later, c.running), (0, 0, 1, 0));
    assert_eq!(c.oldest_due_seconds, None);
    assert!(b.oldest_due_seconds.unwrap() >= 0.0);
    assert!(lines.iter().all(|line| line.estimated.is_empty()));
    db.drop().await;
}

#[tokio::test]
async fn many_jobs_are_estimated_and_said_to_be() {
    let db = Db::new().await;
    fill(
        &db,
        "insert into piecework.job (job_type, due_at) select 'future', now() + interval '1 day' from generate_series(1, 120000) n;
         insert into piecework.job (job_type, due_at) select 'due', now() - interval '1 hour' from generate_series(1, 120000) n;
         insert into piecework.job (job_type, due_at, ordering_key, blocked) select 'blocked', now() - interval '1 hour', 'k', true from generate_series(1, 120000) n;
         insert into piecework.job (job_type, due_at) select 'few', now() - interval '1 hour' from generate_series(1, 9999) n",
    )
    .await;
    for analysed in [false, true] {
        if analysed {
            db.store.bench_vacuum().await.unwrap();
        }
        let lines = db.store.status_jobs().await.unwrap();
        // A sample of about 1,000 of 5,000 pages; it is off by a few per cent.
        let near = |value: i64| (90_000..150_000).contains(&value);
        let future = of(&lines, "future");
        assert!(near(future.later) && future.due == 0, "{future:?}");
        assert_eq!(future.estimated, ["later"]);
        let due = of(&lines, "due");
        assert!(near(due.due) && due.later == 0, "{due:?}");
        assert_eq!(due.estimated, ["due"]);
        assert!(due.oldest_due_seconds.unwrap() >= 3600.0);
        let blocked = of(&lines, "blocked");
        assert!(near(blocked.blocked) && blocked.due == 0, "{blocked:?}");
        assert_eq!(blocked.estimated, ["blocked"]);
        let few = of(&lines, "few");
        assert_eq!(few.due, 9999, "to the last one");
        assert!(few.estimated.is_empty());
        // No plan may read all of the table, whatever the planner thinks of it.
        let mut connection = sqlx::PgConnection::connect(db.url()).await.unwrap();
        fill_generic(&mut connection).await;
        let plan: Vec<String> = sqlx::query_scalar("explain execute counts")
            .fetch_all(&mut connection)
            .await
            .unwrap();
        let plan = plan.join("\n");
        assert!(!plan.contains("Seq Scan on job "), "{plan}");
        assert!(plan.contains("Sample Scan on job "), "{plan}");
        connection.close().await.unwrap();
    }
    db.drop().await;
}

#[expect(
    clippy::disallowed_methods,
    reason = "the statement is a file of the tree"
)]
async fn fill_generic(connection: &mut sqlx::PgConnection) {
    let counts = include_str!("../../src/store/sql/status_jobs.sql");
    let text = format!("set plan_cache_mode = force_generic_plan; prepare counts as {counts}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(text))
        .execute(connection)
        .await
        .unwrap();
}

#[tokio::test]
async fn what_ended_lately_is_counted_by_type_and_state() {
    let db = Db::new().await;
    let hour = std::time::Duration::from_secs(3600);
    assert!(db.store.status_finished(hour).await.unwrap().is_empty());
    fill(
        &db,
        "insert into piecework.job_history (id, job_type, state, priority, due_at, attempt, max_attempts, enqueued_at, finished_at, payload)
         select n, case when n % 2 = 0 then 'a' else 'b' end, (array['done', 'failed', 'cancelled'])[1 + n % 3]::piecework.job_state,
                2, now(), 1, 5, now(), now() - n * interval '10 minutes', '{}'
         from generate_series(1, 6) n",
    )
    .await;
    let lines = db.store.status_finished(24 * hour).await.unwrap();
    let figures: Vec<_> = lines
        .iter()
        .map(|line| {
            (
                line.job_type.as_str(),
                line.done,
                line.failed,
                line.cancelled,
            )
        })
        .collect();
    assert_eq!(figures, [("a", 1, 1, 1), ("b", 1, 1, 1)]);
    assert!(lines.iter().all(|line| line.estimated.is_empty()));
    // The last 25 minutes: the jobs 1 and 2.
    let lines = db.store.status_finished(hour * 25 / 60).await.unwrap();
    let ended: i64 = lines
        .iter()
        .map(|line| line.done + line.failed + line.cancelled)
        .sum();
    assert_eq!(ended, 2);
    // Too many to be read: only those of the state are estimated.
    fill(
        &db,
        "insert into piecework.job_history (id, job_type, state, priority, due_at, attempt, max_attempts, enqueued_at, finished_at, payload)
         select n, 'a', 'done', 2, now(), 1, 5, now(), now(), '{}' from generate_series(100, 200000) n",
    )
    .await;
    let lines = db.store.status_finished(hour).await.unwrap();
    assert!((150_000..250_000).contains(&lines[0].done), "{lines:?}");
    assert_eq!(lines[0].estimated, ["done"]);
    assert_eq!((lines[0].failed, lines[1].failed), (1, 1));
    db.drop().await;
}
