//! Canaries that end by themselves, and people and runners who change the same release at once.

use std::time::Duration;

use piecework::store::{AutoRollback, Change, Changed, Digest, Error, Store};
use sqlx::Row;

use super::fleet_plugins::{change, count, refused, versions};
use super::support::db::Db;
use super::support::until;

/// A canary beside a stable version; its revision.
async fn canary(store: &Store, stable: Digest, canary: Digest, auto: AutoRollback) -> i64 {
    change(store, Change::Push(stable)).await;
    change(store, Change::Canary(canary, 1000, auto))
        .await
        .revision
}

#[track_caller]
fn serves(changed: &Changed, digest: &Digest) {
    assert_eq!(changed.stable, Some(piecework::engine::hex(digest)));
}

#[tokio::test]
async fn a_canary_ends_by_itself_when_it_is_clearly_worse() {
    let db = Db::new().await;
    let store = &db.store;
    let [a, b, c] = versions(store).await;
    let revision = canary(store, a, b, AutoRollback::On).await;
    assert_eq!(store.judge_canaries().await.unwrap(), []);
    // All fail, and nothing is known of the stable version.
    count(store, &b, revision, 1, 0, 20).await;
    assert_eq!(store.judge_canaries().await.unwrap(), []);
    // Those of a stable version that does no better.
    count(store, &a, revision, 1, 0, 100).await;
    assert_eq!(store.judge_canaries().await.unwrap(), []);
    // Another process, in which it does.
    count(store, &a, revision, 2, 900, 0).await;
    let ended = store.judge_canaries().await.unwrap();
    assert_eq!(ended.len(), 1);
    assert_eq!((ended[0].canary, ended[0].stable), (b, a));
    let reason = "20 of 20 attempts of the canary failed (surely more than 62.02 %), 100 of 1000 of the stable version (surely less than 13.82 %)";
    assert_eq!(ended[0].reason, reason);
    assert_eq!(store.judge_canaries().await.unwrap(), []);
    assert_eq!(store.wanted().await.unwrap()[0].canary, None);
    let last = &store.plugin_history(Some("mail"), 1).await.unwrap()[0];
    assert_eq!(
        (last.action.as_str(), last.reason.as_deref()),
        ("auto_rollback", Some(reason))
    );
    let numbers: serde_json::Value =
        serde_json::from_str(last.numbers.as_ref().unwrap().get()).unwrap();
    assert_eq!(
        numbers,
        serde_json::json!({ "canary": { "done": 0, "failed": 20 }, "stable": { "done": 900, "failed": 100 } })
    );
    let told = refused(store, Change::Promote(None)).await;
    assert!(
        told.contains("rolled back by itself") && told.ends_with(reason),
        "{told}"
    );
    // Whoever pushes it again is told; a rollback goes past it unless somebody has made it stable since.
    let again = change(store, Change::Canary(b, 100, AutoRollback::On)).await;
    assert!(
        again.message.contains("; it was rolled back by itself at "),
        "{again:?}"
    );
    change(store, Change::Promote(None)).await;
    change(store, Change::Push(c)).await;
    let back = change(store, Change::Rollback(None)).await;
    serves(&back, &b);
    db.drop().await;
}

/// A version served, was tried again as a canary, and was thrown out: the way back leads past it, unless it is named.
#[tokio::test]
async fn a_rollback_goes_past_a_version_that_was_thrown_out() {
    let db = Db::new().await;
    let store = &db.store;
    let [a, b, c] = versions(store).await;
    change(store, Change::Push(a)).await;
    change(store, Change::Push(b)).await;
    let revision = canary(store, c, b, AutoRollback::On).await;
    count(store, &b, revision, 1, 0, 20).await;
    count(store, &c, revision, 1, 900, 0).await;
    assert_eq!(store.judge_canaries().await.unwrap().len(), 1);
    let back = change(store, Change::Rollback(None)).await;
    serves(&back, &a);
    let named = change(store, Change::Rollback(Some(b))).await;
    serves(&named, &b);
    db.drop().await;
}

#[tokio::test]
async fn a_canary_without_auto_rollback_goes_on() {
    let db = Db::new().await;
    let store = &db.store;
    let [a, b] = versions(store).await;
    let revision = canary(store, a, b, AutoRollback::Off).await;
    count(store, &b, revision, 1, 0, 200).await;
    count(store, &a, revision, 1, 900, 0).await;
    assert_eq!(store.judge_canaries().await.unwrap(), []);
    // The same again with it begins a new trial.
    let begun = change(store, Change::Canary(b, 1000, AutoRollback::On)).await;
    assert!(begun.changed && begun.revision > revision);
    assert_eq!(store.judge_canaries().await.unwrap(), []);
    db.drop().await;
}

