//! A pattern of destinations, as one writes it into an allow list. It names scheme, host and port and nothing else, and a
//! wildcard stands only where it cannot be misread.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use url::Host;

use super::host::{self, HostError};
use super::{Destination, Scheme};

/// Names of one label that are used inside companies and machines, never on the internet. `*.com` would cover half of it.
const INNER_TOPS: [&str; 9] = [
    "internal",
    "local",
    "localhost",
    "lan",
    "test",
    "intranet",
    "corp",
    "home",
    "svc",
];

/// A pattern of destinations: `https://api.example.com`, `https://*.example.com:8443`, `http://10.0.0.5:8080`,
/// `http://[fd00::5]`, `https://*`, `https://*:*`, or `*` alone for everything. Without a port it means the scheme's own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target(Pattern);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Pattern {
    /// `*`
    Everything,
    Some {
        scheme: Scheme,
        host: Hosts,
        /// None: any.
        port: Option<u16>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Hosts {
    /// Any name or address.
    Any,
    /// Names below this one, at any depth; not the name itself, and no address.
    Below(String),
    One(Host<String>),
}

/// Why a text is no target. The texts are for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// Nothing is there.
    #[error("the target is empty; write one such as `https://api.example.com`")]
    Empty,
    /// Something that URLs do not have.
    #[error("the target has the character `{}` at byte {at}; remove it", .character.escape_debug())]
    Character {
        /// A control character, white space or `\`.
        character: char,
        /// Its position, counted from 0.
        at: usize,
    },
    /// No scheme.
    #[error("the target `{0}` has no scheme; write `https://{0}`")]
    NoScheme(String),
    /// Neither http nor https.
    #[error("the target's scheme `{scheme}` is not `https` or `http`; write `https://{rest}`")]
    Scheme {
        /// As written.
        scheme: String,
        /// What follows it.
        rest: String,
    },
    /// A user or password.
    #[error("the target has an `@`, but it names no user; write only scheme, host and port")]
    UserInfo,
    /// A path, be it `/` alone.
    #[error("the target has a path, but every path of a host is allowed or none; write `{0}`")]
    Path(String),
    /// A query.
    #[error("the target has a query, which no rule can check; write `{0}`")]
    Query(String),
    /// A fragment.
    #[error("the target has a fragment, which is never sent; write `{0}`")]
    Fragment(String),
    /// A `*` where it has no meaning.
    #[error(
        "the target `{0}` has a `*` inside its host; it can stand for the whole host (`https://*`) or for what is below a \
         name (`https://*.example.com`)"
    )]
    Wildcard(String),
    /// `*.` in front of an address.
    #[error(
        "the target's `*.{0}` has an IP address after the `*.`, and nothing is below one; write the address alone"
    )]
    BelowAddress(String),
    /// `*.` in front of a single label.
    #[error(
        "the target's `*.{0}` would cover every name that ends in `.{0}`, whoever owns it; name one more label, such as \
         `*.example.{0}`"
    )]
    BelowTop(String),
    /// A host that cannot be used.
    #[error("the target's host `{host}` cannot be used: {reason}")]
    Host {
        /// As written, at most 80 characters of it.
        host: String,
        /// What is wrong.
        reason: HostError,
    },
    /// Neither `*` nor a number from 1 to 65535.
    #[error(
        "the target's port `{0}` is not a number from 1 to 65535; correct it, write `*` for any, or remove it with its colon"
    )]
    Port(String),
}

impl Target {
    /// Whether it covers the destination. A name is compared whole: `*.example.com` covers neither `example.com` nor
    /// `evil-example.com`.
    pub fn matches(&self, to: &Destination) -> bool {
        match &self.0 {
            Pattern::Everything => true,
            Pattern::Some { scheme, host, port } => {
                *scheme == to.scheme
                    && port.is_none_or(|port| port == to.port)
                    && host.matches(&to.host)
            }
        }
    }

    /// How little it covers, as far as hosts and ports go; more is narrower. Of two targets that cover a destination, the
    /// one whose text says more about it.
    pub(super) fn narrowness(&self) -> (usize, bool, bool) {
        match &self.0 {
            Pattern::Everything => (0, false, false),
            Pattern::Some { host, port, .. } => {
                let host = match host {
                    Hosts::Any => 0,
                    Hosts::Below(name) => name.len(),
                    Hosts::One(_) => usize::MAX,
                };
                (host, port.is_some(), true)
            }
        }
    }

    /// The host where the target names exactly one.
    pub(super) fn host(&self) -> Option<&Host<String>> {
        match &self.0 {
            Pattern::Some {
                host: Hosts::One(host),
                ..
            } => Some(host),
            Pattern::Some { .. } | Pattern::Everything => None,
        }
    }
}

