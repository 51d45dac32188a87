//! New settings while a runner works: what they change, what they leave alone, and what is refused as a whole.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use super::support::db::Db;
use super::support::guests::Folder;
use super::support::process::Host;
use super::support::relay::{Link, Relay};
use super::support::server::Server;
use super::support::until;

const SECRET: &str = "sk_live_0001old";
const ROTATED: &str = "sk_live_0002new";

/// Settings that are looked at this often; more lines may follow.
fn every(interval: &str) -> String {
    format!(
        "[database]
call_timeout = '3s'
[runner]
slots = 4
lease = '5s'
beat = '1s'
plugins_interval = '{interval}'
[defaults]
retry_base = '100ms'
"
    )
}

struct Bed {
    db: Db,
    plugins: Folder,
    host: Host,
    base: String,
    reloads: usize,
    refusals: usize,
}

impl Bed {
    async fn new(interval: &str, guests: &[(&str, &str)], settings: &str) -> Self {
        let db = Db::new().await;
        let plugins = Folder::with(guests);
        let base = every(interval);
        let host = Host::start(&db, plugins.path(), &format!("{base}{settings}"));
        host.ready().await;
        Self {
            db,
            plugins,
            host,
            base,
            reloads: 0,
            refusals: 0,
        }
    }

    fn write(&self, settings: &str) {
        let text = format!("{}{settings}", self.base);
        let temporary = self.host.settings().with_extension("new");
        fs::write(&temporary, text).unwrap();
        fs::rename(temporary, self.host.settings()).unwrap();
    }

    /// Waits until the settings that were written hold; returns what changed.
    async fn reloaded(&mut self) -> String {
        self.reloads += 1;
        self.host.reaches("settings reloaded", self.reloads).await;
        let records = self.host.records("settings reloaded");
        records.last().unwrap()["changed"].as_str().unwrap().into()
    }

    /// Waits until they are refused; returns why.
    async fn refused(&mut self) -> String {
        const MESSAGE: &str = "settings refused, all stay as they are";
        self.refusals += 1;
        self.host.reaches(MESSAGE, self.refusals).await;
        let records = self.host.records(MESSAGE);
        records.last().unwrap()["reason"].as_str().unwrap().into()
    }

    /// The result of a job that must succeed.
    async fn result(&self, job_type: &str, payload: &serde_json::Value) -> String {
        let id = self.db.enqueue(job_type, &payload.to_string()).await;
        self.db.becomes(id, "done").await;
        let result = "select result::text from piecework.jobs where id = $1";
        self.db.text(result, id).await.unwrap_or_default()
    }

