#!/bin/sh
# Builds the handlers of the examples: each is one file, built in a project as `piecework new` lays it out. They go to
# target/examples-plugins/APPLICATION/NAME.wasm; for one whose toolchain cannot be had, the reason lies there instead.
#
# Usage: examples/build.sh [APPLICATION...]
set -eu
cd "$(dirname "$0")/.."
. scripts/toolchains.sh

[ $# -gt 0 ] || set -- invoices escalation
for application; do
    plugins=$target/examples-plugins/$application
    mkdir -p "$plugins"
    for source in examples/"$application"/handlers/*/*; do
        name=$(basename "$(dirname "$source")")
        case $source in
        *.rs) language=rust ;;
        *.c) language=c ;;
        *.js) language=javascript ;;
        *) continue ;;
        esac
        # Nothing to do where nothing changed.
        sum=$(cat "$source" "$PIECEWORK" | cksum)
        if [ -f "$plugins/$name.wasm" ] && [ "$(cat "$plugins/.$name.sum" 2>/dev/null)" = "$sum" ]; then
            continue
        fi
        rm -f "$plugins/$name.wasm" "$plugins/$name.skipped"
        if ! prepare "$language"; then
            echo "$reason" >"$plugins/$name.skipped"
            echo "skipped: $application: $name: $reason"
            continue
        fi
        work=$out/examples/$application
        mkdir -p "$work"
        rm -rf "$work/$name"
        (cd "$work" && "$PIECEWORK" new "$name" --lang "$language" >/dev/null)
        cp "$source" "$work/$name/$(handler "$language")"
        "$work/$name/build.sh"
        place "$work/$name/plugins/$name.wasm" "$plugins/$name.wasm"
        echo "$sum" >"$plugins/.$name.sum"
    done
done
