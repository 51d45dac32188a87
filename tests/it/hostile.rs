//! Guests that mean harm, each a small component or a command of the probe: what ends them, what is said of it, and that
//! nothing of them is left. No database here.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use piecework::config::Config;
use piecework::engine::Engine;
use piecework::job::FailureClass;
use serde_json::json;

use super::support::bed::Bed;
use super::support::guests;

const TIMEOUT: Duration = Duration::from_millis(300);

/// A server that the kernel accepts for and that never says anything, and the settings that allow it.
fn silent() -> (TcpListener, String, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let settings = format!(
        "[plugins.guest.http]\nallow = [{{ to = \"{url}\", private = true }}]\nfirst_byte_timeout = \"1h\"\ntimeout = \"1h\"\n"
    );
    (listener, url, settings)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o_37_guests_that_never_end_are_ended_by_the_clock() {
    let (_listener, url, settings) = silent();
    let probe = Bed::with("probe", &settings).timeout(TIMEOUT);
    let client = Bed::with("client", &settings).timeout(TIMEOUT);
    let start = Bed::new("start_loop").timeout(TIMEOUT);
    let http = format!(r#"{{"do":"http","url":"{url}/"}}"#);
    let wasi = format!(r#"{{"do":"wasi_http","url":"{url}/"}}"#);
    let open = format!(r#"{{"do":"open_many","url":"{url}/","count":500,"hold":true}}"#);
    for (bed, payload) in [
        (&probe, r#"{"do":"spin"}"#),
        (&probe, r#"{"do":"nap_forever"}"#),
        (&probe, r#"{"do":"nap_loop"}"#),
        (&probe, r#"{"do":"poll_many"}"#),
        (&probe, r#"{"do":"bulk"}"#),
        (&probe, http.as_str()),
        (&client, wasi.as_str()),
        (&client, open.as_str()),
        (&start, "{}"),
    ] {
        // Two of them, and a neighbour that finishes undisturbed.
        let (one, two, neighbour) = tokio::join!(
            bed.call(payload),
            bed.call(payload),
            probe.call(r#"{"do":"ok"}"#)
        );
        assert!(neighbour.verdict.is_ok(), "the neighbour of {payload}");
        for outcome in [one, two] {
            let failure = outcome.verdict.unwrap_err();
            assert_eq!(
                failure.class,
                FailureClass::Timeout,
                "{payload}: {}",
                failure.message
            );
            let run = outcome.usage.run;
            // The case's own tolerance.
            assert!(
                run >= TIMEOUT && run < TIMEOUT + Duration::from_millis(500),
                "{payload}: {run:?}"
            );
        }
    }
    // Nothing to read is the end of the input, not a wait.
    assert_eq!(
        probe.answer(r#"{"do":"stdin"}"#).await,
        json!({ "bytes": 0 })
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn computing_has_a_limit_of_its_own() {
    let bed = Bed::with("probe", "[defaults]\ntimeout = \"20s\"\ncpu = \"200ms\"\n");
    let begun = Instant::now();
    let outcome = bed.call(r#"{"do":"spin"}"#).await;
    let failure = outcome.verdict.unwrap_err();
    assert_eq!(failure.class, FailureClass::CpuLimit, "{}", failure.message);
    assert!(failure.message.contains("computing time of 200ms"));
    assert!(outcome.usage.cpu >= Duration::from_millis(200));
    assert!(begun.elapsed() < Duration::from_secs(10));
    // Waiting costs none of it.
    let outcome = bed.call(r#"{"do":"nap","ms":400}"#).await;
    assert!(outcome.verdict.is_ok());
    assert!(
        outcome.usage.cpu < Duration::from_millis(200)
            && outcome.usage.run > Duration::from_millis(400)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o_38_guests_that_take_too_much_are_refused_it() {
    let probe = Bed::new("probe");
    for (payload, class, text) in [
        (
            r#"{"do":"grow","mib":4000}"#,
            FailureClass::OutOfMemory,
            "the limit is 67108864",
        ),
        (
            r#"{"do":"grow","mib":4000,"step_kib":64}"#,
            FailureClass::OutOfMemory,
            "the limit is 67108864",
        ),
        (
            r#"{"do":"deep"}"#,
            FailureClass::Trap,
            "call stack exhausted",
        ),
        (
            r#"{"do":"return_huge","mib":8}"#,
            FailureClass::BadResult,
            "the limit is 1048576",
        ),
        (
            r#"{"do":"return_huge","mib":20}"#,
            FailureClass::Trap,
            "too much data is being copied",
        ),
        (
            r#"{"do":"pass_huge","mib":20,"to":"log"}"#,
            FailureClass::Trap,
            "too much data is being copied",
        ),
        (
            r#"{"do":"pass_list","count":1500000}"#,
            FailureClass::Trap,
            "too much data is being copied",
        ),
        (
            r#"{"do":"handles"}"#,
            FailureClass::Trap,
            "more than 1000 handles",
        ),
        (
            r#"{"do":"random","kib":65}"#,
            FailureClass::Trap,
            "exceeds limit",
        ),
    ] {
        let failure = probe.failure(payload).await;
        assert_eq!(failure.0, class, "{payload}: {}", failure.1);
        assert!(failure.1.contains(text), "{payload}: {}", failure.1);
    }
    let client = Bed::new("client");
    let failure = client
        .failure(r#"{"do":"open_many","url":"http://127.0.0.1:9/","count":10000}"#)
        .await;
    assert_eq!(failure.0, FailureClass::Trap, "{}", failure.1);
    assert!(
        failure.1.contains("more than 1000 handles"),
        "{}",
        failure.1
    );
    let small = Bed::with("probe", "[engine]\nstack = \"128KiB\"\n");
    let failure = small.failure(r#"{"do":"deep"}"#).await;
    assert!(failure.1.contains("call stack exhausted"), "{}", failure.1);
    let table = Bed::of(&guests::text("table_growth"), "");
    let failure = table.failure("{}").await;
    assert_eq!(failure.0, FailureClass::Trap, "{}", failure.1);
    assert!(
        failure.1.contains("a table of") && failure.1.contains("the limit is 20000"),
        "{}",
        failure.1
    );
    let start = Bed::of(&guests::text("big_start_memory"), "");
    let failure = start.failure("{}").await;
    assert_eq!(failure.0, FailureClass::OutOfMemory, "{}", failure.1);
}

#[tokio::test]
async fn o_38_fifty_memories_are_refused_before_the_first_job_or_ended_by_the_limit() {
    let bytes = guests::text("many_memories");
    let engine = Engine::new(&Config::default(), 1).unwrap();
    let refusal = engine.compile(&bytes, false).unwrap_err().to_string();
    assert!(refusal.contains("50"), "{refusal}");
    // Without a pool only the limiter stands in the way.
    let bed = Bed::of(&bytes, "[engine]\npooling = false\n");
    let failure = bed.failure("{}").await;
    assert!(
        matches!(failure.0, FailureClass::Trap | FailureClass::OutOfMemory),
        "{}",
        failure.1
    );
    assert!(failure.1.contains("memory count"), "{}", failure.1);
}

#[tokio::test]
async fn what_is_merely_too_long_is_cut_or_refused_and_the_guest_goes_on() {
    let bed = Bed::new("probe");
    for place in ["stdout", "stderr", "log"] {
        let outcome = bed
            .call(&format!(
                r#"{{"do":"shout","where":"{place}","kib":10240}}"#
            ))
            .await;
        assert!(outcome.verdict.is_ok(), "{place}: {:?}", outcome.verdict);
        let output = outcome.output.unwrap();
        assert!(
            output.len() < 70_000 && output.contains("bytes cut]"),
            "{place}: {} bytes",
            output.len()
        );
    }
    let outcome = bed.call(r#"{"do":"log_line","mib":8}"#).await;
    assert!(outcome.verdict.is_ok());
    assert!(outcome.output.unwrap().len() < 70_000);
    let outcome = bed
        .call(r#"{"do":"pass_huge","mib":8,"to":"progress"}"#)
        .await;
    assert!(outcome.verdict.is_ok());
    let (_, message) = outcome.progress.unwrap();
    assert!(message.len() <= 4096 && message.ends_with("[cut]"));
    for to in ["enqueue", "checkpoint", "http_body"] {
        let answer = bed
            .answer(&format!(r#"{{"do":"pass_huge","mib":9,"to":"{to}"}}"#))
            .await;
        assert!(answer["error"].is_string(), "{to}: {answer}");
    }
    // Growth that a guest can live without is not the end of it.
    assert_eq!(
        bed.answer(r#"{"do":"try_grow","mib":4000}"#).await,
        json!({ "grown": false })
    );
}

#[tokio::test]
async fn limits_are_a_plugins_own() {
    let settings = "
        [plugins.guest]
        memory = \"8MiB\"
        result = \"1KiB\"
        error_text = \"300B\"
        progress = \"300B\"
        output = \"2KiB\"
        follow_ups = 2
        handles = 100
        random = \"1KiB\"
        host_call = \"128KiB\"
    ";
    let bed = Bed::with("probe", settings);
    for (payload, class, text) in [
        (
            r#"{"do":"grow","mib":9}"#,
            FailureClass::OutOfMemory,
            "8388608",
        ),
        (
            r#"{"do":"return_huge","mib":1}"#,
            FailureClass::Trap,
            "too much data",
        ),
        (
            r#"{"do":"handles","count":200}"#,
            FailureClass::Trap,
            "more than 100 handles",
        ),
        (r#"{"do":"random","kib":2}"#, FailureClass::Trap, "1024"),
        (
            r#"{"do":"follow","job_type":"next","count":3}"#,
            FailureClass::GuestDiscard,
            "at most 2 jobs",
        ),
    ] {
        let failure = bed.failure(payload).await;
        assert_eq!(failure.0, class, "{payload}: {}", failure.1);
        assert!(failure.1.contains(text), "{payload}: {}", failure.1);
    }
    let long = "x".repeat(2000);
    let failure = bed
        .failure(&json!({ "do": "fail", "text": long, "disposition": "retry" }).to_string())
        .await;
    assert!(failure.1.len() <= 300 && failure.1.ends_with("[cut]"));
    let failure = bed
        .failure(&json!({ "do": "result", "text": format!("\"{long}\"") }).to_string())
        .await;
    assert_eq!(failure.0, FailureClass::BadResult);
    let outcome = bed
        .call(r#"{"do":"shout","where":"stdout","kib":100}"#)
        .await;
    assert!(outcome.output.unwrap().len() < 2100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_attempts_together_have_a_limit_of_memory_that_is_no_handlers_fault() {
    let bed = Bed::with(
        "probe",
        "[engine]\nmemory = \"40MiB\"\n[defaults]\nmemory = \"40MiB\"\n",
    );
    let one = r#"{"do":"grow","mib":30}"#;
    // One after another they all fit.
    for _ in 0..3 {
        assert!(bed.call(one).await.verdict.is_ok());
    }
    let hold = r#"{"do":"grow","mib":30,"step_kib":1024}"#;
    let mut refused = 0;
    for _ in 0..10 {
        let both = tokio::join!(bed.call(hold), bed.call(hold), bed.call(hold));
        for outcome in [both.0, both.1, both.2] {
            if let Err(failure) = outcome.verdict {
                assert_eq!(
                    failure.class,
                    FailureClass::HostError,
                    "{}",
                    failure.message
                );
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "three at once need 90 MiB");
    assert!(
        bed.call(one).await.verdict.is_ok(),
        "and all of it comes back"
    );
}

/// What a guest makes the host hold counts too, although it is no memory of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o_38_a_guest_without_rights_cannot_fill_the_hosts_memory() {
    if std::env::var_os("NEXTEST").is_none() {
        eprintln!(
            "skipped: it looks at the memory of the process, so it must have one to itself (cargo nextest)"
        );
        return;
    }
    let bed = Bed::new("client");
    // Compiled, warmed up, and every kind of thing made once.
    bed.call(r#"{"do":"hoard","count":10}"#).await;
    let before = Left::now();
    let hoard = r#"{"do":"hoard","count":100000}"#;
    let refuse = r#"{"do":"open_many","url":"http://127.0.0.1:9/","count":20000}"#;
    for payload in [hoard, refuse] {
        let outcome = bed.call(payload).await;
        let after = Left::now();
        // The guest's own memory is counted by its limit; the bound of the case is 16 MiB beside it.
        let own = usize::try_from(outcome.usage.peak_memory >> 20).unwrap();
        assert!(
            after.resident_mib <= before.resident_mib + own + 24,
            "{payload}: {before:?}, then {after:?}, {own} MiB of it the guest's"
        );
    }
    // The log too.
    let probe = Bed::new("probe");
    let outcome = probe
        .call(r#"{"do":"shout","where":"log","kib":100000}"#)
        .await;
    assert!(outcome.verdict.is_ok());
    assert!(Left::now().resident_mib <= before.resident_mib + 64);
}

/// O-37 and O-38: nothing of a guest outlives it. Counts what belongs to the whole process, so it must be alone in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_hundred_rounds_of_each_hostile_guest_nothing_is_left() {
    if std::env::var_os("NEXTEST").is_none() {
        eprintln!(
            "skipped: it counts threads and sockets, so it must have a process to itself (cargo nextest)"
        );
        return;
    }
    let (_listener, url, settings) = silent();
    let short = Duration::from_millis(20);
    let probe = Bed::with("probe", &settings).timeout(short);
    let client = Bed::with("client", &settings).timeout(short);
    let start = Bed::new("start_loop").timeout(short);
    let table = Bed::of(&guests::text("table_growth"), "").timeout(short);
    let big = Bed::of(&guests::text("big_start_memory"), "").timeout(short);
    let many = Bed::of(
        &guests::text("many_memories"),
        "[engine]\npooling = false\n",
    )
    .timeout(short);
    let commands = [
        r#"{"do":"spin"}"#,
        r#"{"do":"nap_forever"}"#,
        r#"{"do":"nap_loop"}"#,
        r#"{"do":"poll_many"}"#,
        r#"{"do":"stdin"}"#,
        r#"{"do":"grow","mib":4000}"#,
        r#"{"do":"grow","mib":4000,"step_kib":64}"#,
        r#"{"do":"deep"}"#,
        r#"{"do":"bulk"}"#,
        r#"{"do":"return_huge","mib":20}"#,
        r#"{"do":"pass_huge","mib":20,"to":"log"}"#,
        r#"{"do":"pass_list","count":1500000}"#,
        r#"{"do":"shout","where":"stdout","kib":10240}"#,
        r#"{"do":"shout","where":"stderr","kib":10240}"#,
        r#"{"do":"shout","where":"log","kib":10240}"#,
        r#"{"do":"log_line","mib":8}"#,
        r#"{"do":"boom","text":"order 4711 has no lines"}"#,
        r#"{"do":"exit","code":3}"#,
        r#"{"do":"follow","job_type":"next","count":10000}"#,
        r#"{"do":"handles"}"#,
        r#"{"do":"handles","count":900}"#,
    ];
    let http = format!(r#"{{"do":"http","url":"{url}/"}}"#);
    let open = format!(r#"{{"do":"open_many","url":"{url}/","count":10000,"hold":true}}"#);
    let wasi = format!(r#"{{"do":"wasi_http","url":"{url}/","concurrent":20}}"#);
    let mut guests: Vec<(&Bed, &str)> = commands.map(|command| (&probe, command)).to_vec();
    guests.extend([
        (&probe, http.as_str()),
        (&client, open.as_str()),
        (&client, wasi.as_str()),
        (&start, "{}"),
        (&table, "{}"),
        (&big, "{}"),
        (&many, "{}"),
    ]);
    // The first rounds warm up what is kept on purpose: pooled memories, threads of the runtimes, buffers.
    for (bed, payload) in &guests {
        rounds(bed, payload, 3).await;
    }
    let before = Left::now();
    for (bed, payload) in &guests {
        rounds(bed, payload, 25).await;
        let left = settled(&before).await;
        assert!(
            left.threads <= before.threads && left.files <= before.files,
            "{payload}: {before:?}, then {left:?}"
        );
        // The allocator keeps what it has been given: a tenth of what the rounds took is not a leak of any of them.
        assert!(
            left.resident_mib <= before.resident_mib + 64,
            "{payload}: {before:?}, then {left:?}"
        );
    }
    assert!(
        probe
            .timeout(Duration::from_secs(20))
            .call(r#"{"do":"ok"}"#)
            .await
            .verdict
            .is_ok()
    );
}

/// Four at once.
async fn rounds(bed: &Bed, payload: &str, times: usize) {
    for _ in 0..times {
        tokio::join!(
            bed.call(payload),
            bed.call(payload),
            bed.call(payload),
            bed.call(payload)
        );
    }
}

/// What a process holds.
#[derive(Debug)]
struct Left {
    threads: usize,
    files: usize,
    resident_mib: usize,
}

impl Left {
    fn now() -> Self {
        let count = |folder: &str| std::fs::read_dir(folder).unwrap().count();
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = pages.split(' ').nth(1).unwrap().parse().unwrap();
        Self {
            threads: count("/proc/self/task"),
            files: count("/proc/self/fd"),
            resident_mib: pages * 4096 / (1 << 20),
        }
    }
}

/// Sockets close, and threads that wait for more work end, a moment after the call.
async fn settled(before: &Left) -> Left {
    let mut left = Left::now();
    for _ in 0..100 {
        if left.threads <= before.threads && left.files <= before.files {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        left = Left::now();
    }
    left
}
