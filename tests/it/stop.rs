//! SIGTERM: no more claims, handlers end or are handed back, and the process is gone in time with exit code 0, whatever
//! the database does meanwhile.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::db::Db;
use crate::support::guests::{self, Folder};
use crate::support::process::{Host, SHORT};
use crate::support::relay::{Link, Relay};
use crate::support::until;

/// A grace of 3 s in place of 5 s, and naps to match: 1.5 s are within it, 25 s are beyond grace and lease together.
const GRACE: Duration = Duration::from_secs(3);
/// The case allows a second after the grace; the machine of a test may take a little longer to notice.
const IN_TIME: Duration = Duration::from_millis(4300);

const SHORT_NAP: &str = r#"{"do": "nap", "ms": 1500}"#;
const LONG_NAP: &str = r#"{"do": "nap", "ms": 25000}"#;

fn settings() -> String {
    SHORT.replace("stop_grace = '5s'", &format!("stop_grace = '{GRACE:?}'"))
}

#[tokio::test]
async fn process_o_16_a_host_that_is_told_to_stop_finishes_or_hands_back_and_leaves() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("probe", "probe")]);
    let mut first = Host::start(&db, plugins.path(), &settings());
    first.ready().await;
    let short = db.enqueue_times(2, "probe", SHORT_NAP).await;
    let long = db.enqueue_times(2, "probe", LONG_NAP).await;
    until("four attempts", || async {
        (first.count("attempt started") == 4).then_some(())
    })
    .await;
    db.enqueue_times(20, "probe", r#"{"do": "ok"}"#).await;

    let second = Host::start(&db, plugins.path(), &settings());
    let signalled = Instant::now();
    first.signal(Signal::TERM);
    assert!(first.ended().await.success());
    assert!(signalled.elapsed() < IN_TIME, "{:?}", signalled.elapsed());
    assert_eq!(
        first.count("attempt started"),
        4,
        "claimed after the signal"
    );
    second.ready().await;

    let by = "select count(*) from piecework.job_history where state = 'done' and attempt = 1";
    db.until(22, by).await;
    for id in short {
        let runner = db
            .text(
                "select runner::text from piecework.job_history where id = $1",
                id,
            )
            .await;
        assert_eq!(runner, Some(first.runner().to_string()));
    }
    db.until(
        2,
        "select count(*) from piecework.job where state = 'running'",
    )
    .await;
    // The attempt is given back, and that this happened is recorded.
    let wrong = "select count(*) from piecework.job
        where attempt <> 1 or jsonb_array_length(attempts) <> 1 or attempts -> 0 ->> 'failure' <> 'handed_back'";
    assert_eq!(db.number(wrong).await, 0);
    for id in long {
        assert_eq!((first.starts(id), second.starts(id)), (1, 1));
    }
    assert!(gap(&db, &first).await < 2.0, "{} s", gap(&db, &first).await);
    db.drop().await;
}

/// The other host has been idle for 7 s when the jobs come back, so that it looks at the table every 5 s only (default).
#[tokio::test]
async fn process_o_16_an_idle_host_starts_what_was_handed_back_within_2_s() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("probe", "probe")]);
    let mut first = Host::start(
        &db,
        plugins.path(),
        &SHORT.replace("stop_grace = '5s'", "stop_grace = '7s'"),
    );
    first.ready().await;
    db.enqueue_times(2, "probe", LONG_NAP).await;
    until("two attempts", || async {
        (first.count("attempt started") == 2).then_some(())
    })
    .await;
    let second = Host::start(&db, plugins.path(), SHORT);
    second.ready().await;
    first.signal(Signal::TERM);
    assert!(first.ended().await.success());
    until("two attempts", || async {
        (second.count("attempt started") == 2).then_some(())
    })
    .await;
    assert!(gap(&db, &first).await < 2.0, "{} s", gap(&db, &first).await);
    db.drop().await;
}

