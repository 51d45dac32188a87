//! A component of the world `handler` made of a core module, for languages whose compilers stop there: the module exports `run` and
//! `cabi_realloc` as the canonical ABI has them. Pure: bytes to bytes.

use wasmparser::{ExternalKind, Parser, Payload};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::{Resolve, WorldId};

/// What a module built against WASI preview 1 imports from.
const PREVIEW1: &str = "wasi_snapshot_preview1";
/// What every module has to export, and why.
const EXPORTS: [(&str, ExternalKind, &str); 3] = [
    (
        "memory",
        ExternalKind::Memory,
        "the host writes the job there",
    ),
    ("run", ExternalKind::Func, "it is called for each attempt"),
    (
        "cabi_realloc",
        ExternalKind::Func,
        "the host asks it for room for the job",
    ),
];

/// Why a module cannot become a component, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is one.
    #[error("it is a component already: use it as it is")]
    Component,
    /// It is something else altogether.
    #[error("it is no WebAssembly: {0}; give it the core module that the compiler wrote")]
    NoModule(String),
    /// It lacks an export.
    #[error(
        "the module does not export `{name}` ({why}): {}",
        if *name == "memory" { "let the linker export it" } else { "the SDK does; is it linked in, and not stripped away?" }
    )]
    Export {
        /// The export.
        name: &'static str,
        /// Why it must be there.
        why: &'static str,
    },
    /// What it imports or exports does not fit.
    #[error("the module does not fit the world `handler`: {0}")]
    Unfit(String),
}

/// Makes a component of a core module. What the module calls of WASI preview 1 is served by an adapter: output, clocks and random
/// numbers work, there are no files.
///
/// # Errors
/// When the bytes are no core module, or one that does not fit the world.
pub fn componentize(module: &[u8]) -> Result<Vec<u8>, Error> {
    let preview1 = examine(module)?;
    let mut module = module.to_vec();
    let unfit = |error: anyhow::Error| Error::Unfit(said(&error));
    // One that has been through another tool says its world itself.
    let (resolve, world) = handler().map_err(unfit)?;
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).map_err(unfit)?;
    let mut encoder = ComponentEncoder::default()
        .validate(true)
        .module(&module)
        .map_err(unfit)?;
    if preview1 {
        encoder = encoder
            .adapter(PREVIEW1, &adapter().map_err(unfit)?)
            .map_err(unfit)?;
    }
    encoder.encode().map_err(unfit)
}

/// Whether it imports from preview 1.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "of most sections nothing is asked"
)]
fn examine(module: &[u8]) -> Result<bool, Error> {
    let broken = |error: wasmparser::BinaryReaderError| Error::NoModule(error.message().to_owned());
    let mut preview1 = false;
    let mut exports = Vec::new();
    for payload in Parser::new(0).parse_all(module) {
        match payload.map_err(broken)? {
            Payload::Version {
                encoding: wasmparser::Encoding::Component,
                ..
            } => return Err(Error::Component),
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    preview1 |= import.map_err(broken)?.module == PREVIEW1;
                }
            }
            Payload::ExportSection(section) => {
                for export in section {
                    let export = export.map_err(broken)?;
                    exports.push((export.name, export.kind));
                }
            }
            _ => {}
        }
    }
    for (name, kind, why) in EXPORTS {
        if !exports.contains(&(name, kind)) {
            return Err(Error::Export { name, why });
        }
    }
    Ok(preview1)
}

fn handler() -> anyhow::Result<(Resolve, WorldId)> {
    let mut resolve = Resolve::default();
    resolve.push_source("store.wit", include_str!("../../wit/deps/config/store.wit"))?;
    let package = resolve.push_source("world.wit", include_str!("../../wit/world.wit"))?;
    let world = resolve.select_world(&[package], Some("handler"))?;
    Ok((resolve, world))
}

fn adapter() -> anyhow::Result<Vec<u8>> {
    let mut adapter = wat::parse_str(include_str!("preview1.wat"))?;
    let mut resolve = Resolve::default();
    let package = resolve.push_source("adapter.wit", include_str!("adapter.wit"))?;
    let world = resolve.select_world(&[package], Some("adapter"))?;
    embed_component_metadata(&mut adapter, &resolve, world, StringEncoding::UTF8)?;
    Ok(adapter)
}

/// The causes in one line.
fn said(error: &anyhow::Error) -> String {
    format!("{error:#}").replace('\n', " ")
}
