//! Many hosts that start on an empty database: one migrates, the others wait and carry on.

use piecework::job::JobId;
use piecework::store::Store;
use rustix::process::Signal;
use sqlx::Connection;

use crate::support::db::Db;
use crate::support::guests::Folder;
use crate::support::process::Host;

const HOSTS: usize = 10;
const HOUR: std::time::Duration = std::time::Duration::from_secs(3600);
// Ten pools of instances would only use up address space.
const SETTINGS: &str = "[database]\nconnections = 3\n[engine]\npooling = false";
const WAITING: &str = "another host migrates the database; waiting for it";

/// Three rounds in place of twenty: each has the whole race in it.
#[tokio::test]
async fn process_o_27_ten_hosts_that_start_at_once_on_an_empty_database_all_work() {
    for _ in 0..3 {
        let db = Db::empty().await;
        let plugins = Folder::with(&[("noop", "noop")]);
        all_work(&db, start(&db, &plugins)).await;
        db.drop().await;
    }
}

/// The test itself holds the lock first, so that every host comes too late for it.
#[tokio::test]
async fn process_o_27_hosts_that_find_a_migration_under_way_say_so_and_wait() {
    let db = Db::empty().await;
    let plugins = Folder::with(&[("noop", "noop")]);
    let mut holder = sqlx::PgConnection::connect(db.url()).await.unwrap();
    // "piecewor" in ASCII, the migrator's lock.
    let lock = 0x7069_6563_6577_6f72_i64;
    sqlx::query("select pg_advisory_lock($1)")
        .bind(lock)
        .execute(&mut holder)
        .await
        .unwrap();
    let hosts = start(&db, &plugins);
    for host in &hosts {
        host.says(WAITING).await;
    }
    assert_eq!(
        db.number("select count(*) from pg_namespace where nspname = 'piecework'")
            .await,
        0
    );
    holder.close().await.unwrap();
    all_work(&db, hosts).await;
    db.drop().await;
}

fn start(db: &Db, plugins: &Folder) -> Vec<Host> {
    (0..HOSTS)
        .map(|_| Host::start_on(db.url(), plugins.path(), SETTINGS, &["--migrate"]))
        .collect()
}

async fn all_work(db: &Db, mut hosts: Vec<Host>) {
    for host in &hosts {
        host.ready().await;
    }
    let one_row_each = "select count(*) from piecework.migration where version between 1 and
        (select count(*) from piecework.migration)";
    assert_eq!(
        db.number(one_row_each).await,
        i64::from(Store::known_version())
    );
    // A host that makes history partitions holds another lock of ours for a moment.
    db.until(
        0,
        "select count(*) from pg_locks l join pg_database d on d.oid = l.database
        where l.locktype = 'advisory' and d.datname = current_database()",
    )
    .await;
    let migrated = |host: &Host| host.count("database migrated");
    assert_eq!(
        hosts.iter().map(migrated).sum::<usize>(),
        1,
        "by one of them"
    );

    db.enqueue_times(50, "noop", "{}").await;
    db.until(
        50,
        "select count(*) from piecework.job_history where state = 'done'",
    )
    .await;
    for host in &hosts {
        host.signal(Signal::TERM);
    }
    for host in &mut hosts {
        assert!(host.ended().await.success());
        assert_eq!(host.count("runner registered"), 1);
    }
}

/// A queue as this version made it.
async fn queue_of(version: usize) -> Db {
    let db = Db::empty().await;
    sqlx::raw_sql(
        "create schema piecework;
         create table piecework.migration (
           version int primary key, name text not null, applied_at timestamptz not null default clock_timestamp())",
    )
    .execute(&db.pool)
    .await
    .unwrap();
    for (place, text) in [
        include_str!("../../migrations/0001_init.sql"),
        include_str!("../../migrations/0002_keys.sql"),
        include_str!("../../migrations/0003_queue.sql"),
    ]
    .into_iter()
    .take(version)
    .enumerate()
    {
        sqlx::raw_sql(text).execute(&db.pool).await.unwrap();
        sqlx::query("insert into piecework.migration (version, name) values ($1, 'as it was')")
            .bind(i32::try_from(place).unwrap() + 1)
            .execute(&db.pool)
            .await
            .unwrap();
    }
    db
}

