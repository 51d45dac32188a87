//! Hosts and ports as they are written in URLs and in targets: read the same way in both, so that what a target names is
//! what a request names.

use url::Host;

/// A name in DNS has at most 253 characters (RFC 1035, without the dot at the end).
const NAME_MAX: usize = 253;
/// One label of it has at most 63.
const LABEL_MAX: usize = 63;

/// Why a host cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// Nothing is there.
    #[error("it is empty; write a name or an IP address")]
    Empty,
    /// Neither a name nor an address, by the rules of URLs.
    #[error("it is neither a host name nor an IP address: {0}")]
    Unreadable(url::ParseError),
    /// An IPv6 address without brackets.
    #[error("it has several colons; write an IPv6 address in brackets, such as `[fd00::5]`")]
    Brackets,
    /// Percent-encoding, which some readers decode and others do not.
    #[error("it has a `%`; write the name itself, without percent-encoding and without a zone")]
    Percent,
    /// Two dots in a row, or one in front.
    #[error("it has an empty label; remove the dot too many")]
    EmptyLabel,
    /// A label that DNS cannot hold.
    #[error("its label `{0}` has more than 63 characters, which DNS does not allow")]
    LongLabel(String),
    /// A name that DNS cannot hold.
    #[error("it has {0} characters, DNS allows 253")]
    Long(usize),
    /// A character that no name in DNS has.
    #[error("it has the character `{}`; use letters, digits, `-`, `_` and dots", .0.escape_debug())]
    Character(char),
    /// A label with a hyphen at an end.
    #[error("its label `{0}` begins or ends with `-`, which DNS does not allow")]
    Hyphen(String),
}

/// The first character that a URL may not have and that parsers remove or replace in silence: control characters, white
/// space and `\`. With its position in bytes.
pub(super) fn odd_character(text: &str) -> Option<(usize, char)> {
    text.char_indices()
        .find(|(_, c)| c.is_control() || c.is_whitespace() || *c == '\\')
}

/// Cuts `host:port` at the colon. A text that cannot be cut is all host, and [`host`] says what is wrong with it.
pub(super) fn split_port(authority: &str) -> (&str, Option<&str>) {
    let (start, rest) = match authority.rfind(']') {
        Some(end) => (end + 1, &authority[end + 1..]),
        None => (0, authority),
    };
    match rest.split_once(':') {
        Some((before, port)) if !port.contains(':') && (start == 0 || before.is_empty()) => {
            (&authority[..start + before.len()], Some(port))
        }
        _ => (authority, None),
    }
}

/// A port from 1 to 65535 in decimal digits.
pub(super) fn port(text: &str) -> Option<u16> {
    // Five digits hold every port; `parse` alone would take `+80` too.
    let digits = (1..=5).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|&port: &u16| digits && port != 0)
}

/// Reads a host as the URL standard does (lower case, punycode, every spelling of an IPv4 address is an address), takes one
/// dot from its end, and holds a name against the rules of DNS.
pub(super) fn host(text: &str) -> Result<Host<String>, HostError> {
    if text.is_empty() {
        return Err(HostError::Empty);
    }
    if text.contains('%') {
        return Err(HostError::Percent);
    }
    if !text.starts_with('[') && text.contains(':') {
        return Err(HostError::Brackets);
    }
    let host = Host::parse(text).map_err(HostError::Unreadable)?;
    let Host::Domain(mut name) = host else {
        return Ok(host);
    };
    if name.ends_with('.') {
        name.pop();
        check(&name)?;
        // Read again: without its dot a name must not turn out to be an address that nobody checked.
        return Host::parse(&name).map_err(HostError::Unreadable);
    }
    check(&name)?;
    Ok(Host::Domain(name))
}

/// Letters, digits and hyphens, as hosts have them, and `_`, which real names have.
fn check(name: &str) -> Result<(), HostError> {
    if name.len() > NAME_MAX {
        return Err(HostError::Long(name.len()));
    }
    for label in name.split('.') {
        if label.is_empty() {
            return Err(HostError::EmptyLabel);
        }
        if let Some(odd) = label
            .chars()
            .find(|c| !matches!(c, 'a'..='z' | '0'..='9' | '-' | '_'))
        {
            return Err(HostError::Character(odd));
        }
        if label.len() > LABEL_MAX {
            return Err(HostError::LongLabel(label.to_owned()));
        }
        if label.starts_with('-') || label.ends_with('-') {
            return Err(HostError::Hyphen(label.to_owned()));
        }
    }
    Ok(())
}

