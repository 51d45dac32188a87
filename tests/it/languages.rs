//! One behaviour in every language: handlers that `scripts/languages.sh` built, as jobs of one host.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use piecework::job::JobId;
use piecework::store::NewJob;
use serde_json::{Value, json};

use super::support::bed::{Bed, job, ties};
use super::support::db::Db;
use super::support::guests::Folder;
use super::support::process::Host;
use super::support::server::Server;
use super::support::until;

/// In the order of the table; the first two are built wherever the tests run.
const LANGUAGES: [&str; 7] = [
    "rust",
    "c",
    "zig",
    "go",
    "javascript",
    "typescript",
    "python",
];

/// Those that are built here, with their bytes. Says why another is not.
fn built() -> Vec<(&'static str, Vec<u8>)> {
    let mut found = Vec::new();
    for language in LANGUAGES {
        let place = |end: &str| place(&format!("{language}.{end}"));
        if let Ok(bytes) = fs::read(place("wasm")) {
            found.push((language, bytes));
            continue;
        }
        let reason = fs::read_to_string(place("skipped"));
        let required = ["rust", "c"].contains(&language);
        match reason {
            Ok(reason) if !required => eprintln!("skipped: {language}: {}", reason.trim()),
            _ => panic!("the handler in {language} is not built: run scripts/languages.sh"),
        }
    }
    found
}

fn place(name: &str) -> PathBuf {
    // Beside the folder for temporary files.
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    target.parent().unwrap().join("languages").join(name)
}

/// A job in one language, and what must become of it.
struct Case {
    language: &'static str,
    what: &'static str,
    payload: Value,
    max_attempts: i32,
    /// The state that it comes to, and the class of its failure where it is one of these.
    state: &'static str,
    failures: &'static [&'static str],
    /// What its error, or the result, has in it.
    says: &'static str,
}

fn cases(language: &'static str, origin: &str) -> Vec<Case> {
    let case = |what, state, failures, says| Case {
        language,
        what,
        payload: json!({ "do": what }),
        max_attempts: 1,
        state,
        failures,
        says,
    };
    let work = |more: Value| {
        let mut payload = json!({ "do": "work" });
        payload
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        payload
    };
    vec![
        Case {
            what: "parse and call",
            payload: work(
                json!({ "text": "straße \"x\" \u{1F600}", "url": format!("{origin}/echo"), "next": "nowhere" }),
            ),
            ..case("work", "done", &[], "STRAßE \\\"X\\\" \u{1F600}")
        },
        Case {
            what: "a body that is no text",
            payload: work(json!({ "text": "x", "url": format!("{origin}/latin") })),
            ..case("work", "done", &[], "caf\u{fffd}")
        },
        Case {
            what: "a payload without its member",
            payload: work(json!({ "txet": "typo" })),
            ..case("work", "failed", &["guest_discard"], "text")
        },
        Case {
            max_attempts: 3,
            ..case("checkpoint", "done", &[], "für später")
        },
        case("retry", "failed", &["guest_retry"], "asked to retry"),
        Case {
            max_attempts: 3,
            ..case("retry-after", "pending", &[], "asked to wait")
        },
        Case {
            max_attempts: 3,
            ..case("snooze", "pending", &[], "")
        },
        Case {
            max_attempts: 3,
            ..case("discard", "failed", &["guest_discard"], "asked to discard")
        },
        case("error", "failed", &["guest_retry"], "an ordinary error"),
        // O-39: what it said as it died is what the operator reads.
        case(
            "panic",
            "failed",
            &["guest_retry", "trap"],
            "asked to panic",
        ),
        case("loop", "failed", &["timeout", "cpu_limit"], ""),
        // A language's own exception may come first; the host says what it was.
        case("allocate", "failed", &["out_of_memory"], "memory"),
        case("random", "done", &[], ""),
        Case {
            what: "random again",
            ..case("random", "done", &[], "")
        },
        case("dance", "failed", &["guest_discard"], "dance"),
    ]
}

