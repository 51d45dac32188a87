#!/bin/sh
# Builds everything and shows it at work; arguments go to `piecework demo`.
set -eu
cd "$(dirname "$0")"
target=${CARGO_TARGET_DIR:-target}

scripts/setup.sh
if [ ! -x "$target/release/piecework" ]; then
    echo "building piecework: the first time takes some minutes"
fi
cargo build --release --locked --quiet
exec "$target/release/piecework" demo "$@"
