#!/bin/sh
# Builds plugins/@NAME@.wasm. Needs Zig 0.17; ZIG may name the program.
set -eu
cd "$(dirname "$0")"
zig=${ZIG:-zig}
command -v "$zig" >/dev/null || {
    echo "build: there is no $zig: install Zig 0.17 (pip install ziglang has it, as python -m ziglang), or set ZIG" >&2
    exit 1
}
mkdir -p build plugins
"$zig" build-exe handler.zig -target wasm32-freestanding -fno-entry -rdynamic -OReleaseSmall -fstrip \
    --cache-dir build/cache -femit-bin=build/@NAME@.core.wasm
"${PIECEWORK:-piecework}" componentize build/@NAME@.core.wasm -o plugins/@NAME@.wasm
