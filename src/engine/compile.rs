//! From bytes to a [`Handler`]: checked, compiled, linked, its `run` of the right type. What does not fit is refused with a
//! reason that the author of a plugin understands.

use std::sync::PoisonError;

use sha2::{Digest, Sha256};
use wasmtime::component::Component;

use super::bindings::HandlerPre;
use super::child::{self, Answer};
use super::host::HostState;
use super::{Engine, cache, hex};

/// Why a file cannot serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub(super) String);

/// A component that is ready to run jobs.
pub struct Handler {
    pub(super) pre: HandlerPre<HostState>,
    pub(super) fuelled: bool,
    digest: [u8; 32],
    cached: bool,
}

impl std::fmt::Debug for Handler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handler")
            .field("digest", &hex(&self.digest))
            .finish_non_exhaustive()
    }
}

impl Handler {
    /// SHA-256 of the component's bytes.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Whether it was compiled before: it came from the cache.
    pub fn cached(&self) -> bool {
        self.cached
    }

    /// The first digits of the digest, for people.
    pub fn version(&self) -> String {
        hex(&self.digest[..6])
    }
}

/// SHA-256 of a component's bytes.
pub fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

impl Engine {
    /// Compiles a component, unless the cache has it. Takes 0.1 s for a small one and 10 s for a language runtime, all of it
    /// computing, and waits while another is compiled: call it where it blocks nobody. `fuel` tells whether the plugin has a fuel budget.
    ///
    /// # Errors
    /// Says what the bytes are instead of a component for this world, and what to do.
    pub fn compile(&self, bytes: &[u8], fuel: bool) -> Result<Handler, Refusal> {
        recognise(bytes)?;
        let flavour = self
            .flavour(fuel)
            .map_err(|error| Refusal(format!("{error:#}")))?;
        let digest = digest(bytes);
        let name = cache::name(&flavour.engine, digest, fuel);
        let kept = self
            .cache
            .as_ref()
            .and_then(|cache| cache.load(&flavour.engine, &name));
        let cached = kept.is_some();
        let component = match kept {
            Some(component) => component,
            None => self.translate(&flavour.engine, bytes, fuel)?,
        };
        let unknown = unknown_imports(&component, &flavour.engine);
        if !unknown.is_empty() {
            return Err(Refusal(format!(
                "it imports {}, which this host does not offer; it offers piecework:handler 0.1 (types, http, jobs, checkpoint, log), wasi:config 0.2.0-rc.1, and WASI 0.2 (io, cli, clocks, random, filesystem, sockets, http without its server side)",
                unknown.join(", ")
            )));
        }
        let pre = flavour
            .linker
            .instantiate_pre(&component)
            .map_err(|error| mismatch(&error))?;
        let pre = HandlerPre::new(pre).map_err(|error| mismatch(&error))?;
        // Only what can serve.
        if let Some(cache) = self.cache.as_ref().filter(|_| !cached) {
            cache.store(&name, &component);
        }
        Ok(Handler {
            pre,
            fuelled: fuel,
            digest,
            cached,
        })
    }

    /// The compiler, for one component at a time; a large one in a process of its own. It takes all cores; with 50 jobs a second beside
    /// it their median went from 3 to 9 ms and none took longer than 150 ms, on threads of a lower priority neither: so those of this
    /// process have the usual one.
    fn translate(
        &self,
        engine: &wasmtime::Engine,
        bytes: &[u8],
        fuel: bool,
    ) -> Result<Component, Refusal> {
        let _one = self
            .compiling
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let compiler = self.compiler.as_ref();
        if let Some(compiler) = compiler.filter(|_| bytes.len() >= child::LARGE) {
            let answer = compiler.compile(&self.settings, fuel, bytes);
            let failed = match answer {
                Ok(Answer::Compiled(compiled)) => match cache::deserialize(engine, &compiled) {
                    Ok(component) => return Ok(component),
                    Err(error) => error.into(),
                },
                Ok(Answer::Invalid(text)) => {
                    return Err(self.refuse_component(&wasmtime::Error::msg(text)));
                }
                // What ended the compiler there would end this process.
                Ok(Answer::Died(reason)) => return Err(Refusal(reason)),
                Err(error) => error,
            };
            compiler.warn(&failed);
        }
        Component::new(engine, bytes).map_err(|error| self.refuse_component(&error))
    }

    fn refuse_component(&self, error: &wasmtime::Error) -> Refusal {
        let text = error.root_cause().to_string();
        let wants_gc = [
            "gc proposal",
            "exceptions",
            "function references",
            "heap type",
            "exnref",
        ]
        .iter()
        .any(|word| text.contains(word));
        if wants_gc && !self.settings.gc {
            return Refusal(format!(
                "it needs WebAssembly GC or exceptions ({text}): set `gc = true` under `[engine]` in runner.toml"
            ));
        }
        Refusal(format!("it is no valid component: {text}"))
    }
}

/// Names the things that are often put in a plugins folder by mistake.
fn recognise(bytes: &[u8]) -> Result<(), Refusal> {
    let reason = match bytes {
        [] => "the file is empty".to_owned(),
        [0, b'a', b's', b'm', 1, 0, 0, 0, ..] => {
            "it is a core module (version bytes 01 00 00 00), not a component: build for wasm32-wasip2, or wrap it with `wasm-tools component new`".to_owned()
        }
        [0x7f, b'E', b'L', b'F', ..] => match wasmtime::Engine::detect_precompiled(bytes) {
            Some(_) => "it is precompiled native code, which is never loaded from here: give the .wasm itself".to_owned(),
            None => "it is a native program (ELF), not WebAssembly: build for wasm32-wasip2".to_owned(),
        },
        [0, b'a', b's', b'm', ..] => return Ok(()),
        _ => "it is not WebAssembly: a component begins with the bytes 00 61 73 6d".to_owned(),
    };
    Err(Refusal(reason))
}

/// All imports that nothing here satisfies: wasmtime's own message stops at the first.
fn unknown_imports(component: &Component, engine: &wasmtime::Engine) -> Vec<String> {
    const WORLD: [&str; 5] = ["types", "http", "jobs", "checkpoint", "log"];
    const WASI: [&str; 6] = ["io", "cli", "clocks", "random", "filesystem", "sockets"];
    const HTTP: [&str; 2] = ["types", "outgoing-handler"];
    let known = |name: &str| {
        let Some((package, rest)) = name.split_once('/') else {
            return false;
        };
        let version = rest.split_once('@').map_or("", |(_, version)| version);
        let interface = rest.split('@').next().unwrap_or_default();
        match package.split_once(':') {
            Some(("piecework", "handler")) => {
                WORLD.contains(&interface) && version.starts_with("0.1.")
            }
            // A release candidate: no other version is compatible with it.
            Some(("wasi", "config")) => interface == "store" && version == "0.2.0-rc.1",
            Some(("wasi", "http")) => HTTP.contains(&interface) && version.starts_with("0.2."),
            Some(("wasi", package)) => WASI.contains(&package) && version.starts_with("0.2."),
            _ => false,
        }
    };
    component
        .component_type()
        .imports(engine)
        .map(|(name, _)| name)
        .filter(|name| !known(name))
        .map(|name| format!("`{name}`"))
        .collect()
}

fn mismatch(error: &wasmtime::Error) -> Refusal {
    let text = error
        .chain()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ");
    Refusal(format!(
        "it does not fit the world piecework:handler@0.1.0: {text}; build it against the wit folder of this release"
    ))
}
