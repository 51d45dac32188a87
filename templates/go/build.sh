#!/bin/sh
# Builds plugins/@NAME@.wasm. Needs Go 1.24 or newer.
set -eu
cd "$(dirname "$0")"
command -v go >/dev/null || {
    echo "build: there is no go: install Go 1.24 or newer" >&2
    exit 1
}
mkdir -p build plugins
GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -ldflags='-s -w' -o build/@NAME@.core.wasm .
"${PIECEWORK:-piecework}" componentize build/@NAME@.core.wasm -o plugins/@NAME@.wasm