/// What version 2 has kept stays where it is; the days to come are of the new form, and both are dropped in their time.
#[tokio::test]
async fn the_history_of_version_2_stays_in_its_tables() {
    let db = queue_of(2).await;
    sqlx::raw_sql(
        "insert into piecework.job_history (id, job_type, state, priority, due_at, attempt, max_attempts, enqueued_at, payload)
         values (1, 'a', 'done', 2, now(), 1, 5, now(), '{}'), (2, 'a', 'failed', 2, now(), 1, 5, now(), '{}'),
                (3, 'a', 'cancelled', 2, now(), 1, 5, now(), '{}')",
    )
    .execute(&db.pool)
    .await
    .unwrap();
    db.store.migrate().await.unwrap();
    let leaves = "select count(*) from pg_partition_tree('piecework.job_history') where isleaf";
    assert_eq!(
        db.number(leaves).await,
        9,
        "nothing was moved, nothing made"
    );
    assert_eq!(
        db.number("select piecework.make_history_partitions(9)::bigint")
            .await,
        2
    );
    assert_eq!(db.number(leaves).await, 9 + 2 * 3);
    // Today's table is of the old form, and everything works on it.
    assert_eq!(
        db.store
            .jobs_list(Some("failed"), None, 9)
            .await
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        db.store.retry(JobId(2)).await.unwrap().as_deref(),
        Some("pending")
    );
    assert_eq!(
        db.store.cancel(JobId(2)).await.unwrap().as_deref(),
        Some("cancelled")
    );
    assert_eq!(db.store.retry_all(None, "cancelled", 9).await.unwrap(), 2);
    let ended = db.store.status_finished(HOUR).await.unwrap();
    assert_eq!(
        (ended[0].done, ended[0].failed, ended[0].cancelled),
        (1, 0, 0)
    );
    assert!(db.store.drop_old_history().await.unwrap().is_empty());
    db.drop().await;
}

/// Nothing has ended yet: then there is nothing that would have to stay.
#[tokio::test]
async fn a_history_without_jobs_is_made_anew() {
    for version in [0, 2] {
        let db = if version == 0 {
            Db::empty().await
        } else {
            queue_of(version).await
        };
        db.store.migrate().await.unwrap();
        assert_eq!(
            db.number(
                "select count(*) from pg_partition_tree('piecework.job_history') where isleaf"
            )
            .await,
            8 * 3 + 1,
            "from version {version}"
        );
        db.drop().await;
    }
}

/// Queues of earlier versions with many jobs, while statements as their runners send them go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_of_version_1_is_migrated_while_it_works() {
    is_migrated_while_it_works(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_of_version_2_is_migrated_while_it_works() {
    is_migrated_while_it_works(2).await;
}

/// A key's loop: its free job ends, which is noted, another one comes, and the notes are settled. It writes to all three tables in
/// one transaction, as a finish does.
const KEYED: &str = "begin;
    insert into piecework.job_history (id, job_type, state, priority, due_at, attempt, max_attempts, ordering_key, enqueued_at, payload)
    select id, job_type, 'done', priority, due_at, attempt, max_attempts, ordering_key, enqueued_at, payload
    from piecework.job where ordering_key = 'k' and not blocked;
    insert into piecework.key_todo (ordering_key)
    select ordering_key from piecework.job where ordering_key = 'k' and not blocked;
    delete from piecework.job where ordering_key = 'k' and not blocked;
    select piecework.enqueue('k', ordering_key => 'k');
    commit;
    select piecework.settle(100);";

async fn is_migrated_while_it_works(version: usize) {
    let db = queue_of(version).await;
    sqlx::raw_sql(
        "insert into piecework.job (job_type, payload) select 'a', jsonb_build_object('n', n) from generate_series(1, 300000) n;
         insert into piecework.job_history (id, job_type, state, priority, due_at, attempt, max_attempts, enqueued_at, payload)
         select -n, 'a', 'done', 2, now(), 1, 5, now(), '{}' from generate_series(1, 100000) n",
    )
    .execute(&db.pool)
    .await
    .unwrap();
    let stop = tokio_util::sync::CancellationToken::new();
    let (pool, stopped) = (db.pool.clone(), stop.clone());
    let work = tokio::spawn(async move {
        let mut longest = std::time::Duration::ZERO;
        let mut moved = 0;
        while !stopped.is_cancelled() {
            let begun = std::time::Instant::now();
            let done = sqlx::query(
                "with gone as (
                   delete from piecework.job where id = (
                     select id from piecework.job where state = 'pending' and not blocked and job_type = 'a' and priority = 2
                     order by due_at, id limit 1 for update skip locked)
                   returning *)
                 insert into piecework.job_history (id, job_type, state, priority, due_at, attempt, max_attempts, enqueued_at, payload)
                 select id, job_type, 'done', priority, due_at, attempt, max_attempts, enqueued_at, payload from gone",
            )
            .execute(&pool)
            .await
            .unwrap();
            sqlx::query("select piecework.enqueue_many('[{\"job_type\": \"b\"}]')")
                .execute(&pool)
                .await
                .unwrap();
            moved += done.rows_affected();
            longest = longest.max(begun.elapsed());
        }
        (moved, longest)
    });
    let (pool, stopped) = (db.pool.clone(), stop.clone());
    let keyed = tokio::spawn(async move {
        let mut rounds = 0_i64;
        // Keys came with version 2.
        while version >= 2 && !stopped.is_cancelled() {
            let mut link = pool.acquire().await.unwrap();
            sqlx::raw_sql(KEYED).execute(&mut *link).await.unwrap();
            rounds += 1;
        }
        rounds
    });
    let migrated = db.store.migrate().await.unwrap();
    assert_eq!(
        (migrated.from, migrated.to),
        (i32::try_from(version).unwrap(), Store::known_version())
    );
    stop.cancel();
    let (moved, longest) = work.await.unwrap();
    let rounds = keyed.await.unwrap();
    if version >= 2 {
        // Each round lets the next job of the key start: the last one is free, all before it have ended.
        let ended = "select count(*) from piecework.job_history where job_type = 'k'";
        assert_eq!(db.number(ended).await, rounds - 1);
        let free = "select count(*) from piecework.job where job_type = 'k' and not blocked";
        assert_eq!(db.number(free).await, 1);
        assert!(rounds > 1);
    }
    eprintln!("{moved} jobs ended meanwhile, the longest pair of statements took {longest:?}");
    assert!(moved > 0);
    // A million jobs block the others for half a second on a busy machine; this one may be busier.
    assert!(longest < std::time::Duration::from_secs(5), "{longest:?}");
    let all = "select (select count(*) from piecework.job where job_type = 'a') + (select count(*) from piecework.job_history where job_type = 'a')";
    assert_eq!(db.number(all).await, 400_000);
    db.store.check_schema().await.unwrap();
    db.drop().await;
}

