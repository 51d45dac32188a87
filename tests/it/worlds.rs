//! Released worlds stay: a component of each, built once and kept, is run as it was on the day of the release, and nothing of
//! its text is taken away or changed.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use piecework::engine::Shape;
use piecework::job::{Disposition, FailureClass};

use super::support::bed::{Bed, job, ties};

const SETTINGS: &str = "[plugins.guest.config]\ngreeting = 'hello'\nother = '1'\n";

fn golden(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    std::fs::read(folder.join(name)).unwrap()
}

fn text(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

#[tokio::test]
async fn the_component_of_the_first_world_still_gets_all_that_it_asks_for() {
    let bed = Bed::of(&golden("handler-0.1.0.wasm"), SETTINGS);
    let mut job = job(r#""done""#);
    (job.attempt, job.max_attempts) = (2, 3);
    job.ordering_key = Some("order 1".into());
    job.group_key = Some("tenant 2".into());
    job.parent = Some(piecework::job::JobId(4710));
    let ties = ties();
    let outcome = bed
        .engine
        .call(&bed.handler, &bed.grants, &job, &ties)
        .await;
    let told: serde_json::Value = serde_json::from_str(&outcome.verdict.unwrap().unwrap()).unwrap();
    let expected = serde_json::json!({
        "id": "4711", "job_type": "probe", "payload": "\"done\"", "attempt": "2", "max_attempts": "3",
        "idempotency_key": "piecework-4711-0", "ordering_key": "order 1", "group_key": "tenant 2",
        "enqueued_at": job.enqueued_at.to_string(), "due_at": job.due_at.to_string(), "parent": "4710",
        "before": "", "saved": "true", "after": "{\"at\": 1}", "refused": "true",
        "cancelled": "false", "enqueued": "true", "impossible": "true",
        "http": "denied", "setting": "hello", "settings": "2",
    });
    assert_eq!(told, expected);
    let follow_up = serde_json::to_value(&outcome.follow_ups[0]).unwrap();
    assert_eq!(outcome.follow_ups.len(), 1);
    for (key, value) in [
        ("job_type", serde_json::json!("next")),
        ("payload", serde_json::json!({"n": 1})),
        ("priority", serde_json::json!(3)),
        ("max_attempts", serde_json::json!(7)),
        ("unique_key", serde_json::json!("unique")),
        ("ordering_key", serde_json::json!("order")),
        ("group_key", serde_json::json!("group")),
    ] {
        assert_eq!(follow_up[key], value, "{key} of {follow_up}");
    }
    assert_eq!(outcome.progress, Some((40, "almost half".to_owned())));
    let output = outcome.output.unwrap();
    for line in ["at debug", "at info", "at warn", "at error"] {
        assert!(output.contains(line), "{output}");
    }
    for (payload, class, disposition) in [
        (r#""retry""#, FailureClass::GuestRetry, Disposition::Backoff),
        (
            r#""retry-after""#,
            FailureClass::GuestRetry,
            Disposition::After(Duration::from_secs(11)),
        ),
        (
            r#""snooze""#,
            FailureClass::Snoozed,
            Disposition::Refund(Duration::from_secs(22)),
        ),
        (
            r#""discard""#,
            FailureClass::GuestDiscard,
            Disposition::Discard,
        ),
    ] {
        let (found, message, then) = bed.failure(payload).await;
        assert_eq!((found, then), (class, disposition));
        assert_eq!(message, "as the payload says");
    }
}

#[test]
fn the_component_of_the_first_world_uses_every_function_of_it() {
    let shape = Shape::read(&golden("handler-0.1.0.wasm")).unwrap();
    assert_eq!(shape.world().as_deref(), Some("piecework:handler@0.1.0"));
    let world = text("tests/golden/handler-0.1.0/handler.wit");
    let mut functions = 0;
    for (block, members) in blocks(&world) {
        let Some(interface) = block.strip_prefix("interface ") else {
            continue;
        };
        let name = format!("piecework:handler/{interface}@0.1.0");
        let import = shape.imports.iter().find(|item| item.name == name).unwrap();
        let declared = members
            .keys()
            .filter(|member| members[*member].contains(": func("));
        for function in declared {
            assert!(import.functions.contains(function), "{name}: {function}");
            functions += 1;
        }
    }
    assert_eq!(functions, 7);
}

/// The members of each block of a WIT text by name, without comments and with single spaces.
fn blocks(wit: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let code: Vec<_> = wit
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .flat_map(str::split_whitespace)
        .collect();
    let code = code.join(" ");
    let mut found: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let (mut depth, mut heading, mut piece) = (0, String::new(), String::new());
    for c in code.chars() {
        piece.push(c);
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        let whole = piece.trim().to_owned();
        match (c, depth) {
            ('{', 1) => {
                heading = whole.trim_end_matches('{').trim().to_owned();
                piece.clear();
            }
            ('}', 0) => piece.clear(),
            // A member ends, and `record job { ... }` has no semicolon; `use types.{job}` goes on.
            (';', 0 | 1) | ('}', 1) if !(c == '}' && whole.starts_with("use ")) => {
                let body = whole.trim_end_matches(';').trim().to_owned();
                let words = body.split([':', '{']).next().unwrap_or_default();
                let name = words
                    .split_whitespace()
                    .last()
                    .unwrap_or_default()
                    .to_owned();
                let name = if body.starts_with("use ") || body.starts_with("import ") {
                    body.clone()
                } else {
                    name
                };
                if depth == 1 && !whole.is_empty() {
                    found.entry(heading.clone()).or_default().insert(name, body);
                }
                piece.clear();
            }
            _ => {}
        }
    }
    found
}

/// What was taken away from the older text, or changed in it.
fn broken(old: &str, new: &str) -> Vec<String> {
    let new = blocks(new);
    let mut broken = Vec::new();
    for (block, members) in blocks(old) {
        for (name, body) in members {
            let now = new.get(&block).and_then(|members| members.get(&name));
            if now != Some(&body) {
                broken.push(format!("{block}: {name}"));
            }
        }
    }
    broken
}

#[test]
fn nothing_of_a_released_world_is_taken_away_or_changed() {
    for (old, new) in [
        ("tests/golden/handler-0.1.0/handler.wit", "wit/world.wit"),
        (
            "tests/golden/handler-0.1.0/config.wit",
            "wit/deps/config/store.wit",
        ),
    ] {
        assert_eq!(broken(&text(old), &text(new)), [""; 0], "{new}");
    }
    // That the comparison sees what it is for.
    let old = text("tests/golden/handler-0.1.0/handler.wit");
    let found: usize = blocks(&old).values().map(BTreeMap::len).sum();
    assert_eq!(found, 3 + 4 + 4 + 2 + 2 + 7, "{:#?}", blocks(&old));
    for (from, to, breaks) in [
        ("    attempt: u32,\n", "", vec!["interface types: job"]),
        (
            "    discard,\n",
            "    discard,\n    defer,\n",
            vec!["interface types: disposition"],
        ),
        (
            "cancelled: func() -> bool",
            "cancelled: func() -> u8",
            vec!["interface jobs: cancelled"],
        ),
        ("  import log;\n", "", vec!["world handler: import log"]),
        (
            "interface checkpoint {",
            "interface checkpoints {",
            vec!["interface checkpoint: load", "interface checkpoint: save"],
        ),
        (
            "-> result<option<string>, failure>",
            "-> option<string>",
            vec!["world handler: run"],
        ),
        (
            "  cancelled: func() -> bool;\n",
            "  cancelled: func() -> bool;\n  pause: func();\n",
            vec![],
        ),
        ("/// What a handler is given", "/// Other words", vec![]),
    ] {
        let changed = old.replacen(from, to, 1);
        assert_ne!(changed, old, "{from}");
        assert_eq!(broken(&old, &changed), breaks, "{from}");
    }
}

#[tokio::test]
async fn a_component_of_a_later_patch_that_needs_nothing_new_is_served() {
    let later = |version: &str, from: &str, to: &str| {
        // Renamed in its text: the names in the bytes have the same length.
        let mut bytes = golden("handler-0.1.0.wasm");
        let (old, new) = (from.as_bytes(), to.as_bytes());
        assert_eq!(old.len(), new.len());
        let mut renamed = 0;
        for at in 0..bytes.len() - old.len() {
            if &bytes[at..at + old.len()] == old {
                bytes[at..at + old.len()].copy_from_slice(new);
                renamed += 1;
            }
        }
        assert!(renamed > 5, "{version}");
        bytes
    };
    let bytes = later("0.1.7", "@0.1.0", "@0.1.7");
    let shape = Shape::read(&bytes).unwrap();
    assert!(
        shape
            .imports
            .iter()
            .any(|item| item.name == "piecework:handler/jobs@0.1.7")
    );
    let bed = Bed::of(&bytes, SETTINGS);
    let told = bed.answer(r#""done""#).await;
    assert_eq!(told["setting"], "hello");
    let bytes = later("0.2.0", "@0.1.0", "@0.2.0");
    let refused = bed.engine.compile(&bytes, false).unwrap_err();
    assert_eq!(refused.lacks.len(), 5, "{refused}");
    assert!(
        refused
            .to_string()
            .contains("`piecework:handler/http@0.2.0` (offered: 0.1.0)")
    );
}