/// The rule at its edges: failed and all attempts of the canary, and of the stable version.
#[tokio::test]
async fn the_rule_wants_five_failures_and_intervals_that_lie_apart() {
    let db = Db::new().await;
    let cases: [([i64; 4], bool); 12] = [
        ([4, 4, 0, 1_000_000], false),
        ([5, 5, 0, 45], true),
        ([5, 5, 0, 20], false),
        ([5, 5, 0, 0], false),
        ([0, 0, 0, 0], false),
        ([0, 1000, 0, 1000], false),
        // 20 % where 1 % is usual.
        ([8, 40, 4, 400], true),
        ([4, 20, 4, 400], false),
        // 3 % where 1 % is usual.
        ([30, 1000, 90, 9000], true),
        ([9, 300, 27, 2700], false),
        // A little worse is not clearly worse.
        ([1100, 10_000, 9000, 90_000], false),
        ([500, 1000, 4500, 9000], false),
    ];
    for ([cf, cn, sf, sn], worse) in cases {
        let row = sqlx::query(
            "select $1 >= 5 and c.low > s.high as worse from piecework.failure_interval($1, $2, 3.5) c, piecework.failure_interval($3, $4, 3.5) s",
        )
        .bind(cf)
        .bind(cn)
        .bind(sf)
        .bind(sn)
        .fetch_one(&db.pool)
        .await
        .unwrap();
        assert_eq!(row.get::<bool, _>("worse"), worse, "{cf}/{cn} {sf}/{sn}");
        // The function that judges has the same rule and number.
        sqlx::query("delete from piecework.canary_count")
            .execute(&db.pool)
            .await
            .unwrap();
        sqlx::query("insert into piecework.canary_count values ('mail', '\\x01', 7, 1, $2 - $1, $1), ('mail', '\\x02', 7, 1, $4 - $3, $3), ('mail', '\\x01', 6, 1, 0, 500)")
            .bind(cf)
            .bind(cn)
            .bind(sf)
            .bind(sn)
            .execute(&db.pool)
            .await
            .unwrap();
        let judged: bool =
            sqlx::query_scalar("select worse from piecework.judge('mail', '\\x01', '\\x02', 7)")
                .fetch_one(&db.pool)
                .await
                .unwrap();
        assert_eq!(judged, worse, "{cf}/{cn} {sf}/{sn}");
    }
    db.drop().await;
}

/// A transaction that has changed the release of `mail` and not ended yet.
async fn begin<'a>(db: &'a Db, call: &'static str) -> sqlx::Transaction<'a, sqlx::Postgres> {
    let mut held = db.pool.begin().await.unwrap();
    sqlx::query(call).execute(&mut *held).await.unwrap();
    held
}

/// Somebody promotes a canary while a runner finds it worse: who came first has it, and neither waits for the other.
#[tokio::test]
async fn a_canary_that_is_promoted_at_this_moment_is_not_rolled_back() {
    let db = Db::new().await;
    let store = &db.store;
    let [a, b] = versions(store).await;
    let revision = canary(store, a, b, AutoRollback::On).await;
    count(store, &b, revision, 1, 0, 200).await;
    count(store, &a, revision, 1, 900, 0).await;
    let held = begin(&db, "select piecework.plugin_promote('mail')").await;
    assert_eq!(store.judge_canaries().await.unwrap(), []);
    held.commit().await.unwrap();
    assert_eq!(store.judge_canaries().await.unwrap(), []);
    assert_eq!(store.wanted().await.unwrap()[0].stable.digest, b);
    // The other way round: the promotion waits, and then finds no canary.
    let revision = canary(store, a, b, AutoRollback::On).await;
    count(store, &b, revision, 1, 0, 200).await;
    count(store, &a, revision, 1, 900, 0).await;
    let held = begin(&db, "select piecework.judge_canaries()").await;
    // The connections of the store wait for half a second, and say so.
    let waits = store.release("mail", Change::Promote(None)).await;
    assert!(
        matches!(waits, Err(Error::Locked(_))) && waits.unwrap_err().is_passing(),
        "it waits"
    );
    held.commit().await.unwrap();
    let told = refused(store, Change::Promote(None)).await;
    assert!(told.starts_with("no canary of mail runs; "), "{told}");
    db.drop().await;
}

/// Several runners see the same numbers in the same second.
#[tokio::test]
async fn a_canary_is_rolled_back_once_however_many_judge_it() {
    let db = Db::new().await;
    let store = &db.store;
    let [a, b] = versions(store).await;
    let revision = canary(store, a, b, AutoRollback::On).await;
    count(store, &b, revision, 1, 0, 200).await;
    count(store, &a, revision, 1, 900, 0).await;
    let judges: Vec<_> = (0..4)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.judge_canaries().await.unwrap().len() })
        })
        .collect();
    let mut ended = 0;
    for judge in judges {
        ended += judge.await.unwrap();
    }
    assert_eq!(ended, 1);
    db.drop().await;
}

