//! Reads the URL of a request. It accepts only what every reader understands in the same way: the URL standard repairs
//! tabs, backslashes and missing slashes in silence, and each repair is a way to show a check one host and call another.

use std::fmt;

use url::{Host, Url};

use super::host::{self, HostError};

/// Longest URL, in bytes. Servers commonly take 8 KiB for the whole request line.
const URL_MAX: usize = 8 * 1024;

/// What a request speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Without TLS.
    Http,
    /// With TLS.
    Https,
}

impl Scheme {
    /// The port where a URL names none: 80 or 443.
    pub fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }

    pub(super) fn read(text: &str) -> Option<Self> {
        [Self::Http, Self::Https]
            .into_iter()
            .find(|scheme| text.eq_ignore_ascii_case(scheme.name()))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a request goes: what is left of a URL when path, query and fragment are taken away.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    /// With or without TLS.
    pub scheme: Scheme,
    /// Normalised: lower case, punycode, no dot at the end.
    pub host: Host<String>,
    /// 1 to 65535, the scheme's own where the URL names none.
    pub port: u16,
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.host)?;
        if self.port != self.scheme.default_port() {
            write!(f, ":{}", self.port)?;
        }
        Ok(())
    }
}

/// Why a URL is refused. The texts are for the handler's author and show neither path nor query, which may hold secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// More than 8 KiB, as written or as sent.
    #[error("the URL has {0} bytes, at most 8192 are allowed; send long data in the body")]
    TooLong(usize),
    /// Something that parsers remove or replace in silence.
    #[error(
        "the URL has the character `{}` at byte {at}; percent-encode it in the path or query, and remove it elsewhere",
        .character.escape_debug()
    )]
    Character {
        /// A control character, white space or `\`.
        character: char,
        /// Its position, counted from 0.
        at: usize,
    },
    /// No scheme.
    #[error("the URL is not absolute; begin it with `https://` or `http://` and the host")]
    Relative,
    /// Neither http nor https.
    #[error("the scheme `{0}` is not supported; use `https://` or `http://`")]
    Scheme(String),
    /// Not exactly two slashes after the scheme.
    #[error("the URL needs exactly two slashes after `{0}:`; write `{0}://` and the host")]
    Slashes(Scheme),
    /// A user or password, or the `@` alone.
    #[error(
        "the URL has an `@` in front of its host; remove user and password, and send them in an `authorization` header"
    )]
    UserInfo,
    /// Nothing between the slashes and the path.
    #[error("the URL has no host; write it after `{0}://`")]
    NoHost(Scheme),
    /// A host that cannot be used.
    #[error("the host `{host}` of the URL cannot be used: {reason}")]
    Host {
        /// As written, at most 80 characters of it.
        host: String,
        /// What is wrong.
        reason: HostError,
    },
    /// A port that is not a number from 1 to 65535.
    #[error(
        "the port `{0}` of the URL is not a number from 1 to 65535; correct it, or remove it with its colon"
    )]
    Port(String),
    /// Refused by the URL standard for another reason.
    #[error("the URL cannot be parsed: {0}")]
    Unreadable(url::ParseError),
    /// Two readers of the URL do not agree where it goes.
    #[error("the URL can be read in two ways; write scheme, host and port plainly")]
    Ambiguous,
}

/// Parses an absolute URL of a request. The [`Url`] has no fragment, and its host is that of the [`Destination`].
///
/// # Errors
/// One variant for each cause; nothing is repaired.
pub fn destination(url: &str) -> Result<(Url, Destination), UrlError> {
    if url.len() > URL_MAX {
        return Err(UrlError::TooLong(url.len()));
    }
    if let Some((at, character)) = host::odd_character(url) {
        return Err(UrlError::Character { character, at });
    }
    let to = written(url)?;
    let mut parsed = Url::parse(url).map_err(UrlError::Unreadable)?;
    parsed.set_fragment(None);
    if let Host::Domain(name) = &to.host
        && parsed.host_str() != Some(name)
    {
        // Only a dot at the end may differ, and what is sent is what was checked.
        let dotted = parsed.host_str().and_then(|host| host.strip_suffix('.'));
        if dotted != Some(name) || parsed.set_host(Some(name)).is_err() {
            return Err(UrlError::Ambiguous);
        }
    }
    let agreed = parsed.scheme() == to.scheme.name()
        && parsed.host().is_some_and(|host| host == to.host)
        && parsed.port_or_known_default() == Some(to.port)
        && parsed.username().is_empty()
        && parsed.password().is_none();
    if !agreed {
        return Err(UrlError::Ambiguous);
    }
    // Other characters than ASCII take three times their bytes once encoded.
    if parsed.as_str().len() > URL_MAX {
        return Err(UrlError::TooLong(parsed.as_str().len()));
    }
    Ok((parsed, to))
}

