#!/bin/sh
# Builds the handlers: those in plugins/ to plugins/NAME.wasm, where a host finds them, and those of the tests to
# target/guests/. Takes a fraction of a second when nothing changed.
set -eu
cd "$(dirname "$0")/.."

if [ ! -d target/guests ]; then
    echo "building the handlers: the first time takes a minute"
fi
for workspace in plugins tests/guests; do
    cargo build --quiet --release --locked --target wasm32-wasip2 --target-dir target/guests \
        --manifest-path "$workspace/Cargo.toml"
done

# A running host watches plugins/: it must never see half a file, nor a new file with the old content.
place() {
    built=target/guests/wasm32-wasip2/release/$1.wasm
    if ! cmp -s "$built" "$2"; then
        cp "$built" "$2.$$.tmp"
        mv "$2.$$.tmp" "$2"
        echo "built $2 ($(($(wc -c <"$2"))) bytes)"
    fi
}

for name in markdown flaky spin noop; do
    place "$name" "plugins/$name.wasm"
done
for name in probe client start_loop; do
    place "$name" "target/guests/$name.wasm"
done