    async fn timeout_of_probe(&self) -> String {
        let id = self.db.enqueue("probe", r#"{"do": "nap_forever"}"#).await;
        let failure =
            "select attempts -> 0 ->> 'error' from piecework.jobs where id = $1 and attempt > 0";
        until("the job to fail", || self.db.text(failure, id)).await
    }

    async fn end(self) {
        drop(self.host);
        self.db.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_new_limits_and_rules_hold_for_attempts_that_begin_later() {
    let server = Server::plain().await;
    let before =
        "[plugins.probe]\ntimeout = '20s'\n[plugins.mail]\nstarts = 1\nstarts_per = '1h'\n";
    let mut bed = Bed::new("200ms", &[("probe", "probe"), ("mail", "noop")], before).await;
    let mail = [
        bed.db.enqueue("mail", "{}").await,
        bed.db.enqueue("mail", "{}").await,
    ];
    bed.db.becomes(mail[0], "done").await;
    let call = json!({ "do": "http", "url": server.url("/no-content") });
    assert!(bed.result("probe", &call).await.contains("denied"));
    let nap = bed
        .db
        .enqueue("probe", r#"{"do": "nap", "ms": 4000}"#)
        .await;
    bed.db.becomes(nap, "running").await;

    bed.write(&format!(
        "[plugins.probe]\ntimeout = '1s'\nconcurrency = 2\nhttp.allow = [{{ to = \"{}\", private = true }}]\n[plugins.mail]\nstarts = 2\nstarts_per = '1h'\n",
        server.origin()
    ));
    assert_eq!(
        bed.reloaded().await,
        "plugins.mail.starts, plugins.probe.concurrency, plugins.probe.http.allow, plugins.probe.timeout"
    );
    assert_eq!(bed.db.state(nap).await, "running");
    // A limit that was met an hour ahead does not hold any more.
    bed.db.becomes(mail[1], "done").await;
    assert!(bed.result("probe", &call).await.contains("204"));
    let error = bed.timeout_of_probe().await;
    assert!(error.contains("1s") || error.contains("1 s"), "{error}");
    // Its limit was another when it began.
    bed.db.becomes(nap, "done").await;
    let attempts = "select attempt::text from piecework.jobs where id = $1";
    assert_eq!(bed.db.text(attempts, nap).await.as_deref(), Some("1"));

    bed.write("[plugins.probe]\nconcurrency = 1\n");
    bed.reloaded().await;
    let jobs = bed
        .db
        .enqueue_times(4, "probe", r#"{"do": "nap", "ms": 300}"#)
        .await;
    let mut most = 0;
    for id in jobs {
        while bed.db.state(id).await != "done" {
            let now = "select count(*) from piecework.job where state = 'running' and payload ->> 'do' = 'nap'";
            most = bed.db.number(now).await.max(most);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert_eq!(most, 1);
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_a_secret_that_rotates_in_its_file_is_used_next_and_shown_nowhere() {
    let server = Server::plain().await;
    let secrets = Folder::new();
    let file = secrets.path().join("stripe");
    fs::write(&file, SECRET).unwrap();
    let origin = server.origin();
    let settings = format!(
        "[secrets.stripe]\nfile = {file:?}\nhosts = [\"{origin}\"]\n[plugins.probe]\nsecrets = [\"stripe\"]\nhttp.allow = [{{ to = \"{origin}\", private = true }}]\n"
    );
    let mut bed = Bed::new("200ms", &[("probe", "probe")], &settings).await;
    let call = json!({ "do": "secret_http", "secret": "stripe", "place": "header", "url": server.url("/echo") });
    let seen = bed.result("probe", &call).await;
    assert!(seen.contains(SECRET), "the server says what it got: {seen}");

    let temporary = secrets.path().join(".new");
    fs::write(&temporary, ROTATED).unwrap();
    fs::rename(&temporary, &file).unwrap();
    assert_eq!(bed.reloaded().await, "secrets.stripe");
    let seen = bed.result("probe", &call).await;
    assert!(seen.contains(ROTATED) && !seen.contains(SECRET), "{seen}");

    // One that is no secret is refused, and the last one stays.
    fs::write(&file, "sk_live\n0003bad").unwrap();
    let reason = bed.refused().await;
    assert!(
        reason.contains("a control character or a line break"),
        "{reason}"
    );
    assert!(bed.result("probe", &call).await.contains(ROTATED));
    let log = bed.host.log().join("\n");
    for secret in [SECRET, ROTATED, "0003bad"] {
        assert!(!log.contains(secret), "the log shows {secret}");
    }
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_new_settings_are_refused_as_a_whole_and_read_at_once_on_sighup() {
    let before =
        "[plugins.probe]\ntimeout = '3s'\nmemory = '64MiB'\n[plugins.heavy]\nmemory = '64KiB'\n";
    let guests = [("probe", "probe"), ("heavy", "probe")];
    let mut bed = Bed::new("1h", &guests, before).await;
    let heavy = bed.db.enqueue("heavy", r#"{"do": "ok"}"#).await;
    // A good change beside a key that is not known.
    bed.write("[plugins.probe]\ntimeout = '1s'\nmemroy = '1MiB'\n");
    bed.host.signal(Signal::HUP);
    let reason = bed.refused().await;
    assert!(
        reason.contains("line 12: the key `memroy` is not known; did you mean `memory`?"),
        "{reason}"
    );
    // A good change, and one that a plugin does not start with.
    bed.write(
        "[plugins.probe]\ntimeout = '1s'\nmemory = '64KiB'\n[plugins.later]\ntimeout = '2s'\n",
    );
    bed.host.signal(Signal::HUP);
    let reason = bed.refused().await;
    assert!(
        reason.starts_with(
            "the plugin `probe` cannot serve with them: it does not start (out_of_memory)"
        ),
        "{reason}"
    );
    let error = bed.timeout_of_probe().await;
    assert!(error.contains('3'), "{error}");
    // What cannot change is named, the rest holds.
    bed.write("[plugins.probe]\ntimeout = '1s'\nmemory = '64MiB'\n[engine]\ngc = true\n");
    bed.host.signal(Signal::HUP);
    assert_eq!(
        bed.reloaded().await,
        "plugins.heavy.memory, plugins.probe.timeout"
    );
    // What was refused for its limits is tried again.
    bed.db.becomes(heavy, "done").await;
    let said = bed.host.says("some settings change only when").await;
    assert!(said.contains("\"keys\":\"engine.gc\""), "{said}");
    let error = bed.timeout_of_probe().await;
    assert!(error.contains('1') && !error.contains('3'), "{error}");
    // A file that is gone changes nothing.
    fs::remove_file(bed.host.settings()).unwrap();
    bed.host.signal(Signal::HUP);
    bed.host.says("the settings file cannot be read").await;
    bed.result("probe", &json!({ "do": "ok" })).await;
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_fuel_job_types_and_schedules_change_while_it_works() {
    let before = "[schedules.old]\njob_type = 'probe'\nevery = '1h'\n";
    let mut bed = Bed::new("200ms", &[("probe", "probe")], before).await;
    let states = "select string_agg(name || ' ' || state, ', ' order by name) from piecework.schedules where $1 is not null";
    let nobody = bed.db.enqueue("moved", r#"{"do": "ok"}"#).await;
    until("the schedule", || async {
        let states = bed.db.text(states, nobody).await;
        (states.as_deref() == Some("old active")).then_some(())
    })
    .await;

    // A link in the place of the file, as a ConfigMap has it.
    let text = format!(
        "{}[plugins.probe]\nfuel = 1000000\njob_types = ['moved']\n[schedules.new]\njob_type = 'moved'\nevery = '1h'\npayload = {{ do = 'ok' }}\n",
        bed.base
    );
    for (name, text) in [
        ("one", &text),
        ("two", &text.replace("1000000", "900000000")),
    ] {
        let folder = bed.plugins.path().join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("runner.toml"), text).unwrap();
    }
    let data = bed.plugins.path().join("data");
    let swap = |to: &str| {
        let temporary = bed.plugins.path().join("data.new");
        std::os::unix::fs::symlink(to, &temporary).unwrap();
        fs::rename(temporary, &data).unwrap();
    };
    swap("one");
    let link = bed.host.settings().with_extension("link");
    std::os::unix::fs::symlink(data.join("runner.toml"), &link).unwrap();
    fs::rename(link, bed.host.settings()).unwrap();
    let changed = {
        bed.reloads += 1;
        bed.host.reaches("settings reloaded", bed.reloads).await;
        bed.host.records("settings reloaded")[0]["changed"].to_string()
    };
    for key in [
        "plugins.probe.fuel",
        "plugins.probe.job_types",
        "schedules.new.every",
        "schedules.old.every",
    ] {
        assert!(changed.contains(key), "{changed}");
    }
    // What nobody served is served now, and what was served waits.
    bed.db.becomes(nobody, "done").await;
    let waits = bed.db.enqueue("probe", r#"{"do": "ok"}"#).await;
    until("the schedules", || async {
        let states = bed.db.text(states, nobody).await;
        (states.as_deref() == Some("new active, old undeclared")).then_some(())
    })
    .await;
    // Fuel is counted.
    let spin = bed
        .db
        .enqueue("moved", r#"{"do": "spin", "ms": 2000}"#)
        .await;
    let failure = "select attempts -> 0 ->> 'failure' from piecework.jobs where id = $1";
    let failure = until("the job to fail", || bed.db.text(failure, spin)).await;
    assert_eq!(failure, "out_of_fuel");

    swap("two");
    bed.reloads += 1;
    bed.host.reaches("settings reloaded", bed.reloads).await;
    let changed = bed.host.records("settings reloaded")[1]["changed"].to_string();
    assert_eq!(changed, "\"plugins.probe.fuel\"");
    assert_eq!(bed.db.state(waits).await, "pending");
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_thirty_reloads_under_load_fail_no_job() {
    let mut bed = Bed::new("1h", &[("noop", "noop")], "").await;
    let store = bed.db.store.clone();
    let load = tokio::spawn(async move {
        let job = piecework::store::NewJob {
            job_type: "noop".into(),
            payload: "{}".into(),
            ..Default::default()
        };
        for _ in 0.. {
            store.enqueue(&job).await.unwrap();
            tokio::time::sleep(Duration::from_millis(4)).await;
        }
    });
    for n in 1..=30 {
        let fuel = if n % 10 < 5 { 0 } else { 100_000_000 };
        bed.write(&format!(
            "[plugins.noop]\ntimeout = '{n}s'\nfuel = {fuel}\nconcurrency = {}\n",
            1 + n % 3
        ));
        bed.host.signal(Signal::HUP);
        bed.reloaded().await;
    }
    load.abort();
    let _ = load.await;
    bed.db.until(0, "select count(*) from piecework.job").await;
    let done = "select count(*) from piecework.job_history where state = 'done' and attempt = 1";
    let all = bed
        .db
        .number("select count(*) from piecework.job_history")
        .await;
    assert!(all > 300, "{all} jobs");
    assert_eq!(bed.db.number(done).await, all);
    bed.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_connections_outlive_settings_that_are_not_about_them() {
    let server = Server::plain().await;
    let rules = |timeout: &str, more: &str| {
        format!(
            "[defaults.http]\nallow = [{{ to = '{}', private = true }}{more}]\n[plugins.probe]\ntimeout = '{timeout}'\n",
            server.origin()
        )
    };
    let mut bed = Bed::new("1h", &[("probe", "probe")], &rules("3s", "")).await;
    let call = json!({ "do": "http", "url": server.url("/echo") });
    bed.result("probe", &call).await;
    bed.result("probe", &call).await;
    assert_eq!(server.accepted(), 1);
    // Lines above the rules change where messages say that they are, and nothing else.
    bed.write(&format!("# Something new.\n{}", rules("2s", "")));
    bed.host.signal(Signal::HUP);
    assert_eq!(bed.reloaded().await, "plugins.probe.timeout");
    bed.result("probe", &call).await;
    assert_eq!(server.accepted(), 1, "the connection was kept");
    // Another list of rules may be about other connections.
    bed.write(&rules("2s", ", 'https://elsewhere.example'"));
    bed.host.signal(Signal::HUP);
    bed.reloaded().await;
    bed.result("probe", &call).await;
    assert_eq!(server.accepted(), 2);
    bed.end().await;
}

/// An editor or a tool has emptied the file and not yet written it, or never will.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_a_file_that_was_emptied_changes_nothing() {
    let before = "[plugins.probe]\ntimeout = '3s'\n";
    let mut bed = Bed::new("1h", &[("probe", "probe")], before).await;
    for text in ["", " \n\n"] {
        fs::write(bed.host.settings(), text).unwrap();
        bed.host.signal(Signal::HUP);
        let reason = bed.refused().await;
        assert!(reason.contains("is empty"), "{reason}");
    }
    let error = bed.timeout_of_probe().await;
    assert!(error.contains('3'), "{error}");
    bed.write("[plugins.probe]\ntimeout = '1s'\n");
    bed.host.signal(Signal::HUP);
    assert_eq!(bed.reloaded().await, "plugins.probe.timeout");
    bed.end().await;
}

/// A row's deadline is the limit that held when it was claimed: with one that is far too early, a job would be taken from a runner
/// that is well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_a_claim_under_way_goes_by_the_time_limit_that_it_runs_with() {
    let db = Db::new().await;
    let plugins = Folder::with(&[("probe", "probe")]);
    let settings = |timeout: &str| {
        format!(
            "[runner]\npoll = '100ms'\nslots = 4\nplugins_interval = '1h'\n[plugins.probe]\ntimeout = '{timeout}'\n"
        )
    };
    let relay = Relay::to(db.url()).await;
    let host = Host::start_on(relay.url(), plugins.path(), &settings("3s"), &[]);
    host.ready().await;
    // A claim whose answer waits. One that was under way already finds nothing: then once more.
    let id = loop {
        relay.set(Link::Deaf);
        let id = db.enqueue("probe", r#"{"do": "nap", "ms": 1500}"#).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        if db.state(id).await == "running" {
            break id;
        }
        relay.set(Link::Open);
        db.becomes(id, "done").await;
    };
    fs::write(host.settings(), settings("30m")).unwrap();
    host.signal(Signal::HUP);
    host.says("settings reloaded").await;
    relay.set(Link::Open);
    until("the attempt", || async {
        (host.starts(id) > 0).then_some(())
    })
    .await;
    let left = "select extract(epoch from deadline_at - started_at)::bigint::text from piecework.job where id = $1 and state = 'running'";
    let left: i64 = until("the job to run", || db.text(left, id))
        .await
        .parse()
        .unwrap();
    assert!(
        left > 1800,
        "its deadline is {left} s after its start, the limit 30 min"
    );
    db.becomes(id, "done").await;
    let attempt = "select attempt::text from piecework.jobs where id = $1";
    assert_eq!(db.text(attempt, id).await.as_deref(), Some("1"));
    drop(host);
    db.drop().await;
}