/// The destination as the plainest reader sees it: scheme, `://`, and all up to the first of `/`, `?` and `#`.
fn written(url: &str) -> Result<Destination, UrlError> {
    let (scheme, rest) = scheme(url)?;
    let rest = rest.strip_prefix("//").ok_or(UrlError::Slashes(scheme))?;
    if rest.starts_with('/') {
        return Err(UrlError::Slashes(scheme));
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let authority = &rest[..end];
    if authority.contains('@') {
        return Err(UrlError::UserInfo);
    }
    let (name, port) = host::split_port(authority);
    if name.is_empty() {
        return Err(UrlError::NoHost(scheme));
    }
    let host = host::host(name).map_err(|reason| UrlError::Host {
        host: host::shown(name),
        reason,
    })?;
    let port = match port {
        None => scheme.default_port(),
        Some(text) => host::port(text).ok_or_else(|| UrlError::Port(host::shown(text)))?,
    };
    Ok(Destination { scheme, host, port })
}

/// Cuts off the scheme and its colon.
fn scheme(url: &str) -> Result<(Scheme, &str), UrlError> {
    let (before, rest) = url.split_once(':').ok_or(UrlError::Relative)?;
    let is_scheme = before.starts_with(|c: char| c.is_ascii_alphabetic())
        && before
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    match Scheme::read(before) {
        Some(scheme) => Ok((scheme, rest)),
        // `example.com:80/path` looks like a scheme too, but it is none.
        None if is_scheme
            && !before.contains('.')
            && !rest.starts_with(|c: char| c.is_ascii_digit()) =>
        {
            Err(UrlError::Scheme(host::shown(before)))
        }
        None => Err(UrlError::Relative),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_normalised() {
        for (text, url, to) in [
            (
                "https://api.example.com",
                "https://api.example.com/",
                "https://api.example.com",
            ),
            (
                "HTTPS://API.Example.COM:443/a?b=c#d",
                "https://api.example.com/a?b=c",
                "https://api.example.com",
            ),
            (
                "http://example.com:443",
                "http://example.com:443/",
                "http://example.com:443",
            ),
            (
                "https://example.com./x",
                "https://example.com/x",
                "https://example.com",
            ),
            (
                "https://example.com.:8443/x",
                "https://example.com:8443/x",
                "https://example.com:8443",
            ),
            (
                "https://bücher.example。/ü",
                "https://xn--bcher-kva.example/%C3%BC",
                "https://xn--bcher-kva.example",
            ),
            ("http://0x7f.1./", "http://127.0.0.1/", "http://127.0.0.1"),
            (
                "http://[::FFFF:10.0.0.1]:80",
                "http://[::ffff:a00:1]/",
                "http://[::ffff:a00:1]",
            ),
            (
                "http://[fd00::5]:8080?q",
                "http://[fd00::5]:8080/?q",
                "http://[fd00::5]:8080",
            ),
            (
                "https://example.com/@me:x@y",
                "https://example.com/@me:x@y",
                "https://example.com",
            ),
            (
                "https://example.com?@evil.example",
                "https://example.com/?@evil.example",
                "https://example.com",
            ),
            (
                "https://example.com#@evil.example",
                "https://example.com/",
                "https://example.com",
            ),
            (
                "https://example.com//evil.example",
                "https://example.com//evil.example",
                "https://example.com",
            ),
        ] {
            let (parsed, destination) = destination(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(parsed.as_str(), url, "{text}");
            assert_eq!(destination.to_string(), to, "{text}");
            assert_eq!(
                parsed.host().unwrap().to_owned(),
                destination.host,
                "{text}"
            );
        }
    }

    #[test]
    fn what_would_have_to_be_repaired_is_refused() {
        let host: fn(&UrlError) -> bool = |e| matches!(e, UrlError::Host { .. });
        let character: fn(&UrlError) -> bool = |e| matches!(e, UrlError::Character { .. });
        let slashes: fn(&UrlError) -> bool = |e| matches!(e, UrlError::Slashes(_));
        let scheme: fn(&UrlError) -> bool = |e| matches!(e, UrlError::Scheme(_));
        let relative: fn(&UrlError) -> bool = |e| *e == UrlError::Relative;
        let user: fn(&UrlError) -> bool = |e| *e == UrlError::UserInfo;
        let no_host: fn(&UrlError) -> bool = |e| matches!(e, UrlError::NoHost(_));
        let port: fn(&UrlError) -> bool = |e| matches!(e, UrlError::Port(_));
        for (text, right) in [
            (" https://example.com", character),
            ("https://example.com ", character),
            ("https://exa\tmple.com", character),
            ("https://example.com/a\nb", character),
            ("https://example.com/a b", character),
            ("https://example.com\\@evil.example", character),
            ("https:\\\\example.com", character),
            ("\u{0}https://example.com", character),
            ("https://example.com/\u{85}", character),
            ("https://example.com/\u{2028}", character),
            ("https:example.com", slashes),
            ("https:/example.com", slashes),
            ("https:///example.com", slashes),
            ("https:", slashes),
            ("ftp://example.com", scheme),
            ("file:///etc/passwd", scheme),
            ("data:text/plain,x", scheme),
            ("ws://example.com", scheme),
            ("", relative),
            ("example.com", relative),
            ("example.com:80/x", relative),
            ("localhost:8080/x", relative),
            ("/path", relative),
            ("//example.com", relative),
            ("//example.com:80", relative),
            ("https://@example.com", user),
            ("https://user@example.com", user),
            ("https://:pw@example.com", user),
            ("https://:@example.com", user),
            ("https://a@b@example.com/", user),
            ("https://", no_host),
            ("https://?x", no_host),
            ("https://#x", no_host),
            ("https://:80", no_host),
            ("https://example.com:0", port),
            ("https://example.com:", port),
            ("https://example.com:65536", port),
            ("https://example.com:+80", port),
            ("https://example.com:8o", port),
            ("https://a..b", host),
            ("https://example.com..", host),
            ("https://%31%32%37.0.0.1", host),
            ("https://example.com%2f@x", user),
            ("https://example.com%2f.evil.example", host),
            ("https://[::1", host),
            ("https://::1/", host),
            ("https://exam|ple.com", host),
        ] {
            let error = destination(text).unwrap_err();
            assert!(right(&error), "`{text}`: {error:?}");
        }
    }

    #[test]
    fn a_url_has_at_most_8_kib() {
        let start = "https://example.com/";
        let fits = format!("{start}{}", "a".repeat(URL_MAX - start.len()));
        assert!(destination(&fits).is_ok());
        let more = format!("{fits}a");
        assert_eq!(
            destination(&more).unwrap_err(),
            UrlError::TooLong(URL_MAX + 1)
        );
        let grows = format!("{start}{}", "ü".repeat(2_000));
        assert!(matches!(
            destination(&grows),
            Err(UrlError::TooLong(12_020))
        ));
    }

    #[test]
    fn messages_show_neither_query_nor_password() {
        for text in [
            "https://user:secret@example.com/?secret",
            "https://exa..mple/?secret",
            "https://example.com:x/?secret",
            "https://example.com/ ?secret",
            "secret",
        ] {
            let message = destination(text).unwrap_err().to_string();
            assert!(!message.contains("secret"), "{message}");
        }
    }
}