/// O-33, O-39: the same answers to the same questions, whatever a handler is written in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_handlers_of_all_languages_behave_alike() {
    let built = built();
    let db = Db::new().await;
    let server = Server::plain().await;
    let plugins = Folder::new();
    for (language, bytes) in &built {
        plugins.put(language, bytes);
    }
    let token = plugins.path().join("token");
    fs::write(&token, "hush\n").unwrap();
    let origin = server.origin();
    let mut settings = format!(
        "[runner]\nslots = 4\n[defaults]\ntimeout = '10s'\ncpu = '3s'\nretry_base = '50ms'\n[defaults.http]\n\
         allow = [{{ to = '{origin}', private = true }}]\n[secrets.token]\nfile = {token:?}\nhosts = ['{origin}']\n"
    );
    for (language, _) in &built {
        writeln!(settings, "[plugins.{language}]\nsecrets = ['token']").unwrap();
    }
    let host = Host::start(&db, plugins.path(), &settings);
    for (language, _) in &built {
        until("the plugins", || async {
            let loaded = host.records("plugin loaded");
            loaded
                .iter()
                .any(|plugin| plugin["plugin"] == *language)
                .then_some(())
        })
        .await;
    }
    let cases: Vec<_> = built
        .iter()
        .flat_map(|(language, _)| cases(language, &origin))
        .collect();
    let mut jobs = Vec::new();
    for case in &cases {
        let job = NewJob {
            job_type: case.language.into(),
            payload: case.payload.to_string(),
            max_attempts: Some(case.max_attempts),
            ..NewJob::default()
        };
        jobs.push(db.store.enqueue(&job).await.unwrap());
    }
    let mut wrong = Vec::new();
    for (case, id) in cases.iter().zip(&jobs) {
        let seen = settled(&db, *id, case.state).await;
        for reason in faults(case, *id, &seen) {
            wrong.push(format!(
                "{}, {}: {reason}: {seen}",
                case.language, case.what
            ));
        }
    }
    // Snapshots freeze the state of a generator: two jobs must not get the same numbers.
    for (language, _) in &built {
        let ids: Vec<_> = cases
            .iter()
            .zip(&jobs)
            .filter(|(case, _)| case.language == *language && case.payload["do"] == "random")
            .map(|(_, id)| *id)
            .collect();
        let mut drawn = Vec::new();
        for id in ids {
            drawn.push(settled(&db, id, "done").await["result"]["random"].clone());
        }
        if drawn.len() != 2 || drawn[0] == drawn[1] || drawn[0].is_null() {
            wrong.push(format!("{language}: drew {drawn:?} in two jobs"));
        }
    }
    let next = "select count(*) from piecework.jobs where job_type = 'nowhere' and state = 'pending' and parent is not null \
                and due_at > enqueued_at + interval '4 s' and payload ->> 'text' = 'STRAßE \"X\" \u{1F600}' and unique_key = 'after-' || parent";
    let followed = db.number(next).await;
    if followed != i64::try_from(built.len()).unwrap() {
        wrong.push(format!("{followed} follow-ups of {}", built.len()));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    drop(host);
    db.drop().await;
}

/// What `piecework new` lays out, built as it is: its first job, its follow-up, and a page that is not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_a_new_project_in_each_language_does_its_first_job() {
    let built = built();
    let db = Db::new().await;
    let server = Server::plain().await;
    let plugins = Folder::new();
    for (language, _) in &built {
        let name = format!("watch-{language}");
        plugins.put(&name, &fs::read(place(&format!("{name}.wasm"))).unwrap());
    }
    let settings = format!(
        "[runner]\nslots = 4\n[defaults.http]\nallow = [{{ to = '{}', private = true }}]\n",
        server.origin()
    );
    let host = Host::start(&db, plugins.path(), &settings);
    for (language, _) in &built {
        let job_type = format!("watch-{language}");
        let job = |path: &str| json!({ "url": server.url(path), "times": 2 }).to_string();
        let good = db.enqueue(&job_type, &job("/fill?7")).await;
        // A type that a host is still compiling waits; so do the others of the queue for none of it.
        let seen = settled(&db, good, "done").await;
        assert_eq!(
            seen["result"],
            json!({ "status": 200, "bytes": 7, "left": 1 }),
            "{language}: {seen}"
        );
        let missing = db
            .enqueue(&job_type, r#"{"url": "http://127.0.0.2:9/"}"#)
            .await;
        until("the denied call", || async {
            let error = db
                .text(
                    "select last_error from piecework.jobs where id = $1",
                    missing,
                )
                .await;
            error.filter(|error| error.contains("is not allowed"))
        })
        .await;
    }
    let next = "select count(*) from piecework.jobs where job_type like 'watch-%' and state = 'pending' and parent is not null \
                and (payload ->> 'times')::int = 1 and due_at > enqueued_at + interval '55 s'";
    assert_eq!(db.number(next).await, i64::try_from(built.len()).unwrap());
    drop(host);
    db.drop().await;
}

/// The job as the view shows it, once it has come to this state, or ended in another.
async fn settled(db: &Db, id: JobId, state: &str) -> Value {
    until("the end of a job", || async {
        let row = db
            .text(
                "select to_jsonb(j)::text from piecework.jobs j where id = $1",
                id,
            )
            .await?;
        let row: Value = serde_json::from_str(&row).unwrap();
        let now = row["state"].as_str().unwrap();
        let waits = state == "pending" && row["started_at"].is_null() && !row["attempts"].is_null();
        (now == "done" || now == "failed" || now == "cancelled" || waits).then_some(row)
    })
    .await
}

