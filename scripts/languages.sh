#!/bin/sh
# Handlers in every language, as a user makes them: `piecework new`, build, test, a call. Then the handlers of the behaviour
# tests in the same projects. What was built lies in target/languages/ for tests/it/languages.rs; for a language whose
# toolchain cannot be had, the reason lies there instead. Rust and C must build.
#
# Usage: scripts/languages.sh [LANGUAGE...]
set -eu
cd "$(dirname "$0")/.."
. scripts/toolchains.sh

# A project from nothing to a call.
try() {
    language=$1
    project=$out/projects/$language
    name=watch-$language
    rm -rf "$project" "$out/$language.wasm" "$out/$name.wasm" "$out/$language.skipped"
    mkdir -p "$out/projects"
    (cd "$out/projects" && "$PIECEWORK" new "$name" --lang "$language" >/dev/null && mv "$name" "$language")
    if [ "$language" = rust ]; then
        # Of the SDKs, the one with tests of its own.
        cargo test --quiet --locked --lib --manifest-path sdk/rust/Cargo.toml
    fi
    "$project/build.sh"
    "$project/test.sh"
    "$PIECEWORK" plugins check "$project/plugins/$name.wasm" >/dev/null
    (cd "$project" && "$PIECEWORK" invoke "plugins/$name.wasm" --payload '{"url":"https://example.com/","times":2}' \
        --http replay:tests/page.json)
    place "$project/plugins/$name.wasm" "$out/$name.wasm"
    file=$(handler "$language")
    cp "$root/tests/languages/$language/$(basename "$file")" "$project/$file"
    "$project/build.sh"
    place "$project/plugins/$name.wasm" "$out/$language.wasm"
}

[ $# -gt 0 ] || set -- rust c zig go javascript typescript python
for language; do
    echo "-- $language"
    begun=$(date +%s)
    before=$PATH
    if ! prepare "$language"; then
        rm -f "$out/$language.wasm" "$out/watch-$language.wasm"
        echo "$reason" >"$out/$language.skipped"
        echo "skipped: $language: $reason"
        continue
    fi
    try "$language"
    PATH=$before
    echo "$language: ok, $(($(date +%s) - begun)) s"
done
