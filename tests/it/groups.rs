//! Group keys: jobs of a type take turns between groups, whatever else their options say.

use std::fmt::Write as _;

use piecework::runner::Runner;

use super::support::db::Db;
use super::support::guests::Folder;

/// Enqueues `count` jobs like this one.
async fn enqueue(db: &Db, count: usize, job: &str) {
    let jobs = format!("[{}]", vec![job; count].join(","));
    db.store.enqueue_many(&jobs).await.unwrap();
}

/// A runner with so many slots, which serves `probe` and `noop`.
async fn start(db: &Db, slots: u32) -> (Runner, Folder) {
    let folder = Folder::with(&[("probe", "probe"), ("noop", "noop")]);
    let mut config = db.config(folder.path());
    config.runner.slots = slots;
    config.defaults.retry_base = piecework::config::Span::millis(50);
    let runner = Runner::start(config, db.store.clone()).await.unwrap();
    (runner, folder)
}

async fn stop(db: Db, runner: Runner) {
    runner.halt();
    runner.join().await;
    db.drop().await;
}

async fn all_ended(db: &Db) {
    db.until(0, "select count(*) from piecework.job").await;
}

/// The places, in the order in which jobs were claimed, of those of the group `small`.
const SMALL: &str = "
    select max(place) from (
      select group_key, row_number() over (order by claim, id) as place from piecework.job_history) h
    where group_key = 'small'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_groups_thousands_do_not_delay_anothers_ten() {
    let db = Db::new().await;
    enqueue(&db, 1500, r#"{"job_type": "noop", "group_key": "big"}"#).await;
    enqueue(&db, 1000, r#"{"job_type": "noop"}"#).await;
    enqueue(&db, 10, r#"{"job_type": "noop", "group_key": "small"}"#).await;
    let (runner, _folder) = start(&db, 4).await;
    all_ended(&db).await;
    let done = "select count(*) from piecework.job_history where state = 'done' and attempt = 1";
    assert_eq!(db.number(done).await, 2510);
    // The first claim does not know yet that there are groups; then each of the two groups, and the jobs without one, gets a
    // third of what is claimed or more.
    let last = db.number(SMALL).await;
    assert!(last < 100, "the last of the ten was number {last} of 2510");
    stop(db, runner).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_groups_are_served_in_turn() {
    let db = Db::new().await;
    let mut jobs = String::from("[");
    for n in 0..4000 {
        let _ = write!(
            jobs,
            r#"{{"job_type": "noop", "group_key": "g{}"}},"#,
            n % 400
        );
    }
    jobs.pop();
    jobs.push(']');
    db.store.enqueue_many(&jobs).await.unwrap();
    let (runner, _folder) = start(&db, 20).await;
    all_ended(&db).await;
    // The first job of every group ran before the fourth of any: two claims that are under way at once, and a slow machine, mix the turns.
    let early = "
        select count(*) from (
          select group_key, row_number() over (partition by group_key order by claim, id) as turn,
                 row_number() over (order by claim, id) as place from piecework.job_history) h
        where turn = 1 and place > 1200";
    assert_eq!(db.number(early).await, 0);
    assert_eq!(
        db.number("select count(*) from piecework.job_history where state = 'done'")
            .await,
        4000
    );
    stop(db, runner).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_with_a_group_obeys_its_other_options() {
    let db = Db::new().await;
    let (runner, _folder) = start(&db, 4).await;
    // Later, tried again, handed a follow-up, in order with others of its ordering key.
    let jobs = r#"[
        {"job_type": "probe", "payload": {"do": "ok"}, "group_key": "a", "delay": 0.4},
        {"job_type": "probe", "payload": {"do": "fail", "text": "not yet", "disposition": "retry", "until": 3}, "group_key": "a"},
        {"job_type": "probe", "payload": {"do": "nap", "ms": 200}, "group_key": "a", "ordering_key": "o"},
        {"job_type": "probe", "payload": {"do": "ok"}, "group_key": "b", "ordering_key": "o"},
        {"job_type": "probe", "payload": {"do": "ok"}, "ordering_key": "o"},
        {"job_type": "probe", "payload": {"do": "follow", "job_type": "noop", "payload": {}, "group_key": "c", "priority": 3}, "group_key": "b"}]"#;
    let ids = db.store.enqueue_many(jobs).await.unwrap();
    all_ended(&db).await;
    assert_eq!(
        db.number("select count(*) from piecework.job_history where state = 'done'")
            .await,
        7
    );
    let early = "select count(*) from piecework.job_history where started_at < due_at or started_at < enqueued_at";
    assert_eq!(db.number(early).await, 0);
    let attempts = "select attempt::text from piecework.job_history where id = $1";
    assert_eq!(db.text(attempts, ids[1]).await.as_deref(), Some("4"));
    let follow_up =
        "select count(*) from piecework.jobs where group_key = 'c' and parent is not null";
    assert_eq!(db.number(follow_up).await, 1);
    let overlaps = "select count(*) from piecework.job_history a
        join piecework.job_history b on a.ordering_key = b.ordering_key and a.id < b.id
        where b.started_at < a.finished_at";
    assert_eq!(db.number(overlaps).await, 0);
    stop(db, runner).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_with_a_group_are_paused_cancelled_and_started_anew_like_others() {
    let db = Db::new().await;
    let (runner, _folder) = start(&db, 4).await;
    db.store.pause("noop", true).await.unwrap();
    enqueue(&db, 3, r#"{"job_type": "noop", "group_key": "a"}"#).await;
    enqueue(
        &db,
        1,
        r#"{"job_type": "probe", "group_key": "a", "payload": {"do": "discard", "text": "no"}}"#,
    )
    .await;
    db.until(
        1,
        "select count(*) from piecework.job_history where state = 'failed'",
    )
    .await;
    let waiting =
        "select count(*) from piecework.job where state = 'pending' and job_type = 'noop'";
    assert_eq!(db.number(waiting).await, 3);
    let one = db
        .number("select min(id) from piecework.job where job_type = 'noop'")
        .await;
    let state = db.store.cancel(piecework::job::JobId(one)).await.unwrap();
    assert_eq!(state.as_deref(), Some("cancelled"));
    db.store.pause("noop", false).await.unwrap();
    all_ended(&db).await;
    let again = db.store.retry_all(Some("noop"), "cancelled", 10).await;
    assert_eq!(again.unwrap(), 1);
    db.until(
        3,
        "select count(*) from piecework.job_history where state = 'done' and group_key = 'a'",
    )
    .await;
    stop(db, runner).await;
}

/// A group whose jobs are for later takes no room from jobs without one, also where there is a single slot.
#[tokio::test]
async fn what_groups_leave_goes_to_jobs_without_one() {
    let db = Db::new().await;
    enqueue(
        &db,
        1,
        r#"{"job_type": "noop", "group_key": "later", "delay": 3600}"#,
    )
    .await;
    enqueue(&db, 40, r#"{"job_type": "noop"}"#).await;
    enqueue(&db, 3, r#"{"job_type": "noop", "group_key": "now"}"#).await;
    let take = |most: i32| {
        let wanted = format!(
            r#"[{{"job_type": "noop", "want": {most}, "priorities": [1, 2, 3, 4], "starts_per": 1}}]"#
        );
        let pool = db.pool.clone();
        async move {
            // Rolled back: each looks at the same jobs.
            let mut transaction = pool.begin().await.unwrap();
            let ids: Vec<i64> = sqlx::query_scalar(
                "select id from piecework.take($1::text::jsonb, $2) where id is not null",
            )
            .bind(wanted)
            .bind(most)
            .fetch_all(&mut *transaction)
            .await
            .unwrap();
            transaction.rollback().await.unwrap();
            let different: std::collections::BTreeSet<_> = ids.iter().collect();
            assert_eq!(different.len(), ids.len(), "none twice: {ids:?}");
            ids.len()
        }
    };
    for _ in 0..12 {
        assert_eq!(take(1).await, 1);
        assert_eq!(take(30).await, 30);
        assert_eq!(take(100).await, 43);
    }
    sqlx::query("delete from piecework.job where group_key = 'now'")
        .execute(&db.pool)
        .await
        .unwrap();
    for _ in 0..12 {
        assert_eq!(take(1).await, 1);
        assert_eq!(take(30).await, 30);
    }
    db.drop().await;
}

/// Jobs of priority 1 without end do not keep the others waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn low_priorities_get_their_share() {
    let db = Db::new().await;
    for group in ["", r#", "group_key": "a""#] {
        let job = |priority| format!(r#"{{"job_type": "noop", "priority": {priority}{group}}}"#);
        enqueue(&db, 600, &job(1)).await;
        enqueue(&db, 12, &job(4)).await;
    }
    let (runner, _folder) = start(&db, 2).await;
    all_ended(&db).await;
    // One job of 16 at least, so the 24th comes at 384; a few claims are under way at once.
    let late = "
        select count(*) from (
          select priority, row_number() over (partition by priority order by claim, id) as turn,
                 row_number() over (order by claim, id) as place from piecework.job_history) h
        where priority = 4 and place > turn * 16 + 64";
    assert_eq!(db.number(late).await, 0);
    // And not more than twice its share.
    let early = "
        select count(*) from (
          select priority, row_number() over (partition by priority order by claim, id) as turn,
                 row_number() over (order by claim, id) as place from piecework.job_history) h
        where priority = 4 and turn > 8 and place < turn * 8";
    assert_eq!(db.number(early).await, 0);
    stop(db, runner).await;
}

/// What is touched by claims of groups does not depend on what lies beside: no scan of the table, a bounded number of rows.
#[tokio::test]
async fn claims_of_groups_read_their_index_whatever_lies_beside() {
    let db = Db::new().await;
    db.store
        .bench_fill(1000, 20_000, 20_000, 20_000, "mail")
        .await
        .unwrap();
    sqlx::raw_sql(
        "insert into piecework.job (job_type, group_key, group_state, blocked, due_at)
           select 'mail', 'g' || n % 50, case when n % 2 = 0 then 1 else 2 end, true, now() + (n % 2 - 1) * interval '-1 day'
           from generate_series(1, 20000) n;
         insert into piecework.job (job_type, batch, ordering_key, blocked) select 'mail', 7, 'k' || n, true from generate_series(1, 5000) n;
         insert into piecework.key_todo (ordering_key) values ('k7'), ('k8');
         insert into piecework.key_todo (batch) values (7)",
    )
    .execute(&db.pool)
    .await
    .unwrap();
    let wanted = r#"[{"job_type": "mail", "want": 50, "priorities": [1, 2, 3, 4], "running": 1000, "group_running": 10,
        "starts": 1000, "group_starts": 100, "starts_per": 60}]"#;
    for analysed in [false, true] {
        if analysed {
            db.store.bench_vacuum().await.unwrap();
            // Nearly all are ready now, which makes a scan look good.
            sqlx::query("delete from piecework.job where group_key is null and batch is null or group_state = 1")
                .execute(&db.pool)
                .await
                .unwrap();
        }
        for (call, most) in [
            (
                format!("select count(id) from piecework.take('{wanted}', 50)"),
                1500,
            ),
            ("select piecework.settle(1000)".to_owned(), 200),
        ] {
            let mut transaction = db.pool.begin().await.unwrap();
            // As on the connections of a runner.
            let touched = format!(
                "set local plan_cache_mode = force_generic_plan; set local jit = off;
                 -- The counts include what this connection did in the last second.
                 create temporary table before on commit drop as
                   select seq_scan, idx_tup_fetch from pg_stat_xact_user_tables where relname = 'job';
                 {call};
                 do $$ declare scans bigint; rows bigint; begin
                   select s.seq_scan - b.seq_scan, s.idx_tup_fetch - b.idx_tup_fetch into scans, rows
                   from pg_stat_xact_user_tables s, before b where s.relname = 'job';
                   if scans > 0 or rows > {most} or rows < 1 then
                     raise exception '% scans, % rows were touched', scans, rows;
                   end if;
                 end $$"
            );
            #[expect(clippy::disallowed_methods, reason = "put together in this test")]
            sqlx::raw_sql(sqlx::AssertSqlSafe(touched))
                .execute(&mut *transaction)
                .await
                .unwrap_or_else(|error| panic!("analysed {analysed}, {call}: {error}"));
            transaction.rollback().await.unwrap();
        }
    }
    db.drop().await;
}
