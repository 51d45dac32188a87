//! What ends a guest, and what is said of it: each limit and each kind of failure has its own class. No database here.

use std::time::Duration;

use piecework::config::Config;
use piecework::engine::{Engine, StopReason};
use piecework::job::{Disposition, FailureClass};

use super::support::bed::{Bed, ties};

#[tokio::test]
async fn a_stop_from_outside_ends_a_guest_wherever_it_is() {
    let bed = Bed::new("probe");
    for (reason, class) in [
        (StopReason::HandBack, FailureClass::HandedBack),
        (StopReason::LeaseLost, FailureClass::HostLost),
        (StopReason::Cancelled, FailureClass::Cancelled),
    ] {
        for payload in [r#"{"do":"spin"}"#, r#"{"do":"nap_forever"}"#] {
            let ties = ties();
            let stop = ties.stop.clone();
            let stopper = std::thread::spawn(move || {
                std::thread::park_timeout(Duration::from_millis(50));
                stop.now(reason);
            });
            let outcome = bed.call_with(payload, &ties).await;
            assert_eq!(outcome.verdict.unwrap_err().class, class);
            stopper.join().unwrap();
        }
    }
}

#[tokio::test]
async fn a_guest_that_is_asked_to_end_hears_of_it() {
    let bed = Bed::new("probe");
    let ties = ties();
    ties.stop.ask();
    let outcome = bed.call_with(r#"{"do":"wait_cancelled"}"#, &ties).await;
    assert_eq!(
        outcome.verdict.unwrap().as_deref(),
        Some(r#"{"cancelled":true}"#)
    );
}

#[tokio::test]
async fn every_kind_of_failure_has_its_own_class() {
    let bed = Bed::new("probe");
    let hour = Duration::from_secs(3600);
    for (payload, class, text, disposition) in [
        (
            r#"{"do":"boom","text":"order 4711 has no lines"}"#,
            FailureClass::Trap,
            "order 4711 has no lines",
            Disposition::Backoff,
        ),
        (
            r#"{"do":"exit","code":3}"#,
            FailureClass::Trap,
            "exited with code",
            Disposition::Backoff,
        ),
        (
            r#"{"do":"exit","code":0}"#,
            FailureClass::Trap,
            "exited with code 0",
            Disposition::Backoff,
        ),
        (
            r#"{"do":"deep"}"#,
            FailureClass::Trap,
            "call stack exhausted",
            Disposition::Backoff,
        ),
        (
            r#"{"do":"grow","mib":4000}"#,
            FailureClass::OutOfMemory,
            "the limit is 67108864",
            Disposition::Backoff,
        ),
        (
            r#"{"do":"grow","mib":4000,"step_kib":64}"#,
            FailureClass::OutOfMemory,
            "the limit is 67108864",
            Disposition::Backoff,
        ),
        (
            r#"{"do":"fail","text":"later","disposition":"retry"}"#,
            FailureClass::GuestRetry,
            "later",
            Disposition::Backoff,
        ),
        (
            r#"{"do":"fail","text":"x","disposition":"retry-after","seconds":3600}"#,
            FailureClass::GuestRetry,
            "x",
            Disposition::After(hour),
        ),
        (
            r#"{"do":"fail","text":"x","disposition":"snooze","seconds":3600}"#,
            FailureClass::Snoozed,
            "x",
            Disposition::Refund(hour),
        ),
        (
            r#"{"do":"fail","text":"no","disposition":"discard"}"#,
            FailureClass::GuestDiscard,
            "no",
            Disposition::Discard,
        ),
        (
            r#"{"do":"result","text":"not json"}"#,
            FailureClass::BadResult,
            "not JSON",
            Disposition::Discard,
        ),
        (
            r#"{"do":"result","text":"\"\\u0000\""}"#,
            FailureClass::BadResult,
            "U+0000",
            Disposition::Discard,
        ),
    ] {
        let failure = bed.failure(payload).await;
        assert_eq!(
            (failure.0, failure.2),
            (class, disposition),
            "{payload}: {}",
            failure.1
        );
        assert!(failure.1.contains(text), "{payload}: {}", failure.1);
    }
    // A trap names the version of the plugin that trapped.
    assert!(
        bed.failure(r#"{"do":"boom","text":"x"}"#)
            .await
            .1
            .contains(&bed.handler.version())
    );
    // Growth that a guest can live without is not the end of it.
    assert!(
        bed.call(r#"{"do":"try_grow","mib":4000}"#)
            .await
            .verdict
            .unwrap()
            .unwrap()
            .contains("false")
    );
}

#[tokio::test]
async fn a_fuel_budget_ends_a_loop_and_is_counted() {
    let bed = Bed::with("probe", "[defaults]\nfuel = 5000000\n");
    let outcome = bed.call(r#"{"do":"spin"}"#).await;
    assert_eq!(outcome.verdict.unwrap_err().class, FailureClass::OutOfFuel);
    assert_eq!(outcome.usage.fuel, Some(5_000_000));
    let outcome = bed.call(r#"{"do":"ok"}"#).await;
    assert!(
        outcome.verdict.is_ok()
            && outcome
                .usage
                .fuel
                .is_some_and(|fuel| fuel > 0 && fuel < 5_000_000)
    );
}

#[tokio::test]
async fn attempts_share_nothing_and_hold_nothing_of_the_host() {
    let bed = Bed::new("probe");
    let environment = bed.call(r#"{"do":"env"}"#).await.verdict.unwrap().unwrap();
    assert!(
        environment.contains(r#""env":[]"#) && environment.contains(r#""args":[]"#),
        "{environment}"
    );
    assert!(environment.contains("os error 44"), "{environment}");
    let outcome = bed.call(r#"{"do":"grow","mib":8}"#).await;
    assert!(outcome.usage.peak_memory > 8 << 20 && outcome.usage.peak_memory < 64 << 20);
    assert!(
        bed.call(r#"{"do":"ok"}"#).await.usage.peak_memory < 8 << 20,
        "a fresh instance"
    );
}

#[tokio::test]
async fn follow_ups_of_a_failed_attempt_are_dropped() {
    let bed = Bed::new("probe");
    let follow = |then: &str| {
        format!(
            r#"{{"do":"follow","job_type":"next","payload":{{"big":9007199254740993}},"count":3,"delay":60,"then":"{then}"}}"#
        )
    };
    let outcome = bed.call(&follow("ok")).await;
    assert!(outcome.verdict.is_ok());
    assert_eq!(outcome.follow_ups.len(), 3);
    assert_eq!(
        outcome.follow_ups[0].payload.get(),
        r#"{"big":9007199254740993}"#
    );
    for then in ["fail", "discard", "boom"] {
        let outcome = bed.call(&follow(then)).await;
        assert!(
            outcome.verdict.is_err() && outcome.follow_ups.is_empty(),
            "{then}"
        );
    }
    // What the database would refuse is refused when it is asked for.
    for (member, reason) in [
        (r#""priority":7"#, "priority"),
        (r#""unique_key":"""#, "1 to 500 characters"),
        (r#""ordering_key":"""#, "an ordering key has 1 to 500"),
        (r#""due_at":"soon""#, "RFC 3339"),
        (r#""payload_text":"\"\\u0000\"""#, "U+0000"),
        (r#""delay":1,"due_at":"2040-01-01T00:00:00Z""#, "one of"),
    ] {
        let failure = bed
            .failure(&format!(r#"{{"do":"follow","job_type":"next",{member}}}"#))
            .await;
        assert!(failure.1.contains(reason), "{member}: {}", failure.1);
    }
    let failure = bed
        .failure(r#"{"do":"follow","job_type":"next","count":10001}"#)
        .await;
    assert!(failure.1.contains("at most 10000"), "{}", failure.1);
}

#[tokio::test]
async fn without_a_pool_attempts_run_all_the_same() {
    let bed = Bed::with("probe", "[engine]\npooling = false\n");
    assert!(bed.call(r#"{"do":"ok"}"#).await.verdict.is_ok());
}

#[test]
fn o_33_what_is_no_component_for_this_world_is_refused_with_a_reason() {
    let engine = Engine::new(&Config::default(), 1).unwrap();
    for (bytes, reason) in [
        (b"".as_slice(), "the file is empty"),
        (
            b"\0asm\x01\0\0\0",
            "it is a core module (version bytes 01 00 00 00), not a component; build for the target wasm32-wasip2",
        ),
        (
            b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0",
            "it is a native program (ELF)",
        ),
        (
            b"hello",
            "it is text, not WebAssembly; it begins with `hello`",
        ),
        (b"\0asm\x0d\0\x01\0", "it has no `run`: it exports nothing"),
    ] {
        let refusal = engine
            .compile(bytes, false)
            .map(drop)
            .unwrap_err()
            .to_string();
        assert!(refusal.contains(reason), "{refusal}");
    }
}
