//! Secrets are placeholders in the guest and values on the wire: they are filled in at the last moment, for the hosts that
//! they belong to, in header values and the query. Nothing of a value is ever shown.
//!
//! A server that sends back what it was sent can still hand a guest the value: `hosts` names servers that one trusts.

use std::fmt::Write as _;

use rustls::crypto::ring::default_provider;

use super::Error;
use super::head::Room;
use crate::config::Secret;
use crate::policy::Destination;

/// The placeholders of one session, in the order of the plugin's secrets.
pub(super) struct Placeholders(Vec<String>);

impl Placeholders {
    pub(super) fn new(secrets: &[Secret]) -> Self {
        Self(secrets.iter().map(placeholder).collect())
    }

    pub(super) fn pairs<'a>(
        &'a self,
        secrets: &'a [Secret],
    ) -> impl Iterator<Item = (&'a Secret, &'a str)> {
        secrets.iter().zip(self.0.iter().map(String::as_str))
    }

    /// The secrets of a request to one destination.
    pub(super) fn filler<'a>(&'a self, secrets: &'a [Secret], to: &'a Destination) -> Filler<'a> {
        Filler {
            held: self.pairs(secrets).collect(),
            to,
        }
    }
}

/// Fills the secrets into a request.
pub(super) struct Filler<'a> {
    held: Vec<(&'a Secret, &'a str)>,
    to: &'a Destination,
}

impl Filler<'_> {
    /// Refuses a placeholder where none is filled in: the URL before the query, a header's name.
    pub(super) fn refuse(&self, text: &[u8], place: &str) -> Result<(), Error> {
        for (secret, placeholder) in &self.held {
            // The name of a host or a header is in lower case by now.
            let lower = placeholder.to_ascii_lowercase();
            if find(text, placeholder.as_bytes()).is_some()
                || find(text, lower.as_bytes()).is_some()
            {
                self.permitted(secret)?;
                return Err(Error::Denied(format!(
                    "the placeholder of the secret `{}` stands in {place}: it is filled in only in header values and in the \
                     URL's query",
                    secret.name
                )));
            }
        }
        Ok(())
    }

    /// A header's value with its secrets, also inside `Basic` credentials; none when it has no placeholder.
    pub(super) fn header(&self, value: &[u8], room: &Room) -> Result<Option<Vec<u8>>, Error> {
        if self.held.is_empty() {
            return Ok(None);
        }
        if let Some(filled) = self.fill(value, str::to_owned, room)? {
            return Ok(Some(filled));
        }
        let Some((scheme, credentials)) = basic(value) else {
            return Ok(None);
        };
        let Some(plain) = decode(credentials) else {
            return Ok(None);
        };
        let filled = self.fill(&plain, str::to_owned, room)?;
        Ok(filled.map(|filled| [scheme, encode(&filled).as_bytes()].concat()))
    }

    /// A query with its secrets, percent-encoded; none when it has no placeholder.
    pub(super) fn query(&self, query: &str, room: &Room) -> Result<Option<String>, Error> {
        let filled = self.fill(query.as_bytes(), percent_encode, room)?;
        Ok(filled.map(|filled| String::from_utf8(filled).expect("text with text put in is text")))
    }

    /// Stops as soon as the text has no room: a placeholder is short, and what it stands for may not be.
    fn fill(
        &self,
        text: &[u8],
        show: impl Fn(&str) -> String,
        room: &Room,
    ) -> Result<Option<Vec<u8>>, Error> {
        let mut filled: Option<Vec<u8>> = None;
        for (secret, placeholder) in &self.held {
            let mut rest = filled.as_deref().unwrap_or(text);
            let mut done = Vec::new();
            let mut shown = None;
            while let Some(at) = find(rest, placeholder.as_bytes()) {
                self.permitted(secret)?;
                let shown = shown.get_or_insert_with(|| show(secret.value.reveal()));
                room.fits(done.len() + at + shown.len())?;
                done.extend_from_slice(&rest[..at]);
                done.extend_from_slice(shown.as_bytes());
                rest = &rest[at + placeholder.len()..];
            }
            if shown.is_some() {
                room.fits(done.len() + rest.len())?;
                done.extend_from_slice(rest);
                filled = Some(done);
            }
        }
        Ok(filled)
    }

    fn permitted(&self, secret: &Secret) -> Result<(), Error> {
        if secret.hosts.iter().any(|host| host.matches(self.to)) {
            return Ok(());
        }
        let hosts: Vec<_> = secret
            .hosts
            .iter()
            .map(|host| format!("`{host}`"))
            .collect();
        let hosts = if hosts.is_empty() {
            "no host at all".to_owned()
        } else {
            hosts.join(", ")
        };
        Err(Error::Denied(format!(
            "the secret `{name}` may be sent to {hosts}, not to `{}`: see `hosts` under `[secrets.{name}]`",
            self.to,
            name = secret.name
        )))
    }
}