#[tokio::test]
async fn process_o_16_a_second_signal_skips_the_wait() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("probe", "probe")]);
    let mut host = Host::start(
        &db,
        plugins.path(),
        &SHORT.replace("stop_grace = '5s'", "stop_grace = '20s'"),
    );
    host.ready().await;
    db.enqueue_times(3, "probe", LONG_NAP).await;
    db.enqueue("probe", r#"{"do": "spin"}"#).await;
    until("four attempts", || async {
        (host.count("attempt started") == 4).then_some(())
    })
    .await;
    host.signal(Signal::TERM);
    host.says("signal received").await;
    let signalled = Instant::now();
    host.signal(Signal::TERM);
    assert!(host.ended().await.success());
    assert!(
        signalled.elapsed() < Duration::from_secs(2),
        "{:?}",
        signalled.elapsed()
    );
    handed_back(&db, 4).await;
    db.drop().await;
}

/// A handler that asks ends by itself, and its result counts.
#[tokio::test]
async fn process_o_16_a_handler_that_asks_learns_of_the_stop() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("probe", "probe")]);
    let mut host = Host::start(&db, plugins.path(), SHORT);
    host.ready().await;
    let id = db.enqueue("probe", r#"{"do": "wait_cancelled"}"#).await;
    until("an attempt", || async {
        (host.count("attempt started") == 1).then_some(())
    })
    .await;
    let signalled = Instant::now();
    host.signal(Signal::TERM);
    assert!(host.ended().await.success());
    assert!(
        signalled.elapsed() < Duration::from_secs(2),
        "{:?}",
        signalled.elapsed()
    );
    assert_eq!(db.state(id).await, "done");
    db.drop().await;
}

#[tokio::test]
async fn process_o_16_a_host_leaves_in_time_while_the_database_refuses_it() {
    leaves_in_time(Link::Broken, 1).await;
}

#[tokio::test]
async fn process_o_16_a_host_leaves_in_time_while_the_database_does_not_answer() {
    leaves_in_time(Link::Frozen, 1).await;
}

#[tokio::test]
async fn process_o_16_a_second_signal_skips_the_wait_for_a_database_that_does_not_answer() {
    leaves_in_time(Link::Frozen, 2).await;
}

/// Two short and two long jobs; the link fails, then the signals come. Nothing can be written, so another host takes all
/// four over when the lease is over.
async fn leaves_in_time(link: Link, signals: usize) {
    let db = Db::new().await;
    let plugins = Folder::with(&[("probe", "probe")]);
    let relay = Relay::to(db.url()).await;
    // It looks at the table all the time: a call is under way when the link fails.
    let busy = settings()
        .replace("[runner]", "[runner]\npoll = '50ms'")
        .replace("slots = 4", "slots = 5");
    let mut host = Host::start_on(relay.url(), plugins.path(), &busy, &[]);
    host.ready().await;
    db.enqueue_times(2, "probe", SHORT_NAP).await;
    db.enqueue_times(2, "probe", LONG_NAP).await;
    until("four attempts", || async {
        (host.count("attempt started") == 4).then_some(())
    })
    .await;
    relay.set(link);
    // Long enough for the next look to begin, and too short for any limit to end it.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let signalled = Instant::now();
    for _ in 0..signals {
        host.signal(Signal::TERM);
        host.says("signal received").await;
    }
    let status = host.ended().await;
    let took = signalled.elapsed();
    let allowed = if signals == 2 {
        IN_TIME.saturating_sub(GRACE)
    } else {
        IN_TIME
    };
    assert!(took < allowed, "{took:?}");
    assert!(status.success(), "{status}");

    let second = Host::start(&db, plugins.path(), &settings());
    second.ready().await;
    until("four attempts", || async {
        (second.count("attempt started") == 4).then_some(())
    })
    .await;
    db.until(
        2,
        "select count(*) from piecework.job_history where state = 'done' and attempt = 2",
    )
    .await;
    db.drop().await;
}

/// Many plugins to compile, of which the first is done.
#[tokio::test]
async fn process_o_16_a_host_leaves_in_time_while_it_compiles() {
    let db = Db::new().await;
    let plugins = Folder::new();
    for n in 0..12 {
        plugins.put(&format!("probe-{n}"), &guests::bytes("probe"));
    }
    let settings = SHORT.replace("stop_grace = '5s'", "stop_grace = '1s'");
    let mut host = Host::start(&db, plugins.path(), &settings);
    host.says("plugin loaded").await;
    let signalled = Instant::now();
    host.signal(Signal::TERM);
    let status = host.ended().await;
    let took = signalled.elapsed();
    assert!(
        took < Duration::from_millis(2300),
        "{took:?}, {} of 12 compiled",
        host.count("plugin loaded")
    );
    assert!(status.success(), "{status}");
    assert_eq!(host.count("runner registered"), 0);
    db.drop().await;
}