/// A text for a message: at most 80 characters, those that do not print escaped.
pub(super) fn shown(text: &str) -> String {
    let start: String = text.chars().take(80).collect();
    start.escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn names_are_normalised() {
        for (text, name) in [
            ("example.com", "example.com"),
            ("EXAMPLE.Com", "example.com"),
            ("example.com.", "example.com"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("BÜCHER.example。", "xn--bcher-kva.example"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("my_service", "my_service"),
            ("r3---a.example.com", "r3---a.example.com"),
            ("1.example", "1.example"),
        ] {
            assert_eq!(host(text), Ok(Host::Domain(name.to_owned())), "{text}");
        }
    }

    #[test]
    fn every_spelling_of_an_address_is_an_address() {
        for text in [
            "127.0.0.1",
            "127.0.0.1.",
            "127.1",
            "127.1.",
            "2130706433",
            "2130706433.",
            "0x7f000001",
            "0X7F.1",
            "0177.0.0.01",
            "127.0x1",
            "１２７.0.0.1",
            "127。0。0。1。",
            "①②⑦.0.0.1",
        ] {
            assert_eq!(host(text), Ok(Host::Ipv4(Ipv4Addr::LOCALHOST)), "{text}");
        }
        for text in [
            "[::1]",
            "[0:0::0:1]",
            "[::0.0.0.1]",
            "[0000:0:0:0:0:0:0:0001]",
        ] {
            assert_eq!(host(text), Ok(Host::Ipv6(Ipv6Addr::LOCALHOST)), "{text}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused_with_its_cause() {
        let unreadable: fn(&HostError) -> bool = |e| matches!(e, HostError::Unreadable(_));
        let long_label = format!("{}.com", "a".repeat(64));
        let long = format!("{}com", "a.".repeat(126));
        for (text, right) in [
            ("", (|e| *e == HostError::Empty) as fn(&HostError) -> bool),
            (".", |e| *e == HostError::EmptyLabel),
            ("..", |e| *e == HostError::EmptyLabel),
            ("a..b", |e| *e == HostError::EmptyLabel),
            (".a", |e| *e == HostError::EmptyLabel),
            ("a..", |e| *e == HostError::EmptyLabel),
            ("1.2.3.4..", |e| *e == HostError::EmptyLabel),
            ("%31.example", |e| *e == HostError::Percent),
            ("[fe80::1%25eth0]", |e| *e == HostError::Percent),
            ("fd00::5", |e| *e == HostError::Brackets),
            ("a*b.example", |e| *e == HostError::Character('*')),
            ("a!b.example", |e| *e == HostError::Character('!')),
            ("-a.example", |e| matches!(e, HostError::Hyphen(_))),
            ("a-.example", |e| matches!(e, HostError::Hyphen(_))),
            (&long_label, |e| matches!(e, HostError::LongLabel(_))),
            (&long, |e| matches!(e, HostError::Long(_))),
            ("1.2.3.256", unreadable),
            ("1.2.3.4.5", unreadable),
            ("a.08", unreadable),
            ("[::1", unreadable),
            ("[::1]x", unreadable),
            ("[::1.2.3]", unreadable),
            ("a@b", unreadable),
            ("a＠b", unreadable),
            ("a／b", unreadable),
            ("℀.example", unreadable),
            ("a b", unreadable),
            ("\u{ad}", unreadable),
        ] {
            let error = host(text).unwrap_err();
            assert!(right(&error), "`{text}`: {error:?}");
        }
    }

    #[test]
    fn host_and_port_are_cut_at_the_right_colon() {
        for (text, cut) in [
            ("a", ("a", None)),
            ("a:80", ("a", Some("80"))),
            ("a:", ("a", Some(""))),
            (":80", ("", Some("80"))),
            ("[::1]", ("[::1]", None)),
            ("[::1]:80", ("[::1]", Some("80"))),
            ("*.[::1]:80", ("*.[::1]", Some("80"))),
            ("[::1]x:80", ("[::1]x:80", None)),
            ("fd00::5", ("fd00::5", None)),
            ("a:80:80", ("a:80:80", None)),
        ] {
            assert_eq!(split_port(text), cut, "{text}");
        }
        for (text, number) in [
            ("1", Some(1)),
            ("00080", Some(80)),
            ("65535", Some(65_535)),
            ("65536", None),
            ("0", None),
            ("00000", None),
            ("", None),
            ("+80", None),
            ("-1", None),
            ("８０", None),
            ("000080", None),
        ] {
            assert_eq!(port(text), number, "{text}");
        }
    }
}
