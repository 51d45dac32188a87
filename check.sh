#!/bin/sh
# Every check that a change has to pass, in one command.
set -eu
cd "$(dirname "$0")"
target=${CARGO_TARGET_DIR:-target}

step() {
    echo "== $*"
}

step setup
scripts/setup.sh

step format
cargo fmt --all --check
for workspace in plugins tests/guests sdk/rust; do
    cargo fmt --all --check --manifest-path "$workspace/Cargo.toml"
done
# Those that lie in no workspace of their own.
rustfmt --edition 2024 --check templates/rust/src/lib.rs tests/languages/rust/lib.rs examples/*/handlers/*/*.rs

step clippy
cargo clippy --all-targets --locked -- -D warnings

step build
# With tests and examples: alone, the program would be compiled with fewer features, and all of it twice.
cargo test --no-run --locked

database=
if [ -z "${DATABASE_URL:-}" ]; then
    step database
    # One for the whole run: starting one for each test binary would take longer than most of the tests.
    mkdir -p "$target"
    said=$target/check-database.txt
    : >"$said"
    "$target/debug/piecework" dev --database-only --data "$target/check-postgres" >"$said" &
    database=$!
    trap 'kill "$database" 2>/dev/null && wait "$database" || true' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    tries=0
    until DATABASE_URL=$(sed -n 's/^DATABASE_URL=//p' "$said") && [ -n "$DATABASE_URL" ]; do
        tries=$((tries + 1))
        if [ "$tries" -gt 300 ]; then
            echo "check: the private database was not ready within 60 s" >&2
            exit 1
        fi
        if ! kill -0 "$database" 2>/dev/null; then
            echo "check: the private database ended before it was ready" >&2
            exit 1
        fi
        sleep 0.2
    done
    export DATABASE_URL
fi

step languages
scripts/languages.sh

step examples
examples/build.sh

step tests
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --locked
else
    cargo test --locked
fi

step addresses
# Once more with many cases: what a guest may connect to is decided by these.
if cargo nextest --version >/dev/null 2>&1; then
    PROPTEST_CASES=20000 cargo nextest run --locked -E 'test(policy::)'
else
    PROPTEST_CASES=20000 cargo test --locked policy::
fi

step docs
RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --locked

if cargo deny --version >/dev/null 2>&1; then
    step dependencies
    # Not the advisories: their database is fetched, and a check must not fail for want of a network.
    cargo deny check bans licenses sources
fi