impl Hosts {
    fn matches(&self, host: &Host<String>) -> bool {
        match self {
            Self::Any => true,
            Self::One(one) => one == host,
            Self::Below(suffix) => match host {
                Host::Domain(name) => name
                    .strip_suffix(suffix.as_str())
                    .and_then(|start| start.strip_suffix('.'))
                    .is_some_and(|start| !start.is_empty()),
                Host::Ipv4(_) | Host::Ipv6(_) => false,
            },
        }
    }

    fn read(text: &str) -> Result<Self, TargetError> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let suffix = text.strip_prefix("*.");
        let name = suffix.unwrap_or(text);
        if name.contains('*') {
            return Err(TargetError::Wildcard(host::shown(text)));
        }
        let host = host::host(name).map_err(|reason| TargetError::Host {
            host: host::shown(text),
            reason,
        })?;
        if suffix.is_none() {
            return Ok(Self::One(host));
        }
        match host {
            Host::Domain(name) if name.contains('.') || INNER_TOPS.contains(&name.as_str()) => {
                Ok(Self::Below(name))
            }
            Host::Domain(name) => Err(TargetError::BelowTop(name)),
            Host::Ipv4(_) | Host::Ipv6(_) => Err(TargetError::BelowAddress(host::shown(name))),
        }
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        if text == "*" {
            return Ok(Self(Pattern::Everything));
        }
        if text.is_empty() {
            return Err(TargetError::Empty);
        }
        if let Some((at, character)) = host::odd_character(text) {
            return Err(TargetError::Character { character, at });
        }
        // First of all, so that no message shows a password.
        if text.contains('@') {
            return Err(TargetError::UserInfo);
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(TargetError::NoScheme(host::shown(text)));
        };
        let Some(scheme) = Scheme::read(scheme) else {
            return Err(TargetError::Scheme {
                scheme: host::shown(scheme),
                rest: host::shown(rest),
            });
        };
        if let Some(end) = rest.find(['/', '?', '#']) {
            let bare = format!("{scheme}://{}", host::shown(&rest[..end]));
            return Err(match rest.as_bytes()[end] {
                b'/' => TargetError::Path(bare),
                b'?' => TargetError::Query(bare),
                _ => TargetError::Fragment(bare),
            });
        }
        let (name, port) = host::split_port(rest);
        let host = Hosts::read(name)?;
        let port = match port {
            None => Some(scheme.default_port()),
            Some("*") => None,
            Some(text) => {
                Some(host::port(text).ok_or_else(|| TargetError::Port(host::shown(text)))?)
            }
        };
        Ok(Self(Pattern::Some { scheme, host, port }))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pattern::Some { scheme, host, port } = &self.0 else {
            return f.write_str("*");
        };
        write!(f, "{scheme}://")?;
        match host {
            Hosts::Any => f.write_str("*")?,
            Hosts::Below(suffix) => write!(f, "*.{suffix}")?,
            Hosts::One(host) => write!(f, "{host}")?,
        }
        match port {
            None => f.write_str(":*"),
            Some(port) if *port == scheme.default_port() => Ok(()),
            Some(port) => write!(f, ":{port}"),
        }
    }
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Target {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = Target;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a target such as \"https://api.example.com\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Target, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_covers_what_it_says_and_nothing_else() {
        for (target, covered, not) in [
            (
                "https://api.example.com",
                &["https://api.example.com", "https://API.example.com.:443/x"] as &[&str],
                &[
                    "http://api.example.com",
                    "https://api.example.com:8443",
                    "https://example.com",
                    "https://a.api.example.com",
                    "https://api.example.com.evil.example",
                ] as &[&str],
            ),
            (
                "https://*.example.com:8443",
                &["https://a.example.com:8443", "https://a.b.example.com:8443"],
                &[
                    "https://a.example.com",
                    "https://example.com:8443",
                    "https://evil-example.com:8443",
                    "https://aexample.com:8443",
                    "https://a.example.com.evil.example:8443",
                ],
            ),
            (
                "http://10.0.0.5:8080",
                &[
                    "http://10.0.0.5:8080",
                    "http://10.5:8080",
                    "http://0xa000005:8080",
                ],
                &[
                    "http://10.0.0.5",
                    "http://10.0.0.6:8080",
                    "http://[::ffff:10.0.0.5]:8080",
                ],
            ),
            (
                "http://[fd00::5]:80",
                &["http://[fd00::5]", "http://[fd00:0:0::0005]"],
                &["http://[fd00::6]", "http://fd00"],
            ),
            (
                "https://*",
                &["https://example.com", "https://10.0.0.5", "https://[::1]"],
                &["http://example.com", "https://example.com:8443"],
            ),
            (
                "http://*:*",
                &[
                    "http://example.com",
                    "http://10.0.0.5:1",
                    "http://[::1]:65535",
                ],
                &["https://example.com"],
            ),
            (
                "*",
                &["https://example.com:1", "http://[::1]", "http://1.2.3.4"],
                &[],
            ),
            (
                "https://*.BÜCHER.example",
                &["https://a.bücher.example"],
                &["https://bücher.example"],
            ),
            (
                "https://*.internal",
                &["https://db.internal"],
                &["https://internal", "https://db.eternal"],
            ),
        ] {
            let target: Target = target.parse().unwrap_or_else(|e| panic!("{target}: {e}"));
            for (urls, answer) in [(covered, true), (not, false)] {
                for url in urls {
                    let to = crate::policy::destination(url).unwrap().1;
                    assert_eq!(target.matches(&to), answer, "{target} {url}");
                }
            }
        }
    }

    #[test]
    fn targets_are_shown_in_their_shortest_form() {
        for (text, shown) in [
            ("*", "*"),
            ("HTTPS://API.Example.com.:443", "https://api.example.com"),
            ("http://example.com:443", "http://example.com:443"),
            ("https://*:443", "https://*"),
            ("https://*:*", "https://*:*"),
            (
                "https://*.bücher.example:*",
                "https://*.xn--bcher-kva.example:*",
            ),
            ("http://0x7f.1:80", "http://127.0.0.1"),
            ("http://[0:0::1]:8080", "http://[::1]:8080"),
            ("https://*.home.arpa", "https://*.home.arpa"),
            ("https://*.LocalHost.", "https://*.localhost"),
        ] {
            let target: Target = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(target.to_string(), shown);
            assert_eq!(shown.parse(), Ok(target), "{text}");
        }
    }

    #[test]
    fn what_is_no_target_is_refused_with_advice() {
        for (text, message) in [
            (
                "",
                "the target is empty; write one such as `https://api.example.com`",
            ),
            (
                "api.example.com",
                "the target `api.example.com` has no scheme; write `https://api.example.com`",
            ),
            (
                "*.example.com",
                "the target `*.example.com` has no scheme; write `https://*.example.com`",
            ),
            ("*:443", "has no scheme; write `https://*:443`"),
            (
                "ftp://example.com",
                "the target's scheme `ftp` is not `https` or `http`; write `https://example.com`",
            ),
            ("*://example.com", "scheme `*` is not"),
            ("https://me:pw@example.com", "has an `@`"),
            ("me:pw@example.com", "has an `@`"),
            (
                "https://example.com/",
                "has a path, but every path of a host is allowed or none; write `https://example.com`",
            ),
            ("https://example.com/v1?x", "has a path"),
            (
                "https://example.com?x=/",
                "has a query, which no rule can check; write `https://example.com`",
            ),
            ("https://example.com#x", "has a fragment"),
            ("https:///", "has a path"),
            ("https://a*.example.com", "has a `*` inside its host"),
            ("https://a.*.com", "has a `*` inside its host"),
            ("https://*.*", "has a `*` inside its host"),
            ("https://**", "has a `*` inside its host"),
            ("https://*example.com", "has a `*` inside its host"),
            (
                "https://*.com",
                "the target's `*.com` would cover every name that ends in `.com`, whoever owns it; name one more label, such as `*.example.com`",
            ),
            ("https://*.com.", "would cover every name"),
            (
                "https://*.",
                "the target's host `*.` cannot be used: it is empty",
            ),
            ("https://*.10.0.0.5", "has an IP address after the `*.`"),
            ("https://*.0x7f", "has an IP address after the `*.`"),
            ("https://*.[::1]", "has an IP address after the `*.`"),
            ("https://", "cannot be used: it is empty"),
            ("https://:80", "cannot be used: it is empty"),
            ("https://fd00::5", "write an IPv6 address in brackets"),
            ("https://a..b", "has an empty label"),
            ("https://%61.example", "has a `%`"),
            (
                "https://example.com:0",
                "the target's port `0` is not a number",
            ),
            (
                "https://example.com:",
                "the target's port `` is not a number",
            ),
            (
                "https://example.com:8*",
                "the target's port `8*` is not a number",
            ),
            (
                "https://example.com:99999",
                "is not a number from 1 to 65535",
            ),
            (
                " https://example.com",
                "the target has the character ` ` at byte 0; remove it",
            ),
            (
                "https://example.com\n",
                "the target has the character `\\n` at byte 19; remove it",
            ),
            (
                "https:\\\\example.com",
                "the target has the character `\\\\` at byte 6; remove it",
            ),
        ] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains(message), "`{text}`: {error}");
            assert!(!error.contains("pw"), "{error}");
        }
    }
}