/// Refuses a body with a placeholder: bodies are sent as they are.
pub(super) fn refuse_body<'a>(
    mut pairs: impl Iterator<Item = (&'a Secret, &'a str)>,
    body: &[u8],
) -> Result<(), Error> {
    match pairs.find(|(_, placeholder)| find(body, placeholder.as_bytes()).is_some()) {
        None => Ok(()),
        Some((secret, _)) => Err(Error::Denied(format!(
            "the placeholder of the secret `{}` stands in the request's body: it is filled in only in header values and in \
             the URL's query",
            secret.name
        ))),
    }
}

/// Only letters, digits and `_`, which no encoding changes on its way through a guest.
fn placeholder(secret: &Secret) -> String {
    let mut random = [0; 16];
    default_provider()
        .secure_random
        .fill(&mut random)
        .expect("the system has random numbers: nothing else of TLS works without");
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let mut text = String::from("secret_");
    text.extend(secret.name.chars().map(plain));
    text.push('_');
    for byte in random {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Where `needle` begins. Looking for its first byte alone first keeps a body of megabytes cheap.
pub(super) fn find(text: &[u8], needle: &[u8]) -> Option<usize> {
    let first = *needle.first()?;
    let mut from = 0;
    while let Some(at) = text.get(from..)?.iter().position(|byte| *byte == first) {
        if text[from + at..].starts_with(needle) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

/// Everything that a query could read as something else becomes `%XX`.
pub(super) fn percent_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// The scheme with its space, and the credentials.
fn basic(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let (scheme, credentials) = value.split_at_checked(6)?;
    scheme
        .eq_ignore_ascii_case(b"basic ")
        .then_some((scheme, credentials))
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let [a, b, c] = [0, 1, 2].map(|at| u32::from(chunk.get(at).copied().unwrap_or(0)));
        let bits = a << 16 | b << 8 | c;
        for place in 0..4 {
            let index = usize::try_from(bits >> (18 - 6 * place) & 63).expect("six bits fit");
            text.push(if place > chunk.len() {
                '='
            } else {
                char::from(ALPHABET[index])
            });
        }
    }
    text
}

pub(super) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut held) = (0_u32, 0);
    for symbol in text.trim_ascii().iter().filter(|symbol| **symbol != b'=') {
        let value = ALPHABET.iter().position(|known| known == symbol)?;
        bits = (bits << 6 | u32::try_from(value).ok()?) & 0xff_ffff;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push(u8::try_from(bits >> held & 0xff).expect("eight bits fit"));
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_comes_back() {
        for (plain, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
            ("user:pass~ÿ", "dXNlcjpwYXNzfsO/"),
        ] {
            assert_eq!(encode(plain.as_bytes()), text);
            assert_eq!(decode(text.as_bytes()).unwrap(), plain.as_bytes());
        }
        assert!(decode(b"a:b").is_none());
    }

    #[test]
    fn a_needle_is_found_after_false_starts() {
        assert_eq!(find(b"secsecret_x", b"secret_x"), Some(3));
        assert_eq!(find(b"sssss", b"ss_"), None);
        assert_eq!(find(b"", b"x"), None);
        assert_eq!(find(b"abc", b""), None);
    }

    #[test]
    fn a_secret_in_a_query_cannot_end_it() {
        assert_eq!(percent_encode("a&b=c #ü"), "a%26b%3Dc%20%23%C3%BC");
    }
}
