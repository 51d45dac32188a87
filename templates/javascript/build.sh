#!/bin/sh
# Builds plugins/@NAME@.wasm. Needs Node.js with npm, which fetches the rest once.
set -eu
cd "$(dirname "$0")"
command -v npm >/dev/null || {
    echo "build: there is no npm: install Node.js 20 or newer" >&2
    exit 1
}
[ -d node_modules ] || npm install --silent --no-audit --no-fund
mkdir -p build plugins
npx --no-install componentize-qjs --wit wit -n javascript --js handler.js --sync --output build/@NAME@.wasm >build/log 2>&1 || {
    cat build/log >&2
    exit 1
}
# Under its name only when it is whole: a host may be watching.
mv build/@NAME@.wasm plugins/@NAME@.wasm
echo "plugins/@NAME@.wasm ($(($(wc -c <plugins/@NAME@.wasm))) bytes)"
