#!/bin/sh
# Builds everything and plays the application: its arguments go to the program, --help shows them.
set -eu
cd "$(dirname "$0")/../.."
scripts/setup.sh
cargo build --quiet --locked --bins --examples
examples/build.sh escalation
exec "${CARGO_TARGET_DIR:-target}/debug/examples/escalation" "$@"
