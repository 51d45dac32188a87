//! `piecework componentize`: core modules become components that serve, or it is said why not.

use std::fs;

use piecework::componentize::componentize;
use piecework::job::FailureClass;

use super::support::bed::Bed;
use super::support::guests::Folder;
use super::support::process::command;

/// A module around the body of `run`, which gets the address of the job; `result` leaves a result of this text at 64.
fn module(imports: &str, run: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
          {imports}
          (memory (export "memory") 1)
          (global $free (mut i32) (i32.const 4096))
          (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
            (local $at i32)
            (local.set $at (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
            (global.set $free (i32.add (local.get $at) (local.get 3)))
            (local.get $at))
          (func $result (param $from i32) (param $len i32) (result i32)
            (i32.store (i32.const 64) (i32.const 0))
            (i32.store (i32.const 68) (i32.const 1))
            (i32.store (i32.const 72) (local.get $from))
            (i32.store (i32.const 76) (local.get $len))
            (i32.const 64))
          (data (i32.const 256) "\"done\"")
          (data (i32.const 300) "first \c3")
          (data (i32.const 310) "\bc half\0anext\0a")
          (data (i32.const 340) "\2c\01\00\00\07\00\00\00\36\01\00\00\0c\00\00\00")
          (func (export "run") (param $job i32) (result i32)
            (local $n i32)
            {run}))"#
    );
    wat::parse_str(text).unwrap()
}

const SETTINGS: &str = "[defaults]\ntimeout = '5s'\n";

#[tokio::test]
async fn a_module_without_preview_1_becomes_a_component() {
    let module = module("", "(call $result (i32.const 256) (i32.const 6))");
    let component = componentize(&module).unwrap();
    let bed = Bed::of(&component, SETTINGS);
    assert_eq!(bed.answer("{}").await, "done");
}

#[tokio::test]
async fn what_a_module_prints_is_kept_piece_by_piece() {
    let import = r#"(import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))"#;
    // Two pieces, the border between them within a character.
    let run = "(drop (call $write (i32.const 1) (i32.const 340) (i32.const 2) (i32.const 400)))
               (drop (call $write (i32.const 2) (i32.const 340) (i32.const 2) (i32.const 400)))
               unreachable";
    let component = componentize(&module(import, run)).unwrap();
    let bed = Bed::of(&component, SETTINGS);
    let outcome = bed.call("{}").await;
    assert_eq!(
        outcome.output.as_deref(),
        Some("first ü half\nnext\nfirst ü half\nnext\n")
    );
    let failure = outcome.verdict.unwrap_err();
    assert_eq!(failure.class, FailureClass::Trap);
    assert!(
        failure
            .message
            .contains("standard error ends: first ü half\nnext"),
        "{}",
        failure.message
    );
}

#[tokio::test]
async fn sleeping_takes_time_and_computes_nothing() {
    let import = r#"(import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
                    (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))"#;
    // A subscription at 512: 300 ms of the monotonic clock; before and after, the time.
    let run = "(drop (call $clock (i32.const 1) (i64.const 0) (i32.const 600)))
               (i64.store (i32.const 512) (i64.const 77))
               (i32.store (i32.const 528) (i32.const 1))
               (i64.store (i32.const 536) (i64.const 300000000))
               (if (call $poll (i32.const 512) (i32.const 640) (i32.const 1) (i32.const 700)) (then unreachable))
               (if (i64.ne (i64.load (i32.const 640)) (i64.const 77)) (then unreachable))
               (drop (call $clock (i32.const 1) (i64.const 0) (i32.const 608)))
               (if (i64.lt_u (i64.sub (i64.load (i32.const 608)) (i64.load (i32.const 600))) (i64.const 300000000))
                 (then unreachable))
               (call $result (i32.const 256) (i32.const 6))";
    let component = componentize(&module(import, run)).unwrap();
    let bed = Bed::of(&component, SETTINGS);
    let outcome = bed.call("{}").await;
    assert_eq!(outcome.verdict.unwrap().as_deref(), Some("\"done\""));
    assert!(outcome.usage.run >= std::time::Duration::from_millis(300));
    assert!(
        outcome.usage.cpu < outcome.usage.run / 2,
        "{:?}",
        outcome.usage
    );
}

