//! From bytes to a [`Handler`]: checked, compiled, linked, its `run` of the right type. What does not fit is refused with a
//! reason that the author of a plugin understands.

use sha2::{Digest, Sha256};
use wasmtime::component::Component;

use super::child::{self, Answer};
use super::refusal::Refusal;
use super::shape::Shape;
use super::worlds::{self, Entry};
use super::{Engine, cache, hex};

/// A component that is ready to run jobs.
pub struct Handler {
    pub(super) entry: Box<dyn Entry>,
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
    /// computing, and may wait while another is compiled: call it where it blocks nobody. `fuel` tells whether the plugin has a fuel budget.
    ///
    /// # Errors
    /// Says what the bytes are instead of a component for this world, and what to do.
    pub fn compile(&self, bytes: &[u8], fuel: bool) -> Result<Handler, Refusal> {
        let shape = Shape::read(bytes)?;
        shape.check()?;
        let flavour = self.flavour(fuel).map_err(|error| {
            Refusal::new(
                format!("{error:#}"),
                "leave `fuel` out, or look at `[engine]` in runner.toml",
            )
        })?;
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
        let pre = flavour
            .linker
            .instantiate_pre(&component)
            .map_err(|error| worlds::mismatch(&shape, &error))?;
        let entry =
            worlds::enter(&shape, &pre).map_err(|error| worlds::wrong_run(&shape, &error))?;
        // Only what can serve.
        if let Some(cache) = self.cache.as_ref().filter(|_| !cached) {
            cache.store(&name, &component);
        }
        Ok(Handler {
            entry,
            fuelled: fuel,
            digest,
            cached,
        })
    }

    /// The compiler, as a rule for one component at a time; all but small ones in a process of their own. It takes all cores: of 50 jobs a second
    /// beside one of 6 MB, 99 in 100 were picked up within 7 to 8 ms without it, 9 to 13 with it in a child, 10 to 20 with it in this
    /// process (3 runs, dev profile). Threads of a lower priority did not help here, so they have the usual one.
    fn translate(
        &self,
        engine: &wasmtime::Engine,
        bytes: &[u8],
        fuel: bool,
    ) -> Result<Component, Refusal> {
        let _turn = self.compiling.take();
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
                Ok(Answer::Died(reason)) => {
                    return Err(Refusal::new(
                        reason,
                        "it is not tried again until it changes: build it smaller",
                    ));
                }
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
            "gc feature",
            "exceptions",
            "function references",
            "heap type",
            "exnref",
        ]
        .iter()
        .any(|word| text.contains(word));
        if wants_gc && !self.settings.gc {
            return Refusal::new(
                format!("it needs WebAssembly GC or exceptions ({text})"),
                "set `gc = true` under `[engine]` in runner.toml",
            );
        }
        // What validation finds inside of functions.
        if let Some(fault) = text.strip_prefix("Invalid input WebAssembly code ") {
            return Refusal::new(
                format!("it is no valid component: {fault}"),
                "build it again; if the file was copied, compare its checksum with that of the original",
            );
        }
        Refusal::new(
            format!("the engine does not take it: {text}"),
            "build it for the target wasm32-wasip2 without experimental features of WebAssembly",
        )
    }
}
