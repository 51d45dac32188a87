//! Whether a component may serve: its digest held against the pins of its plugin, its signature against the keys of `[trust]`.
//! Pure; the same for files and for what the fleet gives, and before anything is compiled or taken from the cache.

use minisign_verify::{Error, Signature};
use sha2::{Digest, Sha256};

use crate::config::TrustRules;

/// The longest text of a signature, in bytes: of a minisign file with a long comment.
pub const LONGEST_SIGNATURE: u64 = 8192;

/// What speaks for a component that may serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trusted {
    /// Its digest is one of the pins.
    pub pinned: bool,
    /// The trusted comment of its signature.
    pub signed: Option<String>,
}

/// Why a component may not serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}; {remedy}")]
pub struct Distrust {
    /// What is wrong.
    pub cause: String,
    /// What to do.
    pub remedy: String,
}

/// Holds a component against what the settings say of its plugin. `signature` is the text of its minisign signature.
///
/// # Errors
/// Names the key of the settings that speaks against it, and what to do.
pub fn check(
    bytes: &[u8],
    signature: Option<&str>,
    rules: &TrustRules,
) -> Result<Trusted, Distrust> {
    if let Some(pins) = &rules.pins {
        let digest: [u8; 32] = Sha256::digest(bytes).into();
        if !pins.0.contains(&digest) {
            return Err(not_pinned(&digest, pins.0.len(), &rules.pins_at));
        }
    }
    let signed = match signature.filter(|_| !rules.keys.is_empty()) {
        Some(signature) => Some(verify(bytes, signature, rules)?),
        None => None,
    };
    if signed.is_none() && rules.require_signature {
        return Err(Distrust {
            cause: format!("it is not signed, which {} asks for", rules.require_at),
            remedy: "sign it with `minisign -Sm NAME.wasm`: NAME.wasm.minisig lies beside the file, or goes with it when it is pushed to the fleet".to_owned(),
        });
    }
    Ok(Trusted {
        pinned: rules.pins.is_some(),
        signed,
    })
}

/// The trusted comment of a good signature.
fn verify(bytes: &[u8], text: &str, rules: &TrustRules) -> Result<String, Distrust> {
    let at = &rules.keys_at;
    let sign_again = "sign this very file again with `minisign -Sm NAME.wasm`, or restore the file that was signed";
    let refuse = |cause: String, remedy: &str| {
        Err(Distrust {
            cause,
            remedy: remedy.to_owned(),
        })
    };
    let Ok(signature) = Signature::decode(text) else {
        return refuse(
            format!("its signature is none of minisign, which {at} asks for"),
            sign_again,
        );
    };
    let mut of_a_key = false;
    for key in &rules.keys {
        // The old form would take the signature of a file of 64 bytes for that of the component with this BLAKE2b.
        match key.key().verify(bytes, &signature, false) {
            Ok(()) => return Ok(signature.trusted_comment().to_owned()),
            Err(Error::UnexpectedKeyId) => {}
            Err(Error::UnexpectedAlgorithm) => {
                return refuse(
                    format!(
                        "its signature has the old form, without a hash, which {at} does not take"
                    ),
                    "sign it with minisign 0.10 or newer, and without the option -l",
                );
            }
            Err(_) => of_a_key = true,
        }
    }
    if of_a_key {
        return refuse(
            format!(
                "its signature is that of other bytes, or was changed; it claims to be of one of {at}"
            ),
            sign_again,
        );
    }
    refuse(
        format!("it is signed with a key that is not among {at}"),
        "sign it with one of these, or add the public key if you trust its owner",
    )
}

fn not_pinned(digest: &[u8; 32], pins: usize, at: &str) -> Distrust {
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let (pinned, these) = match pins {
        1 => ("another component", "the one that is"),
        _ => ("other components", "one of those that are"),
    };
    Distrust {
        cause: format!("its sha256 is {digest}, and {at} pins {pinned}"),
        remedy: format!(
            "if it is the one that shall serve, put its sha256 there; else restore {these} pinned"
        ),
    }
}