#[tokio::test]
async fn random_numbers_and_an_exit_code_are_the_hosts() {
    let import = r#"(import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
                    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))"#;
    // 13 bytes: one word and a rest, none beside. All zero once in 2^104.
    let run = "(drop (call $random (i32.const 1024) (i32.const 13)))
               (if (i32.load8_u (i32.const 1037)) (then unreachable))
               (if (i64.eqz (i64.or (i64.load (i32.const 1024)) (i64.load (i32.const 1029)))) (then unreachable))
               (call $exit (i32.const 3)) unreachable";
    let component = componentize(&module(import, run)).unwrap();
    let (class, message, _) = Bed::of(&component, SETTINGS).failure("{}").await;
    assert_eq!(class, FailureClass::Trap);
    assert!(message.contains("exited with code 1"), "{message}");
}

#[tokio::test]
async fn while_it_is_held_the_clock_is_the_adapters_own() {
    let import = r#"(import "wasi_snapshot_preview1" "piecework_hold" (func $hold (param i32)))
                    (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))"#;
    // It goes on by a microsecond a look, and comes back to the truth.
    let run = "(drop (call $clock (i32.const 1) (i64.const 0) (i32.const 600)))
               (call $hold (i32.const 1))
               (drop (call $clock (i32.const 1) (i64.const 0) (i32.const 608)))
               (drop (call $clock (i32.const 1) (i64.const 0) (i32.const 616)))
               (call $hold (i32.const 0))
               (if (i64.ne (i64.sub (i64.load (i32.const 608)) (i64.load (i32.const 600))) (i64.const 1000)) (then unreachable))
               (if (i64.ne (i64.sub (i64.load (i32.const 616)) (i64.load (i32.const 608))) (i64.const 1000)) (then unreachable))
               (call $result (i32.const 256) (i32.const 6))";
    let component = componentize(&module(import, run)).unwrap();
    assert_eq!(Bed::of(&component, SETTINGS).answer("{}").await, "done");
}

#[test]
fn what_does_not_fit_is_refused_with_what_to_do() {
    let said = |module: &[u8]| componentize(module).unwrap_err().to_string();
    let wat = |text: &str| said(&wat::parse_str(text).unwrap());
    assert!(said(b"#!/bin/sh").contains("it is no WebAssembly"));
    assert!(wat("(component)").contains("it is a component already"));
    assert!(wat("(module)").contains("does not export `memory`"));
    let without = r#"(module (memory (export "memory") 1) (func (export "run") (param i32) (result i32) unreachable))"#;
    assert!(wat(without).contains("does not export `cabi_realloc`"));
    let unknown = said(&module(
        r#"(import "env" "fopen" (func (param i32)))"#,
        "unreachable",
    ));
    assert!(
        unknown.contains("does not fit the world") && unknown.contains("env"),
        "{unknown}"
    );
    let unknown = said(&module(
        r#"(import "wasi_snapshot_preview1" "fd_teleport" (func (param i32)))"#,
        "unreachable",
    ));
    assert!(unknown.contains("fd_teleport"), "{unknown}");
}

#[test]
fn the_output_is_written_whole_or_not_at_all() {
    let folder = Folder::new();
    let at = |name: &str| folder.path().join(name);
    let run = |from: &str, to: &str| {
        command()
            .args(["componentize"])
            .arg(at(from))
            .arg("-o")
            .arg(at(to))
            .output()
            .unwrap()
    };
    fs::write(
        at("good"),
        module("", "(call $result (i32.const 256) (i32.const 6))"),
    )
    .unwrap();
    fs::write(at("bad"), "no module").unwrap();
    assert!(run("good", "out.wasm").status.success());
    let whole = fs::read(at("out.wasm")).unwrap();
    for (from, to) in [
        ("bad", "out.wasm"),
        ("missing", "out.wasm"),
        ("good", "no/such/folder"),
    ] {
        let output = run(from, to);
        assert!(!output.status.success(), "{from} {to}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            said.contains("is refused") || said.contains("cannot "),
            "{said}"
        );
    }
    assert_eq!(fs::read(at("out.wasm")).unwrap(), whole);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}
