#!/bin/sh
# Builds plugins/@NAME@.wasm. Needs Python 3.10 or newer with venv and pip, which fetches the rest once into .venv.
set -eu
cd "$(dirname "$0")"
command -v python3 >/dev/null || {
    echo "build: there is no python3: install Python 3.10 or newer" >&2
    exit 1
}
if [ ! -x .venv/bin/componentize-py ]; then
    python3 -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
fi
mkdir -p build plugins
.venv/bin/componentize-py -d wit -w handler componentize app -o build/@NAME@.wasm >build/log 2>&1 || {
    cat build/log >&2
    exit 1
}
# Under its name only when it is whole: a host may be watching.
mv build/@NAME@.wasm plugins/@NAME@.wasm
echo "plugins/@NAME@.wasm ($(($(wc -c <plugins/@NAME@.wasm))) bytes)"