/// Version 4 adds tables and functions and waits for nothing that runners of version 3 use: here somebody has locked all of it. What
/// those runners call stays as it was, to the letter.
#[tokio::test]
async fn the_fleet_comes_beside_runners_of_version_3() {
    let db = queue_of(3).await;
    let what = "select (select count(*) from pg_proc p where p.pronamespace = 'piecework'::regnamespace),
        md5((select string_agg(concat_ws(' ', p.oid, p.prosrc, p.proacl, p.proconfig, p.prosecdef), ',' order by p.oid) from pg_proc p
             where p.pronamespace = 'piecework'::regnamespace and p.oid <= $1)
            || (select string_agg(concat_ws(' ', c.oid, c.relname, c.relacl, c.reloptions, a.attname, a.atttypid, a.attnotnull), ',' order by c.oid, a.attnum)
                from pg_class c join pg_attribute a on a.attrelid = c.oid where c.relnamespace = 'piecework'::regnamespace and c.oid <= $1))";
    let newest: i64 = db.number("select max(oid)::bigint from pg_proc").await;
    let look = async || -> (i64, String) {
        sqlx::query_as(what)
            .bind(sqlx::postgres::types::Oid(u32::try_from(newest).unwrap()))
            .fetch_one(&db.pool)
            .await
            .unwrap()
    };
    let (functions, before) = look().await;
    let mut holder = db.pool.begin().await.unwrap();
    sqlx::raw_sql(
        "do $$ declare t record; begin
           for t in select c.oid::regclass as name from pg_class c
             where c.relnamespace = 'piecework'::regnamespace and c.relkind in ('r', 'p', 'v') and c.relname <> 'migration'
           loop execute format('lock table %s in access exclusive mode', t.name); end loop;
         end $$",
    )
    .execute(&mut *holder)
    .await
    .unwrap();
    let migrated = tokio::time::timeout(std::time::Duration::from_secs(20), db.store.migrate())
        .await
        .expect("it waits for nobody")
        .unwrap();
    assert_eq!((migrated.from, migrated.to), (3, Store::known_version()));
    holder.rollback().await.unwrap();
    let (more, after) = look().await;
    assert_eq!(before, after);
    assert!(more > functions);
    db.store.check_schema().await.unwrap();
    db.drop().await;
}
