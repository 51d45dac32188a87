//! Why a component cannot serve, in words that its author and the operator understand, and what each of them can do about it.

use serde::Serialize;

/// Why a file cannot serve. Its text is one line: the cause, then the way out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}; {remedy}")]
pub struct Refusal {
    /// What is wrong.
    pub cause: String,
    /// What to do.
    pub remedy: String,
    /// What it wants of the host and does not get, all of it.
    pub lacks: Vec<Lack>,
}

/// What [`cut_off`] says.
const CUT_OFF: &str = "the file ends in the middle of a component";

impl Refusal {
    /// Whether the file only seems to lack its end: it may still be on its way.
    pub fn is_cut_off(&self) -> bool {
        self.cause == CUT_OFF
    }

    /// A cause, and what to do about it.
    pub fn new(cause: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            cause: cause.into(),
            remedy: remedy.into(),
            lacks: Vec::new(),
        }
    }
}

/// An import that this host cannot satisfy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lack {
    /// The import as it stands in the component.
    pub import: String,
    /// The version that the component wants, if it names one.
    pub wanted: Option<String>,
    /// The versions of the same interface that are offered here.
    pub offered: Vec<String>,
    /// The versions of its package that are offered, with or without this interface.
    pub package: Vec<String>,
    /// The functions that the offered version does not have; empty when none of the interface is offered.
    pub functions: Vec<String>,
    /// What to do.
    pub remedy: String,
}

/// Names the things that are often put in a plugins folder by mistake.
pub(super) fn recognise(bytes: &[u8]) -> Result<(), Refusal> {
    const BUILD: &str =
        "build the handler for the target wasm32-wasip2 and give the .wasm that comes of it";
    let (cause, remedy) = match bytes {
        [] => (
            "the file is empty".to_owned(),
            "copy it again, to a name that does not end in .wasm, and rename it when it is whole",
        ),
        [0, b'a', b's', b'm', 0x0d, 0, 1, 0, ..] => return Ok(()),
        [0, b'a', b's', b'm', 1, 0, 0, 0, ..] => (
            "it is a core module (version bytes 01 00 00 00), not a component".to_owned(),
            "build for the target wasm32-wasip2, or wrap it with `wasm-tools component new`",
        ),
        [0, b'a', b's', b'm', a, b, c, d, ..] => (
            format!(
                "it is WebAssembly of a kind that is not known here (version bytes {a:02x} {b:02x} {c:02x} {d:02x}; a component has 0d 00 01 00)"
            ),
            BUILD,
        ),
        [0x7f, b'E', b'L', b'F', ..] => match wasmtime::Engine::detect_precompiled(bytes) {
            Some(_) => (
                "it is precompiled native code (.cwasm), which is never loaded".to_owned(),
                "give the .wasm that it was made of: the host compiles it and keeps the result by itself",
            ),
            None => (
                "it is a native program (ELF), not WebAssembly".to_owned(),
                BUILD,
            ),
        },
        [0x1f, 0x8b, ..] | [b'P', b'K', 3, 4, ..] => {
            ("it is a compressed file".to_owned(), "unpack it first")
        }
        _ if super::cache::is_kept(bytes) => (
            "it is a file of the host's cache of compiled components, which is never loaded from elsewhere"
                .to_owned(),
            "give the .wasm that it was made of",
        ),
        _ if b"\0asm\x0d\0\x01\0".starts_with(bytes) => return Err(cut_off()),
        _ => match text(bytes) {
            Some(text) if text.starts_with('(') => (
                "it is WebAssembly as text".to_owned(),
                "assemble it with `wasm-tools parse FILE -o FILE.wasm`",
            ),
            Some(text) => (
                format!(
                    "it is text, not WebAssembly; it begins with `{}`",
                    text.lines().next().unwrap_or_default().chars().take(24).collect::<String>()
                ),
                BUILD,
            ),
            None => (
                "it is not WebAssembly: a component begins with the bytes 00 61 73 6d 0d 00 01 00"
                    .to_owned(),
                BUILD,
            ),
        },
    };
    Err(Refusal::new(cause, remedy))
}

/// The beginning of a file that is text, without white space before it.
fn text(bytes: &[u8]) -> Option<&str> {
    let head = &bytes[..bytes.len().min(256)];
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        // A character may have been cut in two.
        Err(error) if error.valid_up_to() + 3 >= head.len() => {
            std::str::from_utf8(&head[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    let printable = |c: char| !c.is_control() || c.is_whitespace();
    Some(text.trim_start()).filter(|trimmed| !trimmed.is_empty() && text.chars().all(printable))
}

/// The file ends in the middle.
pub(super) fn cut_off() -> Refusal {
    Refusal::new(
        CUT_OFF,
        "copy it again, to a name that does not end in .wasm, and rename it when it is whole",
    )
}