/// The handler waits for a server that never answers.
#[tokio::test]
async fn process_o_16_a_host_leaves_in_time_while_a_handler_is_in_an_http_call() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("probe", "probe")]);
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let rule = format!(
        "[defaults.http]\nallow = [{{ to = '{url}', private = true }}]\nfirst_byte_timeout = '25s'\ntimeout = '25s'\n"
    );
    let mut host = Host::start(&db, plugins.path(), &(settings() + &rule));
    host.ready().await;
    let payload = format!(r#"{{"do": "http", "url": "{url}/"}}"#);
    db.enqueue_times(2, "probe", &payload).await;
    until("two attempts", || async {
        (host.count("attempt started") == 2).then_some(())
    })
    .await;
    let (_open, _) = silent.accept().await.unwrap();
    let signalled = Instant::now();
    host.signal(Signal::TERM);
    assert!(host.ended().await.success());
    assert!(signalled.elapsed() < IN_TIME, "{:?}", signalled.elapsed());
    handed_back(&db, 2).await;
    db.drop().await;
}

/// It waits for the answer to its first question.
#[tokio::test]
async fn process_o_16_a_host_leaves_in_time_while_it_waits_for_the_database_to_start() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("probe", "probe")]);
    let relay = Relay::to(db.url()).await;
    relay.set(Link::Frozen);
    let mut host = Host::start_on(relay.url(), plugins.path(), SHORT, &[]);
    relay.used().await;
    let signalled = Instant::now();
    host.signal(Signal::TERM);
    let status = host.ended().await;
    assert!(signalled.elapsed() < IN_TIME, "{:?}", signalled.elapsed());
    assert!(status.success(), "{status}");
    db.drop().await;
}

/// The link fails while the second of two plugins is compiled.
#[tokio::test]
async fn process_o_16_a_host_leaves_in_time_while_it_registers() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("one", "probe"), ("two", "probe")]);
    let relay = Relay::to(db.url()).await;
    let settings = format!("{SHORT}[engine]\ncache = 'off'\n");
    let mut host = Host::start_on(relay.url(), plugins.path(), &settings, &[]);
    host.says("plugin loaded").await;
    relay.set(Link::Frozen);
    until("the second plugin", || async {
        (host.count("plugin loaded") == 2).then_some(())
    })
    .await;
    let signalled = Instant::now();
    host.signal(Signal::TERM);
    let status = host.ended().await;
    assert!(signalled.elapsed() < IN_TIME, "{:?}", signalled.elapsed());
    assert!(status.success(), "{status}");
    db.drop().await;
}

/// Its start never ends, so loading it takes as long as it is let.
#[tokio::test]
async fn process_a_plugin_that_is_being_loaded_holds_up_neither_jobs_nor_the_stop() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("mail", "noop")]);
    let mut host = Host::start(&db, plugins.path(), SHORT);
    host.ready().await;
    plugins.put("endless", &guests::bytes("start_loop"));
    host.says("a plugin is being loaded").await;
    db.enqueue_times(20, "mail", "{}").await;
    let done = "select count(*) from piecework.job_history where state = 'done'";
    db.until(20, done).await;
    assert_eq!(host.count("plugin refused"), 0);
    let signalled = Instant::now();
    host.signal(Signal::TERM);
    assert!(host.ended().await.success());
    assert!(signalled.elapsed() < IN_TIME, "{:?}", signalled.elapsed());
    db.drop().await;
}

/// From the moment when a host said that it is gone to the last start of a job, by the database's clock.
async fn gap(db: &Db, host: &Host) -> f64 {
    sqlx::query_scalar(
        "select extract(epoch from (select max(started_at) from piecework.job) - lease_until)::float8
         from piecework.runner where id = $1 and state = 'stopped'",
    )
    .bind(host.runner())
    .fetch_one(&db.pool)
    .await
    .unwrap()
}

async fn handed_back(db: &Db, jobs: i64) {
    let back = "select count(*) from piecework.job where state = 'pending' and attempt = 0 and due_at <= now()
        and attempts -> 0 ->> 'failure' = 'handed_back'";
    assert_eq!(db.number(back).await, jobs);
}
