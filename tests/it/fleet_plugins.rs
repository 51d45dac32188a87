//! Plugins of the fleet in the database: components, what people change, who wins, and what is forgotten.

use piecework::job::RunnerId;
use piecework::store::{
    AutoRollback, CanaryCount, Change, Changed, Digest, Error, LARGEST_COMPONENT, Store,
};
use sha2::{Digest as _, Sha256};

use super::support::db::Db;

/// What a change that must succeed came to.
pub(crate) async fn change(store: &Store, change: Change) -> Changed {
    store.release("mail", change).await.unwrap()
}

/// The message of a change that must be refused.
pub(crate) async fn refused(store: &Store, change: Change) -> String {
    match store.release("mail", change).await {
        Err(Error::Refused { message }) => message,
        other => panic!("{change:?}: {other:?}"),
    }
}

/// Some versions; no test here runs them.
pub(crate) async fn versions<const N: usize>(store: &Store) -> [Digest; N] {
    let mut all = [[0; 32]; N];
    for (n, digest) in all.iter_mut().enumerate() {
        *digest = store.push(&bytes(n, 100), None).await.unwrap();
    }
    all
}

fn bytes(seed: usize, size: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed as u64);
    std::iter::repeat_with(|| random.u8(..))
        .take(size)
        .collect()
}

fn hex(digest: &Digest) -> String {
    piecework::engine::hex(digest)
}

fn short(digest: &Digest) -> String {
    hex(digest)[..12].to_owned()
}

#[tokio::test]
async fn a_component_comes_back_as_it_was_whatever_its_size() {
    let db = Db::new().await;
    let piece = 512 << 10;
    for size in [1, piece - 1, piece, piece + 1, 3 * piece, 3_000_001] {
        let sent = bytes(size, size);
        let digest = db.store.push(&sent, None).await.unwrap();
        assert_eq!(digest[..], Sha256::digest(&sent)[..], "{size}");
        let back = db.store.component(&digest).await.unwrap();
        assert!(back.as_deref() == Some(&sent[..]), "{size}");
    }
    assert_eq!(db.store.component(&[7; 32]).await.unwrap(), None);
    // Nothing stays on the way, and what is stored is neither packed nor in the row.
    assert_eq!(
        db.number("select count(*) from piecework.component_part")
            .await,
        0
    );
    assert_eq!(
        db.number("select count(*) from pg_attribute where attrelid = 'piecework.component'::regclass and attname = 'bytes' and attstorage = 'e'")
            .await,
        1
    );
    let huge = vec![0; LARGEST_COMPONENT + 1];
    let error = db.store.push(&huge, None).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "the component has 268435457 bytes, the limit is 268435456"
    );
    let error = db.store.push(&[], None).await.unwrap_err().to_string();
    assert_eq!(error, "the component has 0 bytes, the limit is 268435456");
    db.drop().await;
}

#[tokio::test]
async fn a_component_is_kept_once_and_takes_a_signature_later() {
    let db = Db::new().await;
    let sent = bytes(1, 1000);
    let digest = db.store.push(&sent, None).await.unwrap();
    change(&db.store, Change::Push(digest)).await;
    let signature = async || db.store.wanted().await.unwrap()[0].stable.signature.clone();
    assert_eq!(signature().await, None);
    db.store.push(&sent, Some("signed")).await.unwrap();
    assert_eq!(signature().await.as_deref(), Some("signed"));
    db.store.push(&sent, None).await.unwrap();
    assert_eq!(signature().await.as_deref(), Some("signed"));
    assert_eq!(
        db.number("select count(*) from piecework.component").await,
        1
    );
    db.drop().await;
}

/// Nobody can store bytes under a digest that is not theirs, and what is changed behind our back is not handed out.
#[tokio::test]
async fn bytes_that_are_not_those_of_the_digest_are_refused() {
    let db = Db::new().await;
    let digest = db.store.push(&bytes(1, 1000), None).await.unwrap();
    let forged = "update piecework.component set bytes = 'other'";
    assert!(sqlx::query(forged).execute(&db.pool).await.is_err());
    sqlx::raw_sql("alter table piecework.component drop constraint component_digest; update piecework.component set bytes = 'other'")
        .execute(&db.pool)
        .await
        .unwrap();
    let error = db.store.component(&digest).await.unwrap_err().to_string();
    assert!(error.contains("not those of its digest"), "{error}");
    // A piece that got lost on the way.
    let joined = "piecework.component_join(5, sha256('ab'))";
    sqlx::query("select piecework.component_part(5, 0, 'a')")
        .execute(&db.pool)
        .await
        .unwrap();
    let told = db.refusal(joined).await;
    assert!(told.contains("not the one that was sent"), "{told}");
    db.drop().await;
}