/// Two people push for the same new type at once: both succeed, one after the other, and the way back leads from one to the other.
#[tokio::test]
async fn pushes_at_once_come_one_after_the_other() {
    let db = Db::new().await;
    let store = &db.store;
    let all: [Digest; 8] = versions(store).await;
    let pushes: Vec<_> = all
        .iter()
        .map(|digest| {
            let (store, change) = (store.clone(), Change::Push(*digest));
            tokio::spawn(async move {
                until("the push", || async {
                    match store.release("mail", change).await {
                        Err(error) if error.is_passing() => None,
                        other => Some(other.unwrap()),
                    }
                })
                .await
            })
        })
        .collect();
    let mut revisions = Vec::new();
    for push in pushes {
        revisions.push(push.await.unwrap().revision);
    }
    revisions.sort_unstable();
    revisions.dedup();
    assert_eq!(revisions.len(), 8);
    let history = store.plugin_history(Some("mail"), 100).await.unwrap();
    // Each found what the one before had left.
    for pair in history.windows(2) {
        assert_eq!(pair[0].from, pair[1].to);
        assert!(pair[0].revision > pair[1].revision);
    }
    for line in &history[1..] {
        assert_eq!(change(store, Change::Rollback(None)).await.stable, line.to);
    }
    db.drop().await;
}

/// Runners hear of each change.
#[tokio::test]
async fn every_change_is_told() {
    let db = Db::new().await;
    let [a] = versions(&db.store).await;
    let mut listener = sqlx::postgres::PgListener::connect(db.url()).await.unwrap();
    listener.listen("piecework_plugins").await.unwrap();
    for what in [
        Change::Push(a),
        Change::Pin(None),
        Change::Unpin,
        Change::Withdraw,
    ] {
        change(&db.store, what).await;
        let told = tokio::time::timeout(Duration::from_secs(10), listener.recv()).await;
        assert_eq!(told.unwrap().unwrap().payload(), "mail", "{what:?}");
    }
    db.drop().await;
}

#[tokio::test]
async fn components_that_nobody_can_want_are_forgotten() {
    let db = Db::new().await;
    let store = &db.store;
    let all: [Digest; 30] = versions(store).await;
    for digest in &all[..29] {
        change(store, Change::Push(*digest)).await;
    }
    let components = "select count(*) from piecework.component";
    assert_eq!(store.prune_components().await.unwrap(), 0);
    let age = async |what: &'static str| {
        sqlx::query(what).execute(&db.pool).await.unwrap();
    };
    age("update piecework.component set pushed_at = now() - interval '31 days'").await;
    // All were released lately, but for the last, which never was.
    assert_eq!(store.prune_components().await.unwrap(), 1);
    age("update piecework.release_history set at = now() - interval '31 days'").await;
    // The stable version and the 20 before it are what a rollback goes back to.
    assert_eq!(store.prune_components().await.unwrap(), 8);
    assert_eq!(db.number(components).await, 21);
    // Withdrawn a month ago: the last 20 versions stay.
    change(store, Change::Withdraw).await;
    age("update piecework.release_history set at = now() - interval '31 days'").await;
    age("update piecework.release set previous = '{}'").await;
    assert_eq!(store.prune_components().await.unwrap(), 1);
    assert!(store.component(&all[28]).await.unwrap().is_some());
    assert!(store.component(&all[9]).await.unwrap().is_some());
    assert_eq!(store.component(&all[8]).await.unwrap(), None);
    // What is gone cannot serve, and the way back leads past it.
    let told = refused(store, Change::Push(all[0])).await;
    assert!(told.starts_with("the database has no component"), "{told}");
    // Uploads that were given up, and runners that are forgotten.
    age("insert into piecework.component_part (upload, place, bytes, at) values (1, 0, 'a', now() - interval '2 hours'), (2, 0, 'a', now())").await;
    age("insert into piecework.runner_plugins (runner, fleet, plugins) values (4711, true, '[]')")
        .await;
    store.prune_components().await.unwrap();
    let left = "select (select count(*) from piecework.component_part) * 10 + (select count(*) from piecework.runner_plugins)";
    assert_eq!(db.number(left).await, 10);
    db.drop().await;
}

/// A component that serves cannot be deleted; one that served before can, and the way back leads past it.
#[tokio::test]
async fn a_component_that_was_deleted_by_hand_is_passed_over() {
    let db = Db::new().await;
    let store = &db.store;
    let [a, b, c] = versions(store).await;
    for digest in [a, b, c] {
        change(store, Change::Push(digest)).await;
    }
    let delete = "delete from piecework.component where digest = $1";
    let serving = sqlx::query(delete)
        .bind(&c[..])
        .execute(&db.pool)
        .await
        .unwrap_err();
    assert!(serving.to_string().contains("release"), "{serving}");
    sqlx::query(delete)
        .bind(&b[..])
        .execute(&db.pool)
        .await
        .unwrap();
    let told = refused(store, Change::Rollback(Some(b))).await;
    assert!(told.starts_with("the database has no component"), "{told}");
    let back = change(store, Change::Rollback(None)).await;
    serves(&back, &a);
    // Whoever gets round the constraint is told of it by each runner.
    sqlx::raw_sql("alter table piecework.release disable trigger all; alter table piecework.component disable trigger all; delete from piecework.component")
        .execute(&db.pool)
        .await
        .unwrap();
    assert_eq!(store.wanted().await.unwrap()[0].stable.size, 0);
    assert_eq!(store.component(&a).await.unwrap(), None);
    db.drop().await;
}
