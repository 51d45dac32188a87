//! One line of an allow list, as text or as a table, and which addresses a connection under it may go to.

use std::fmt;
use std::net::IpAddr;

use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use url::Host;

use super::host::shown;
use super::{AddressKind, Destination, Target, address_kind};

/// Never sent: `CONNECT` makes a tunnel past every check, `TRACE` returns headers that the host filled in.
const NEVER: [&str; 2] = ["CONNECT", "TRACE"];

/// One line of an allow list: `"https://api.example.com"`, or a table with `to` and what else is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Where requests may go.
    pub to: Target,
    /// Only these methods, in capitals; none: all but `CONNECT` and `TRACE`.
    pub methods: Option<Vec<String>>,
    /// Whether its names may lead to addresses of inner networks.
    pub private: bool,
    /// Whether requests carry the job's `Idempotency-Key`. It is the same for every request of the job, in all its
    /// attempts: a job with several requests that must each take effect gives each a key of its own, which is left as it
    /// is. `GET`, `HEAD` and `OPTIONS` carry none.
    pub idempotency_key: bool,
}

/// Why a rule cannot name a method. The texts are for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MethodError {
    /// `CONNECT` or `TRACE`.
    #[error("the method `{0}` is never allowed; remove it")]
    Never(String),
    /// With small letters; methods are compared as they are.
    #[error("the method `{0}` has small letters; write `{upper}`", upper = .0.to_ascii_uppercase())]
    Lower(String),
    /// Something like a wildcard.
    #[error("the method `*` is none; leave `methods` out to allow all")]
    Wildcard,
    /// Not an HTTP token.
    #[error("`{0}` is not an HTTP method; write one such as `GET`")]
    NoToken(String),
}

impl Rule {
    /// Whether this rule lets a connection for `to` go to this address, to which the name was resolved. Public addresses
    /// may be connected to; private ones where the rule says `private`; those of metadata services only where the rule
    /// also names this very address and not a name.
    ///
    /// # Errors
    /// What the address is. An address that is not the one `to` names is [`AddressKind::Unusable`].
    pub fn permits(&self, to: &Destination, address: IpAddr) -> Result<(), AddressKind> {
        let address = address.to_canonical();
        let named = literal(&to.host);
        if named.is_some_and(|named| named != address) {
            return Err(AddressKind::Unusable);
        }
        let kind = address_kind(address);
        let permitted = match kind {
            AddressKind::Public => true,
            AddressKind::Private => self.private,
            AddressKind::Metadata => {
                let ruled = self.to.host().and_then(literal);
                self.private && named.is_some() && ruled == named
            }
            AddressKind::Unusable => false,
        };
        if permitted { Ok(()) } else { Err(kind) }
    }

    pub(super) fn covers_method(&self, method: &str) -> bool {
        let listed = match &self.methods {
            Some(methods) => methods.iter().any(|listed| listed == method),
            None => true,
        };
        listed && is_token(method) && !is_never(method)
    }
}

/// The address that a host is, IPv4 where IPv6 only maps it.
fn literal(host: &Host<String>) -> Option<IpAddr> {
    match host {
        Host::Domain(_) => None,
        Host::Ipv4(address) => Some(IpAddr::V4(*address)),
        Host::Ipv6(address) => Some(IpAddr::V6(*address).to_canonical()),
    }
}

/// In any case of letters: some servers do not mind it.
fn is_never(method: &str) -> bool {
    NEVER.iter().any(|never| never.eq_ignore_ascii_case(method))
}

/// A token as RFC 9110, section 5.6.2 has it: nothing that could end the request line.
fn is_token(method: &str) -> bool {
    !method.is_empty()
        && method
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

fn check_method(method: &str) -> Result<(), MethodError> {
    let shown = || shown(method);
    if method == "*" {
        Err(MethodError::Wildcard)
    } else if !is_token(method) {
        Err(MethodError::NoToken(shown()))
    } else if is_never(method) {
        Err(MethodError::Never(shown()))
    } else if method.bytes().any(|b| b.is_ascii_lowercase()) {
        Err(MethodError::Lower(shown()))
    } else {
        Ok(())
    }
}

/// The table form. A struct of its own, so that the reader marks the very key or value that is wrong.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    to: Target,
    #[serde(default)]
    methods: Option<Methods>,
    #[serde(default)]
    private: bool,
    #[serde(default)]
    idempotency_key: bool,
}