#[tokio::test]
async fn what_is_pushed_serves_and_what_served_is_gone_back_to() {
    let db = Db::new().await;
    let store = &db.store;
    let [a, b, c, d] = versions(store).await;
    let pushed = change(store, Change::Push(a)).await;
    assert_eq!(pushed.message, format!("{} serves mail", short(&a)));
    assert!(pushed.changed);
    let again = change(store, Change::Push(a)).await;
    assert!(!again.changed && again.revision == pushed.revision);
    assert_eq!(
        again.message,
        format!("{} of mail is the stable version already", short(&a))
    );
    for version in [b, c] {
        change(store, Change::Push(version)).await;
    }
    // Back, further back, and no further.
    let back = change(store, Change::Rollback(None)).await;
    assert_eq!(
        back.message,
        format!("{} serves mail again, in place of {}", short(&b), short(&c))
    );
    assert_eq!(
        change(store, Change::Rollback(None)).await.stable,
        Some(hex(&a))
    );
    let told = refused(store, Change::Rollback(None)).await;
    assert!(
        told.starts_with(&format!("there is no version of mail before {}", short(&a))),
        "{told}"
    );
    // Forward by name; what then served is the next to go back to.
    change(store, Change::Rollback(Some(c))).await;
    assert_eq!(
        change(store, Change::Rollback(None)).await.stable,
        Some(hex(&a))
    );
    let told = refused(store, Change::Rollback(Some(d))).await;
    assert!(told.contains("has never served mail"), "{told}");
    // The fleet serves it no more; a version by name brings it back.
    change(store, Change::Withdraw).await;
    assert!(store.wanted().await.unwrap().is_empty());
    let told = refused(store, Change::Rollback(None)).await;
    assert!(told.starts_with("the fleet serves no mail"), "{told}");
    assert_eq!(
        change(store, Change::Rollback(Some(c))).await.stable,
        Some(hex(&c))
    );
    let history = store.plugin_history(Some("mail"), 100).await.unwrap();
    let actions: Vec<&str> = history.iter().map(|line| line.action.as_str()).collect();
    assert_eq!(
        actions,
        [
            "rollback", "withdraw", "rollback", "rollback", "rollback", "rollback", "push", "push",
            "push"
        ]
    );
    assert_eq!(history[0].to, Some(hex(&c)));
    assert_eq!(
        store.plugin_versions("mail", &hex(&a)[..6]).await.unwrap(),
        [a]
    );
    db.drop().await;
}

#[tokio::test]
async fn a_canary_is_replaced_promoted_or_ended() {
    let db = Db::new().await;
    let store = &db.store;
    let [a, b, c] = versions(store).await;
    let canary = |digest, share| Change::Canary(digest, share, AutoRollback::On);
    let told = refused(store, canary(a, 1000)).await;
    assert!(
        told.starts_with("the fleet serves no mail that a canary"),
        "{told}"
    );
    change(store, Change::Push(a)).await;
    for share in [0, 10_000] {
        let told = refused(store, canary(b, share)).await;
        assert!(told.contains("between 0.01 and 99.99 percent"), "{told}");
    }
    assert!(!change(store, canary(a, 1000)).await.changed);
    let begun = change(store, canary(b, 1050)).await;
    assert_eq!(
        begun.message,
        format!(
            "{} serves 10.50 % of mail as a canary beside {}",
            short(&b),
            short(&a)
        )
    );
    assert!(!change(store, canary(b, 1050)).await.changed);
    let wanted = store.wanted().await.unwrap();
    assert_eq!(wanted[0].stable.digest, a);
    let (version, share) = wanted[0].canary.clone().unwrap();
    assert_eq!((version.digest, version.size, share), (b, 100, 1050));
    assert_eq!(wanted[0].revision, begun.revision);
    // Counts of the canary before count for nothing.
    count(store, &wanted[0].stable.digest, begun.revision, 1, 5, 5).await;
    let replaced = change(store, canary(c, 1)).await;
    assert!(
        replaced
            .message
            .ends_with(&format!("the canary {} ended", short(&b))),
        "{replaced:?}"
    );
    count(store, &a, begun.revision, 1, 50, 50).await;
    count(store, &a, replaced.revision, 1, 3, 1).await;
    // From another process, twice, and an older one late.
    count(store, &a, replaced.revision, 2, 20, 2).await;
    count(store, &a, replaced.revision, 2, 20, 2).await;
    count(store, &a, replaced.revision, 2, 10, 1).await;
    let line = &store.releases().await.unwrap()[0];
    assert_eq!((line.stable_done, line.stable_failed), (23, 3));
    let told = refused(store, Change::Promote(Some(b))).await;
    assert!(
        told.contains(&format!("the canary of mail is {}", short(&c))),
        "{told}"
    );
    change(store, Change::Promote(Some(c))).await;
    // A second person who meant the same.
    assert!(!change(store, Change::Promote(Some(c))).await.changed);
    assert_eq!(
        refused(store, Change::Promote(None)).await,
        "no canary of mail runs"
    );
    // A rollback ends the canary first, and then goes back.
    change(store, canary(b, 5000)).await;
    let told = refused(store, Change::Rollback(Some(b))).await;
    assert!(told.contains("is the canary of mail"), "{told}");
    let ended = change(store, Change::Rollback(None)).await;
    assert_eq!((ended.stable, ended.canary), (Some(hex(&c)), None));
    assert_eq!(
        change(store, Change::Rollback(None)).await.stable,
        Some(hex(&a))
    );
    // What is pushed for all serves all, the canary too.
    change(store, canary(b, 5000)).await;
    assert!(
        change(store, Change::Push(a))
            .await
            .message
            .ends_with("goes on")
    );
    let pushed = change(store, Change::Push(b)).await;
    assert_eq!((pushed.stable, pushed.canary), (Some(hex(&b)), None));
    assert_eq!(
        db.number("select count(*) from piecework.canary_count")
            .await,
        0
    );
    db.drop().await;
}