/// What is not as it should be.
fn faults(case: &Case, id: JobId, seen: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    let mut must = |right: bool, what: &str| {
        if !right {
            faults.push(what.to_owned());
        }
    };
    must(seen["state"] == case.state, "another state");
    if case.state == "failed" {
        let failure = seen["failure"].as_str().unwrap_or_default();
        must(case.failures.contains(&failure), "another failure");
        let error = seen["last_error"].as_str().unwrap_or_default();
        must(error.contains(case.says), "another error");
    }
    // Others that compute to their limit may hold an attempt up.
    let due = seconds(&seen["due_at"]) - seconds(&seen["enqueued_at"]);
    let result = &seen["result"];
    match case.what {
        "parse and call" => {
            must(result["language"] == case.language, "another language");
            must(result["text"] == "STRAßE \"X\" \u{1F600}", "another text");
            must(result["status"] == 200, "another status");
            let body = result["body"].as_str().unwrap_or_default();
            let echo: Value = serde_json::from_str(body).unwrap_or_default();
            let sent = |name: &str| {
                let headers = echo["headers"].as_array()?;
                let found = headers.iter().find(|header| header[0] == name)?;
                found[1].as_str()
            };
            must(echo["method"] == "GET", "another method");
            must(sent("accept") == Some("text/plain"), "another header");
            // The host has put the secret in.
            must(sent("authorization") == Some("Bearer hush"), "no secret");
            let output = seen["output"].as_str().unwrap_or_default();
            must(output.contains("attempt 1 of 1"), "another output");
            must(
                seen["progress"].to_string().contains("parsed"),
                "no progress",
            );
            must(seen["http_calls"] == 1, "another number of calls");
        }
        "a body that is no text" => must(result["body"] == case.says, "another body"),
        "checkpoint" => {
            must(seen["attempt"] == 2, "another attempt");
            must(result["resumed"] == 1, "another checkpoint");
            must(result["note"] == case.says, "another note");
            let first = &seen["attempts"][0];
            must(first["failure"] == "guest_retry", "another first failure");
            must(
                first["error"]
                    .as_str()
                    .unwrap_or_default()
                    .contains("half way"),
                "another first error",
            );
        }
        "retry-after" => {
            must((55.0..200.0).contains(&due), "another time");
            must(
                seen["last_error"]
                    .as_str()
                    .unwrap_or_default()
                    .contains(case.says),
                "another error",
            );
        }
        "snooze" => must((25.0..170.0).contains(&due), "another time"),
        "random" | "random again" => must(!result["random"].is_null(), "no number"),
        _ => {}
    }
    if case.state == "failed" {
        must(seen["id"] == id.0, "another job");
    }
    faults
}

fn seconds(time: &Value) -> f64 {
    let time = time.as_str().unwrap_or_default().parse::<jiff::Timestamp>();
    time.map_or(f64::NAN, |time| time.as_duration().as_secs_f64())
}

/// The heading of the table, and what it must have under it.
const HEAD: &str =
    "| language | component | cold compile | a call | memory of a call |\n|---|---|---|---|---|\n";

/// Made anew with `PIECEWORK_BLESS=1`: the figures are of one machine and one day, so only the rows are compared.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_of_languages_has_a_row_for_each() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/languages.md");
    let text = fs::read_to_string(&page).unwrap();
    let (before, rest) = text
        .split_once(HEAD)
        .expect("docs/languages.md has the table");
    let rows: Vec<_> = rest
        .lines()
        .take_while(|line| line.starts_with('|'))
        .collect();
    if std::env::var_os("PIECEWORK_BLESS").is_none() {
        let named: Vec<_> = rows
            .iter()
            .filter_map(|row| row.split('|').nth(1))
            .map(str::trim)
            .collect();
        assert_eq!(named, LANGUAGES);
        return;
    }
    let built = built();
    assert_eq!(built.len(), LANGUAGES.len(), "build all languages first");
    let mut table = String::new();
    for (language, bytes) in &built {
        writeln!(table, "{}", measured(language, bytes).await).unwrap();
    }
    let after = rest.lines().skip(rows.len()).collect::<Vec<_>>().join("\n");
    fs::write(&page, format!("{before}{HEAD}{table}{after}\n")).unwrap();
}

/// A row of the table: medians of 51 calls, each in a fresh instance.
async fn measured(language: &str, bytes: &[u8]) -> String {
    let cache = Folder::new();
    let settings = format!(
        "[engine]\ncache = {:?}\n[defaults]\ntimeout = '20s'\n",
        cache.path().join("compiled")
    );
    let begun = Instant::now();
    let bed = Bed::of(bytes, &settings);
    let cold = begun.elapsed();
    let mut job = job(r#"{"do": "work", "text": "some text"}"#);
    job.job_type = language.into();
    let (mut times, mut memory) = (Vec::new(), 0);
    for _ in 0..51 {
        let outcome = bed
            .engine
            .call(&bed.handler, &bed.grants, &job, &ties())
            .await;
        outcome.verdict.expect(language);
        times.push(outcome.usage.run);
        memory = memory.max(outcome.usage.peak_memory);
    }
    times.sort();
    format!(
        "| {language} | {} | {} | {} | {:.1} MiB |",
        size(bytes.len()),
        duration(cold),
        duration(times[25]),
        memory as f64 / 1_048_576.0
    )
}

fn size(bytes: usize) -> String {
    if bytes < 1_000_000 {
        format!("{} kB", bytes.div_ceil(1000))
    } else {
        format!("{:.1} MB", bytes as f64 / 1e6)
    }
}

fn duration(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1000.0;
    if ms < 10.0 {
        format!("{ms:.2} ms")
    } else if ms < 1000.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{:.1} s", ms / 1000.0)
    }
}
