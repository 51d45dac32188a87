//! Which HTTP destinations a handler may call, and which addresses a connection may go to. Pure: it resolves no name and
//! opens no connection. What is checked here is what was written: a URL that two readers could understand differently is
//! refused, never repaired.

mod address;
mod destination;
mod host;
mod rule;
mod target;

use serde::{Deserialize, Serialize};

pub use address::{AddressKind, address_kind};
pub use destination::{Destination, Scheme, UrlError, destination};
pub use host::HostError;
pub use rule::{MethodError, Rule};
pub use target::{Target, TargetError};

/// What a rule without methods covers, for messages. It covers uncommon ones too.
const USUAL_METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// An allow list; empty: nothing is allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Policy(pub Vec<Rule>);

/// Why no rule allows a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Miss {
    /// No rule covers the destination.
    Destination,
    /// A rule does, but for other methods; these are allowed. Never empty; where a rule allows every method, the usual
    /// ones.
    Method(Vec<String>),
}

impl Policy {
    /// The first rule that covers the destination and the method. Methods are compared as they are written.
    ///
    /// # Errors
    /// [`Miss::Method`] when only the method stands in the way. `CONNECT`, `TRACE` and what is not an HTTP token always miss.
    pub fn find(&self, method: &str, to: &Destination) -> Result<&Rule, Miss> {
        let mut allowed: Vec<String> = Vec::new();
        let mut covered = false;
        for rule in self.0.iter().filter(|rule| rule.to.matches(to)) {
            if rule.covers_method(method) {
                return Ok(rule);
            }
            covered = true;
            let names: Vec<&str> = match &rule.methods {
                Some(methods) => methods.iter().map(String::as_str).collect(),
                None => USUAL_METHODS.to_vec(),
            };
            for name in names {
                if rule.covers_method(name) && !allowed.iter().any(|other| other == name) {
                    allowed.push(name.to_owned());
                }
            }
        }
        if covered && !allowed.is_empty() {
            Err(Miss::Method(allowed))
        } else {
            Err(Miss::Destination)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(to: &str, methods: Option<&[&str]>) -> Rule {
        Rule {
            to: to.parse().unwrap(),
            methods: methods.map(|methods| methods.iter().map(|&name| name.to_owned()).collect()),
            private: false,
            idempotency_key: false,
        }
    }

    fn to(url: &str) -> Destination {
        destination(url).unwrap().1
    }

    #[test]
    fn the_first_rule_that_covers_destination_and_method_counts() {
        let policy = Policy(vec![
            rule("https://api.example.com", Some(&["GET", "HEAD"])),
            rule("https://*.example.com", Some(&["GET", "POST"])),
            rule("https://open.example.com", None),
        ]);
        let api = to("https://api.example.com/x");
        assert_eq!(policy.find("GET", &api), Ok(&policy.0[0]));
        assert_eq!(policy.find("POST", &api), Ok(&policy.0[1]));
        let allowed = ["GET", "HEAD", "POST"].map(str::to_owned).to_vec();
        assert_eq!(policy.find("PUT", &api), Err(Miss::Method(allowed)));
        let open = to("https://open.example.com");
        assert_eq!(policy.find("PROPFIND", &open), Ok(&policy.0[2]));
        assert_eq!(
            policy.find("GET", &to("http://api.example.com")),
            Err(Miss::Destination)
        );
        assert_eq!(Policy::default().find("GET", &api), Err(Miss::Destination));
    }

    #[test]
    fn no_rule_covers_connect_trace_or_what_is_no_method() {
        let everything = Policy(vec![
            rule("*", None),
            rule("*", Some(&["CONNECT", "TRACE", "trace"])),
        ]);
        for method in ["CONNECT", "TRACE", "trace", "Connect", "", "GET /", "G\r\n"] {
            let Err(Miss::Method(allowed)) = everything.find(method, &to("http://example.com"))
            else {
                panic!("`{method}` is covered");
            };
            assert_eq!(allowed, USUAL_METHODS);
        }
        let only = Policy(vec![rule("*", Some(&["CONNECT"]))]);
        assert_eq!(
            only.find("CONNECT", &to("http://example.com")),
            Err(Miss::Destination)
        );
    }

    #[test]
    fn methods_are_compared_as_they_are() {
        let policy = Policy(vec![rule("https://example.com", Some(&["GET"]))]);
        assert_eq!(
            policy.find("get", &to("https://example.com")),
            Err(Miss::Method(vec!["GET".to_owned()]))
        );
    }
}
