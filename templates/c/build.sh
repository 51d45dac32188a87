#!/bin/sh
# Builds plugins/@NAME@.wasm. Needs clang with the target wasm32-wasi, lld and wasi-libc: on Debian and Ubuntu the packages
# clang lld wasi-libc libclang-rt-dev-wasm32 (with a version, such as clang-16, where those are older); or set CC, to the clang
# of a wasi-sdk or to "zig cc".
set -eu
cd "$(dirname "$0")"
mkdir -p build plugins

compiler() {
    for cc in ${CC:+"$CC"} clang clang-20 clang-19 clang-18 clang-17 clang-16 clang-15; do
        # Not quoted: it may have arguments.
        if echo '#include <stdio.h>' | $cc --target=wasm32-wasi -E - >/dev/null 2>&1; then
            return 0
        fi
    done
    echo "build: there is no clang with wasi-libc: install the packages that build.sh names, or set CC" >&2
    exit 1
}

compiler
$cc --target=wasm32-wasi -mexec-model=reactor -std=gnu11 -Os -Wall -Wextra -s -o build/@NAME@.core.wasm handler.c
"${PIECEWORK:-piecework}" componentize build/@NAME@.core.wasm -o plugins/@NAME@.wasm
