//! What is linked of WASI: all of 0.2 but servers, since languages' runtimes import it. What it could do is taken out of the
//! context of each attempt.

use wasmtime::component::{HasSelf, Linker};

use super::{Interface, Package, v0_1};
use crate::engine::host::HostState;

/// Of wasmtime-wasi and wasmtime-wasi-http.
const VERSION: &str = "0.2.12";

/// A package of WASI 0.2 with its interfaces.
macro_rules! wasi {
    ($package:literal: $($interface:literal)*) => {
        Package {
            name: $package,
            version: VERSION,
            interfaces: &[ $( Interface { name: $interface, functions: None } ),* ],
        }
    };
}

pub(super) const PACKAGES: &[Package] = &[
    wasi!("wasi:cli": "environment" "exit" "stdin" "stdout" "stderr" "terminal-input" "terminal-output"
        "terminal-stdin" "terminal-stdout" "terminal-stderr"),
    wasi!("wasi:clocks": "monotonic-clock" "wall-clock"),
    wasi!("wasi:filesystem": "types" "preopens"),
    wasi!("wasi:http": "types" "outgoing-handler"),
    wasi!("wasi:io": "error" "poll" "streams"),
    wasi!("wasi:random": "random" "insecure" "insecure-seed"),
    wasi!("wasi:sockets": "instance-network" "ip-name-lookup" "network" "tcp" "tcp-create-socket" "udp"
        "udp-create-socket"),
    // A release candidate: no other version is compatible with it.
    Package {
        name: "wasi:config",
        version: "0.2.0-rc.1",
        interfaces: &[Interface {
            name: "store",
            functions: Some(&["get", "get-all"]),
        }],
    },
];

/// Puts all of it into a linker.
pub(super) fn link(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    wasmtime_wasi::p2::add_to_linker_async(linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(linker)?;
    v0_1::wasi::config::store::add_to_linker::<_, HasSelf<HostState>>(linker, |state| state)
}

/// What to do about an interface of one of these packages that is not offered.
pub(super) fn remedy(package: &str, interface: &str) -> String {
    match (package, interface) {
        ("wasi:http", "incoming-handler") => {
            "a handler is no server: leave the server side of wasi:http out".to_owned()
        }
        ("wasi:config", _) => {
            "build it against the wit/deps/config folder of this release".to_owned()
        }
        _ => "build it for WASI 0.2, the target wasm32-wasip2, without unstable interfaces"
            .to_owned(),
    }
}