/// One count of a version of `mail`.
pub(crate) async fn count(
    store: &Store,
    digest: &Digest,
    revision: i64,
    source: i64,
    done: u64,
    failed: u64,
) {
    let count = CanaryCount {
        job_type: "mail".into(),
        digest: *digest,
        revision,
        done,
        failed,
    };
    store.count_canaries(source, &[count]).await.unwrap();
}

#[tokio::test]
async fn what_is_pinned_stays_until_it_is_unpinned() {
    let db = Db::new().await;
    let store = &db.store;
    let [a, b, c] = versions(store).await;
    for version in [a, b] {
        change(store, Change::Push(version)).await;
    }
    change(store, Change::Canary(c, 1000, AutoRollback::On)).await;
    let pinned = change(store, Change::Pin(None)).await;
    assert_eq!((pinned.stable, pinned.canary), (Some(hex(&b)), None));
    assert!(!change(store, Change::Pin(Some(b))).await.changed);
    assert!(!change(store, Change::Push(b)).await.changed);
    for other in [
        Change::Push(a),
        Change::Canary(a, 1000, AutoRollback::On),
        Change::Rollback(None),
        Change::Rollback(Some(a)),
        Change::Pin(Some(a)),
        Change::Withdraw,
    ] {
        let told = refused(store, other).await;
        assert!(
            told.starts_with(&format!("mail is pinned to {} by ", short(&b)))
                && told.ends_with(" UTC (`piecework plugins unpin mail` first)"),
            "{told}"
        );
    }
    assert!(change(store, Change::Unpin).await.changed);
    assert!(!change(store, Change::Unpin).await.changed);
    // Another version, in one step.
    let pinned = change(store, Change::Pin(Some(a))).await;
    assert_eq!((pinned.stable, pinned.pinned), (Some(hex(&a)), true));
    db.drop().await;
}

#[tokio::test]
async fn runners_say_what_they_serve() {
    let db = Db::new().await;
    let lease = std::time::Duration::from_secs(60);
    let new = db.store.register("new", 1, &[], lease, &[]).await.unwrap();
    let old = db.store.register("old", 1, &[], lease, &[]).await.unwrap();
    let gone = db.store.register("gone", 1, &[], lease, &[]).await.unwrap();
    let report = r#"[{"job_types":["mail"],"digest":"ab","source":"fleet","state":"serving","in_flight":[["ab",3]]}]"#;
    for runner in [new, gone] {
        db.store.report_plugins(runner, true, report).await.unwrap();
    }
    db.store.sign_off(gone, true).await.unwrap();
    // One that nobody knows.
    db.store
        .report_plugins(RunnerId(4711), true, report)
        .await
        .unwrap();
    let runners = db.store.runner_plugins().await.unwrap();
    assert_eq!(runners.len(), 2);
    assert_eq!((runners[0].id, runners[0].fleet), (new, Some(true)));
    assert_eq!(runners[0].plugins[0].state, "serving");
    assert_eq!((runners[1].id, runners[1].fleet), (old, None));
    assert!(runners[1].plugins.is_empty());
    assert_eq!(
        db.number("select count(*) from piecework.runner_plugins")
            .await,
        2
    );
    db.drop().await;
}
