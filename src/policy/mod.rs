//! Which HTTP destinations a handler may call, and which addresses a connection may go to. Pure: it resolves no name and
//! opens no connection. What is checked here is what was written: a URL that two readers could understand differently is
//! refused, never repaired.

mod address;
mod destination;
mod host;
mod rule;
mod target;

use std::cmp::Reverse;

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
    /// The most specific rule that covers the destination and the method, wherever it stands in the list: one host before
    /// the names below one (`*.example.com`), a longer name there before a shorter one, then any host; within the same
    /// host, one port before any port; the scheme's `*` before the `*` for everything. Of equals, the first. Methods are
    /// compared as they are written; that a rule names fewer of them does not make it more specific.
    ///
    /// # Errors
    /// [`Miss::Method`] when only the method stands in the way. `CONNECT`, `TRACE` and what is not an HTTP token always miss.
    pub fn find(&self, method: &str, to: &Destination) -> Result<&Rule, Miss> {
        let over = || self.0.iter().filter(|rule| rule.to.matches(to));
        let covering = over().filter(|rule| rule.covers_method(method));
        // The first of the smallest; of the largest it would be the last.
        if let Some(rule) = covering.min_by_key(|rule| Reverse(rule.to.narrowness())) {
            return Ok(rule);
        }
        let mut allowed: Vec<String> = Vec::new();
        for rule in over() {
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
        if allowed.is_empty() {
            Err(Miss::Destination)
        } else {
            Err(Miss::Method(allowed))
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
    fn a_rule_counts_if_it_covers_destination_and_method() {
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
    fn the_most_specific_rule_counts_wherever_it_stands() {
        let url = to("https://a.db.example.com");
        let wider = [
            "*",
            "https://*:*",
            "https://*",
            "https://*.com.example:*",
            "https://*.example.com:*",
            "https://*.example.com",
            "https://*.db.example.com:*",
            "https://*.db.example.com",
            "https://a.db.example.com:*",
            "https://a.db.example.com",
        ];
        for (index, target) in wider.iter().enumerate() {
            let mut policy = Policy(wider[..=index].iter().map(|to| rule(to, None)).collect());
            let counts = if index == 3 { "https://*" } else { target };
            for _ in 0..2 {
                let found = policy.find("GET", &url).unwrap();
                assert_eq!(found.to, counts.parse().unwrap());
                policy.0.reverse();
            }
        }
        let private = Rule {
            private: true,
            ..rule("https://a.db.example.com", None)
        };
        let policy = Policy(vec![rule("https://*.example.com", None), private.clone()]);
        assert_eq!(policy.find("GET", &url), Ok(&private));
        let twice = Policy(vec![
            private.clone(),
            rule("https://a.db.example.com", None),
        ]);
        assert_eq!(policy.find("GET", &url), Ok(&private));
        assert_eq!(twice.find("GET", &url), Ok(&twice.0[0]));
        // A rule for other methods is no rule for this one.
        let other = Policy(vec![
            rule("*", None),
            rule("https://*", None),
            rule("https://a.db.example.com", Some(&["GET"])),
        ]);
        assert_eq!(other.find("POST", &url), Ok(&other.0[1]));
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