struct Methods(Vec<String>);

impl<'de> Deserialize<'de> for Methods {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let methods = Vec::<Method>::deserialize(deserializer)?;
        if methods.is_empty() {
            return Err(de::Error::custom(
                "`methods` is empty, so the rule allows nothing; leave it out to allow all methods",
            ));
        }
        Ok(Self(methods.into_iter().map(|method| method.0).collect()))
    }
}

struct Method(String);

impl<'de> Deserialize<'de> for Method {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = Method;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a method such as \"GET\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Method, E> {
                check_method(text).map_err(E::custom)?;
                Ok(Method(text.to_owned()))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrTable;
        impl<'de> de::Visitor<'de> for TextOrTable {
            type Value = Rule;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a target such as \"https://api.example.com\", or a table with `to`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Rule, E> {
                Ok(Rule {
                    to: text.parse().map_err(E::custom)?,
                    methods: None,
                    private: false,
                    idempotency_key: false,
                })
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Rule, A::Error> {
                let table = Table::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(Rule {
                    to: table.to,
                    methods: table.methods.map(|methods| methods.0),
                    private: table.private,
                    idempotency_key: table.idempotency_key,
                })
            }
        }
        deserializer.deserialize_any(TextOrTable)
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.methods.is_none() && !self.private && !self.idempotency_key {
            return self.to.serialize(serializer);
        }
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("to", &self.to)?;
        if let Some(methods) = &self.methods {
            map.serialize_entry("methods", methods)?;
        }
        if self.private {
            map.serialize_entry("private", &true)?;
        }
        if self.idempotency_key {
            map.serialize_entry("idempotency_key", &true)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Policy, destination};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct File {
        allow: Policy,
    }

    #[test]
    fn rules_are_read_from_text_and_tables_and_written_back() {
        let text = r#"
            allow = [
                "https://api.example.com",
                { to = "HTTP://10.0.0.5:8080", methods = ["GET", "X-OWN"], private = true, idempotency_key = true },
                { to = "*", private = false },
            ]
        "#;
        let file: File = toml::from_str(text).unwrap();
        assert_eq!(
            file.allow.0[1],
            Rule {
                to: "http://10.0.0.5:8080".parse().unwrap(),
                methods: Some(vec!["GET".to_owned(), "X-OWN".to_owned()]),
                private: true,
                idempotency_key: true,
            }
        );
        let written = toml::to_string(&file).unwrap();
        assert!(
            written.contains("[\"https://api.example.com\", {"),
            "{written}"
        );
        assert!(written.contains(", \"*\"]"), "{written}");
        assert_eq!(toml::from_str::<File>(&written).unwrap(), file);
    }

