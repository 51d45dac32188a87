#!/bin/sh
# Builds plugins/@NAME@.wasm. Needs Rust 1.85 or newer with the target wasm32-wasip2, which rustup adds.
set -eu
cd "$(dirname "$0")"
command -v cargo >/dev/null || {
    echo "build: there is no cargo: install Rust with rustup" >&2
    exit 1
}
if [ ! -d "$(rustc --print sysroot)/lib/rustlib/wasm32-wasip2" ]; then
    rustup --quiet target add wasm32-wasip2
fi
cargo build --quiet --release --target wasm32-wasip2
mkdir -p plugins
# Under another name until it is whole: a host may be watching.
cp "${CARGO_TARGET_DIR:-target}/wasm32-wasip2/release/@NAME_SNAKE@.wasm" plugins/.@NAME@.tmp
mv plugins/.@NAME@.tmp plugins/@NAME@.wasm
echo "plugins/@NAME@.wasm ($(($(wc -c <plugins/@NAME@.wasm))) bytes)"
