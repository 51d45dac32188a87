//! The signature of a file: `NAME.wasm.minisig` beside `NAME.wasm`.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::config::TrustRules;
use crate::engine::Refusal;
use crate::trust::LONGEST_SIGNATURE;

/// Where the signature of a file lies.
pub(super) fn path_of(file: &Path) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(".minisig");
    path.into()
}

/// The text of a file's signature; none when there is none, or nobody whose signature it could be.
///
/// # Errors
/// When what lies there cannot be read, or is too large for a signature.
pub fn read_signature(file: &Path, rules: &TrustRules) -> Result<Option<String>, Refusal> {
    if rules.keys.is_empty() {
        return Ok(None);
    }
    let path = path_of(file);
    let refuse = |what: &str| {
        Refusal::new(
            format!("its signature `{}` {what}", path.display()),
            "put the file there that `minisign -Sm NAME.wasm` makes",
        )
    };
    let unreadable = |error: std::io::Error| refuse(&format!("cannot be read: {error}"));
    match fs::metadata(&path) {
        Ok(metadata) if metadata.is_file() => {}
        // Opening a pipe would wait for whoever writes to it.
        Ok(_) => return Err(refuse("is no file")),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    }
    let mut bytes = Vec::new();
    File::open(&path)
        .and_then(|file| file.take(LONGEST_SIGNATURE + 1).read_to_end(&mut bytes))
        .map_err(unreadable)?;
    if bytes.len() as u64 > LONGEST_SIGNATURE {
        return Err(refuse(&format!(
            "has more than {LONGEST_SIGNATURE} bytes, so it is none"
        )));
    }
    // What is no text is no signature either; that is said where it is held against the keys.
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}
