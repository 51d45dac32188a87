//! `piecework plugins push` and what follows, as people call it.

use std::time::Duration;

use super::cli::{refused, run, text};
use super::fleet_plugins::count;
use super::support::db::Db;
use super::support::guests::{self, Folder};

/// With each time in place of which stands the same one: they differ from run to run.
fn timeless(text: &str) -> String {
    let word = |word: &str| {
        let time = word.len() >= 20 && word.starts_with("20") && word.ends_with('Z');
        let same = if word.len() > 20 { MILLIS } else { SECONDS };
        if time {
            same.to_owned()
        } else {
            word.to_owned()
        }
    };
    let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ");
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

const SECONDS: &str = "2026-01-01T00:00:00Z";
const MILLIS: &str = "2026-01-01T00:00:00.000Z";

struct Bench {
    db: Db,
    folder: Folder,
}

impl Bench {
    /// A database, and a folder with two versions of a handler.
    async fn new() -> Self {
        Self {
            db: Db::new().await,
            folder: Folder::with(&[("mail", "noop"), ("new", "probe")]),
        }
    }

    fn call(&self, arguments: &[&str]) -> std::process::Output {
        let mut all = vec!["plugins"];
        all.extend(arguments);
        run(Some(&self.db), self.folder.path(), &all)
    }

    #[track_caller]
    fn says(&self, arguments: &[&str]) -> String {
        let output = self.call(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
        text(&output.stdout)
    }

    /// The digest of a file of the folder.
    fn digest(&self, name: &str) -> String {
        use sha2::{Digest as _, Sha256};
        let bytes = std::fs::read(self.folder.path().join(name)).unwrap();
        piecework::engine::hex(&Sha256::digest(bytes))
    }

    async fn runner(&self, name: &str, reports: Option<(bool, serde_json::Value)>) {
        let lease = Duration::from_secs(600);
        let id = self
            .db
            .store
            .register(name, 1, &[], lease, &[])
            .await
            .unwrap();
        if let Some((fleet, plugins)) = reports {
            self.db
                .store
                .report_plugins(id, fleet, &plugins.to_string())
                .await
                .unwrap();
        }
    }
}

#[tokio::test]
async fn versions_are_pushed_tried_promoted_and_gone_back_to() {
    let bench = Bench::new().await;
    let (old, new) = (bench.digest("mail.wasm"), bench.digest("new.wasm"));
    let (o, n) = (&old[..12], &new[..12]);
    let nobody = "no live runner takes plugins from the fleet; one that does will serve it";
    assert_eq!(
        bench.says(&["push", "mail.wasm"]),
        format!("{o} serves mail\n{nobody}")
    );
    assert_eq!(
        bench.says(&["push", "mail.wasm", "--type", "mail", "--no-wait"]),
        format!("{o} of mail is the stable version already")
    );
    assert_eq!(
        bench.says(&[
            "push",
            "new.wasm",
            "--type",
            "mail",
            "--canary",
            "10%",
            "--no-wait"
        ]),
        format!("{n} serves 10.00 % of mail as a canary beside {o}")
    );
    let revision = bench.db.store.wanted().await.unwrap()[0].revision;
    let wanted = bench.db.store.wanted().await.unwrap();
    count(
        &bench.db.store,
        &wanted[0].stable.digest,
        revision,
        1,
        98,
        2,
    )
    .await;
    count(
        &bench.db.store,
        &wanted[0].canary.as_ref().unwrap().0.digest,
        revision,
        1,
        9,
        1,
    )
    .await;
    assert_eq!(
        timeless(&bench.says(&["releases"])),
        format!("\
JOB TYPE  STABLE        SINCE                 FAILED    CANARY        SHARE  SINCE                 FAILED
mail      {o}  {SECONDS}  2 of 100  {n}  10%    {SECONDS}  1 of 10")
    );
    // Another version than the one that is meant.
    refused(
        &bench.call(&["promote", "mail", &old[..6]]),
        2,
        &format!("the canary of mail is {n} and not {o}"),
    );
    assert_eq!(
        bench.says(&["promote", "mail", &n[..6].to_uppercase()]),
        format!("{n} serves all of mail")
    );
    assert_eq!(
        bench.says(&["rollback", "mail"]),
        format!("{o} serves mail again, in place of {n}")
    );
    assert_eq!(
        bench.says(&["rollback", "mail", "--to", &new]),
        format!("{n} serves mail again, in place of {o}")
    );
    assert_eq!(
        bench.says(&["pin", "mail", o]),
        format!("mail is pinned to {o}")
    );
    let output = bench.call(&["push", "new.wasm", "--type", "mail", "--no-wait"]);
    refused(&output, 2, &format!("mail is pinned to {o} by "));
    refused(&output, 2, "(`piecework plugins unpin mail` first)");
    assert!(bench.says(&["fleet"]).contains(" pinned by "));
    assert_eq!(
        bench.says(&["unpin", "mail"]),
        format!("mail is no longer pinned; {o} serves it")
    );
    assert_eq!(
        bench.says(&["withdraw", "mail"]),
        "the fleet serves mail no more"
    );
    let history = bench.says(&["history", "mail", "--limit", "8"]);
    let who: String = sqlx::query_scalar("select session_user::text")
        .fetch_one(&bench.db.pool)
        .await
        .unwrap();
    assert_eq!(
        timeless(&history),
        format!("\
AT                        JOB TYPE  CHANGE    FROM          TO            SHARE  BY
{MILLIS}  mail      withdraw  {o}                       {who}
{MILLIS}  mail      unpin     {o}  {o}         {who}
{MILLIS}  mail      pin       {n}  {o}         {who}
{MILLIS}  mail      rollback  {o}  {n}         {who}
{MILLIS}  mail      rollback  {n}  {o}         {who}
{MILLIS}  mail      promote   {o}  {n}         {who}  1 of 10 attempts of the canary failed, 2 of 100 of the stable version
{MILLIS}  mail      canary    {o}  {n}  10%    {who}
{MILLIS}  mail      push                    {o}         {who}")
    );
    bench.db.drop().await;
}

#[tokio::test]
async fn what_cannot_be_is_refused_and_says_what_to_do() {
    let bench = Bench::new().await;
    let folder = bench.folder.path();
    std::fs::write(folder.join("text.wasm"), "hello").unwrap();
    std::fs::write(
        folder.join("runner.toml"),
        "[plugins.two]\njob_types = [\"a\", \"b\"]\n",
    )
    .unwrap();
    std::fs::copy(folder.join("mail.wasm"), folder.join("two.wasm")).unwrap();
    refused(
        &bench.call(&["push", "none.wasm"]),
        2,
        "none.wasm cannot be read: ",
    );
    refused(
        &bench.call(&["push", "text.wasm"]),
        1,
        "text.wasm is refused, and nothing was stored (--no-check stores it all the same): ",
    );
    assert_eq!(
        bench
            .db
            .number("select count(*) from piecework.component")
            .await,
        0
    );
    refused(
        &bench.call(&["push", "two.wasm"]),
        2,
        "two.wasm serves a, b in the plugins folder: name one with --type",
    );
    refused(
        &bench.call(&["push", "mail.wasm", "--signature", "none.minisig"]),
        2,
        "the signature none.minisig cannot be read: ",
    );
    refused(
        &bench.call(&["push", "mail.wasm", "--canary", "5", "--no-wait"]),
        2,
        "the fleet serves no mail that a canary could be held against (Push the stable version first, without a canary)",
    );
    let share = bench.call(&["push", "mail.wasm", "--canary", "100%"]);
    assert_eq!(share.status.code(), Some(2));
    assert!(text(&share.stderr).contains("a percentage of 0.01 to 99.99, such as 10%"));
    for command in ["promote", "rollback", "pin", "unpin", "withdraw"] {
        refused(
            &bench.call(&[command, "mail"]),
            2,
            "the fleet serves no mail",
        );
    }
    refused(
        &bench.call(&["pin", "mail", "abc"]),
        2,
        "`abc` is no version: give its digest, or the first 6 digits",
    );
    refused(
        &bench.call(&["pin", "mail", "abcdef"]),
        2,
        "`mail` has had no version abcdef: see `piecework plugins history mail`",
    );
    bench.says(&["push", "text.wasm", "--no-check", "--no-wait"]);
    bench.db.drop().await;
}

#[tokio::test]
async fn a_push_waits_for_the_runners_and_says_what_they_say() {
    let bench = Bench::new().await;
    let digest = bench.digest("mail.wasm");
    let plugin = |state: &str, reason: Option<&str>| {
        let plugin = serde_json::json!({
            "job_types": ["mail"], "digest": digest, "source": "fleet", "state": state, "reason": reason, "in_flight": [] });
        Some((true, serde_json::json!([plugin])))
    };
    let short = &digest[..12];
    bench.runner("one", plugin("serving", None)).await;
    bench
        .runner("two", Some((false, serde_json::json!([]))))
        .await;
    bench.runner("three", None).await;
    assert_eq!(
        bench.says(&["push", "mail.wasm"]),
        format!(
            "\
{short} serves mail
runner 1 one: serving
runner 2 two: takes no plugins from the fleet
runner 3 three: takes no plugins from the fleet"
        )
    );
    bench
        .runner(
            "four",
            plugin("refused", Some("it has no\x1b[2J signature")),
        )
        .await;
    bench.runner("five", plugin("compiling", None)).await;
    bench
        .runner("six", Some((true, serde_json::json!([]))))
        .await;
    let output = bench.call(&["push", "mail.wasm", "--wait", "300ms"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stdout),
        format!(
            "\
{short} of mail is the stable version already
runner 1 one: serving
runner 2 two: takes no plugins from the fleet
runner 3 three: takes no plugins from the fleet
runner 4 four: refused: it has no\\u{{1b}}[2J signature
runner 5 five: compiling after 300ms
runner 6 six: has not said anything within 300ms"
        )
    );
    let output = bench.call(&["push", "mail.wasm", "--wait", "100ms", "--json"]);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["digest"], digest);
    assert_eq!(answer["changed"], false);
    assert_eq!(answer["runners"][3]["state"], "refused");
    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_str(&bench.says(arguments)).unwrap()
    };
    assert_eq!(json(&["releases", "--json"])[0]["stable"], digest);
    assert_eq!(json(&["history", "--json"])[0]["action"], "push");
    assert_eq!(json(&["pin", "mail", "--json"])["pinned"], true);
    bench.db.drop().await;
}

#[tokio::test]
async fn the_signature_beside_the_file_is_stored_with_it() {
    let bench = Bench::new().await;
    let folder = bench.folder.path();
    let signature = "untrusted comment: signature\nRUQ=\ntrusted comment: x\nAA==\n";
    std::fs::write(folder.join("mail.wasm.minisig"), signature).unwrap();
    bench.says(&["push", "mail.wasm", "--no-wait"]);
    let stored = async || {
        bench.db.store.wanted().await.unwrap()[0]
            .stable
            .signature
            .clone()
    };
    assert_eq!(stored().await.as_deref(), Some(signature));
    std::fs::write(folder.join("other"), "another").unwrap();
    bench.says(&["push", "mail.wasm", "--signature", "other", "--no-wait"]);
    assert_eq!(stored().await.as_deref(), Some("another"));
    assert_eq!(
        guests::bytes("noop"),
        std::fs::read(folder.join("mail.wasm")).unwrap()
    );
    bench.db.drop().await;
}