    #[test]
    fn what_is_no_rule_is_refused_at_its_place() {
        for (rule, place, message) in [
            (
                r#""example.com""#,
                r#""example.com""#,
                "write `https://example.com`",
            ),
            (
                "1",
                "1",
                "expected a target such as \"https://api.example.com\", or a table with `to`",
            ),
            (
                "{ private = true }",
                "{ private = true }",
                "missing field `to`",
            ),
            (
                r#"{ to = "*", methds = ["GET"] }"#,
                "methds",
                "unknown field `methds`, expected one of `to`, `methods`, `private`, `idempotency_key`",
            ),
            (
                r#"{ to = "https://a/b" }"#,
                r#""https://a/b""#,
                "has a path",
            ),
            (r#"{ to = 5 }"#, "5", "expected a target such as"),
            (
                r#"{ to = "*", private = "yes" }"#,
                r#""yes""#,
                "expected a boolean",
            ),
            (
                r#"{ to = "*", methods = "GET" }"#,
                r#""GET""#,
                "expected a sequence",
            ),
            (r#"{ to = "*", methods = [] }"#, "[]", "`methods` is empty"),
            (
                r#"{ to = "*", methods = ["GET", "post"] }"#,
                r#""post""#,
                "the method `post` has small letters; write `POST`",
            ),
            (
                r#"{ to = "*", methods = ["CONNECT"] }"#,
                r#""CONNECT""#,
                "is never allowed; remove it",
            ),
            (
                r#"{ to = "*", methods = ["trace"] }"#,
                r#""trace""#,
                "is never allowed; remove it",
            ),
            (
                r#"{ to = "*", methods = ["*"] }"#,
                r#""*""#,
                "leave `methods` out",
            ),
            (
                r#"{ to = "*", methods = ["GE T"] }"#,
                r#""GE T""#,
                "`GE T` is not an HTTP method",
            ),
            (
                r#"{ to = "*", methods = ["GET", 7] }"#,
                "7",
                "expected a method such as \"GET\"",
            ),
            (
                r#"{ to = "*", methods = [""] }"#,
                r#""""#,
                "is not an HTTP method",
            ),
        ] {
            let text = format!("# a file\nallow = [\"https://a.example\", {rule}]\n");
            let error = toml::from_str::<File>(&text).unwrap_err();
            assert!(error.message().contains(message), "{rule}: {error}");
            let span = error.span().unwrap();
            assert_eq!(&text[span], place, "{error}");
        }
    }

    #[test]
    fn addresses_are_permitted_by_kind() {
        let (public, inner, cloud) = ("8.8.8.8", "10.0.0.5", "169.254.169.254");
        for (target, private, url, address, answer) in [
            ("*", false, "http://a.example", public, Ok(())),
            ("*", false, "http://a.example", "2606:4700::1111", Ok(())),
            (
                "*",
                false,
                "http://a.example",
                inner,
                Err(AddressKind::Private),
            ),
            ("*", true, "http://a.example", inner, Ok(())),
            ("*", true, "http://a.example", "::ffff:10.0.0.5", Ok(())),
            ("*", true, "http://a.example", "::1", Ok(())),
            (
                "*",
                true,
                "http://a.example",
                cloud,
                Err(AddressKind::Metadata),
            ),
            (
                "*",
                true,
                "http://169.254.169.254",
                cloud,
                Err(AddressKind::Metadata),
            ),
            (
                "http://169.254.169.254",
                true,
                "http://169.254.169.254",
                cloud,
                Ok(()),
            ),
            (
                "http://169.254.169.254",
                true,
                "http://169.254.169.254",
                "::ffff:169.254.169.254",
                Ok(()),
            ),
            (
                "http://169.254.169.254",
                false,
                "http://169.254.169.254",
                cloud,
                Err(AddressKind::Metadata),
            ),
            (
                "http://169.254.169.253",
                true,
                "http://169.254.169.254",
                cloud,
                Err(AddressKind::Metadata),
            ),
            (
                "http://169.254.169.254",
                true,
                "http://a.example",
                cloud,
                Err(AddressKind::Metadata),
            ),
            (
                "http://a.example",
                true,
                "http://a.example",
                cloud,
                Err(AddressKind::Metadata),
            ),
            (
                "http://[fd00:ec2::254]",
                true,
                "http://[fd00:ec2::254]",
                "fd00:ec2::254",
                Ok(()),
            ),
            (
                "*",
                true,
                "http://a.example",
                "0.0.0.0",
                Err(AddressKind::Unusable),
            ),
            (
                "http://0.0.0.0",
                true,
                "http://0.0.0.0",
                "0.0.0.0",
                Err(AddressKind::Unusable),
            ),
            (
                "*",
                true,
                "http://8.8.8.8",
                "8.8.4.4",
                Err(AddressKind::Unusable),
            ),
            ("*", true, "http://8.8.8.8", "::ffff:8.8.8.8", Ok(())),
            ("*", true, "http://[::ffff:8.8.8.8]", public, Ok(())),
            (
                "*",
                false,
                "http://[::ffff:10.0.0.5]",
                inner,
                Err(AddressKind::Private),
            ),
        ] {
            let rule = Rule {
                to: target.parse().unwrap(),
                methods: None,
                private,
                idempotency_key: false,
            };
            let (_, to) = destination(url).unwrap();
            let permitted = rule.permits(&to, address.parse().unwrap());
            assert_eq!(permitted, answer, "{target} {private} {url} {address}");
        }
    }
}
