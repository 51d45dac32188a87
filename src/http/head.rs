//! Makes the head of a request from what a guest gives: which headers are the host's, what is added, where secrets go.

use ::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use ::http::uri::{PathAndQuery, Scheme as UriScheme};
use ::http::{Method, Request, Uri, Version};
use url::{Position, Url};

use super::error::size;
use super::secrets::Filler;
use super::{Error, Outgoing};
use crate::policy::Destination;

/// Headers that the host alone sets, beside `proxy-*`: they say how the message travels, not what it says.
const HOSTS_OWN: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers of a request. The map itself fails with 24,576 names, and the client library adds some of its own.
const MOST_HEADERS: usize = 16 * 1024;

/// No method has a longer name, in bytes; it stands in messages.
const LONGEST_METHOD: usize = 32;

/// What a response's headers say about the connection; the guest has no connection.
const OF_THE_CONNECTION: [&str; 5] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "upgrade",
];

/// The head of a request. It holds secrets, so it cannot be shown.
pub(super) struct Head {
    pub(super) method: Method,
    url: Url,
    headers: HeaderMap,
    /// The length of the body that the guest states, in bytes.
    pub(super) stated: Option<u64>,
    /// gzip was asked for by the host, not by the guest.
    pub(super) unpack: bool,
}

/// What the host may add.
#[derive(Clone, Copy)]
pub(super) struct Additions<'a> {
    pub(super) idempotency_key: Option<&'a str>,
    pub(super) gzip: bool,
    /// A body is known to be empty.
    pub(super) empty: bool,
}

impl Head {
    /// Takes the guest's headers.
    pub(super) fn new<'a>(
        method: Method,
        mut url: Url,
        given: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        add: Additions<'_>,
        filler: &Filler<'_>,
        limit: u64,
    ) -> Result<Self, Error> {
        let mut room = Room { left: limit, limit };
        filler.refuse(url[..Position::AfterPath].as_bytes(), "the URL's path")?;
        if let Some(filled) = filler.query(url.query().unwrap_or(""), &room)? {
            url.set_query(Some(&filled));
        }
        room.take(url.as_str().len())?;
        let mut head = Self {
            method,
            url,
            headers: HeaderMap::new(),
            stated: None,
            unpack: false,
        };
        for (name, value) in given {
            head.take(name, value, filler, &mut room)?;
        }
        head.add(add)?;
        Ok(head)
    }

    /// The request for a connection of this version.
    pub(super) fn request(
        &self,
        version: Version,
        body: Outgoing,
    ) -> Result<Request<Outgoing>, Error> {
        let unsendable = || {
            Error::Protocol(
                "the URL cannot be sent: it is too long or has invalid characters".to_owned(),
            )
        };
        let path = &self.url[Position::BeforePath..Position::AfterQuery];
        let path = PathAndQuery::try_from(path).map_err(|_| unsendable())?;
        let authority = &self.url[Position::BeforeHost..Position::AfterPort];
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.headers_mut() = self.headers.clone();
        *request.version_mut() = version;
        if version == Version::HTTP_2 {
            let scheme = if self.url.scheme() == "https" {
                UriScheme::HTTPS
            } else {
                UriScheme::HTTP
            };
            *request.uri_mut() = Uri::builder()
                .scheme(scheme)
                .authority(authority)
                .path_and_query(path)
                .build()
                .map_err(|_| unsendable())?;
        } else {
            *request.uri_mut() = Uri::from(path);
            let host = HeaderValue::from_str(authority).map_err(|_| {
                Error::Protocol("the URL's host cannot stand in a header".to_owned())
            })?;
            let headers = request.headers_mut();
            headers
                .try_insert(header::HOST, host)
                .map_err(|_| too_many())?;
        }
        Ok(request)
    }

    /// Roughly what the head takes on the wire, in bytes.
    pub(super) fn size(&self) -> u64 {
        bytes(self.method.as_str().len() + self.url.as_str().len()) + headers_size(&self.headers)
    }

    fn take(
        &mut self,
        name: &[u8],
        value: &[u8],
        filler: &Filler<'_>,
        room: &mut Room,
    ) -> Result<(), Error> {
        room.take(name.len() + 4)?;
        // As it was given too: what is searched for placeholders is never larger than the limit.
        room.fits(value.len())?;
        let Ok(name) = HeaderName::from_bytes(name) else {
            return Err(Error::Protocol(
                "a header's name is empty or has characters that names cannot have".to_owned(),
            ));
        };
        filler.refuse(name.as_str().as_bytes(), "a header's name")?;
        let filled = filler.header(value, room)?;
        room.take(filled.as_ref().map_or(value.len(), Vec::len))?;
        let secret = filled.is_some();
        let Ok(mut value) = HeaderValue::from_bytes(filled.as_deref().unwrap_or(value)) else {
            let whose = if secret { ", or the secret in it," } else { "" };
            return Err(Error::Protocol(format!(
                "the value of the header `{name:.64}`{whose} has characters that values cannot have",
                name = name.as_str()
            )));
        };
        if name == header::CONTENT_LENGTH {
            self.stated = value
                .to_str()
                .ok()
                .and_then(|text| text.trim().parse().ok());
        }
        if is_hosts_own(&name) {
            return Ok(());
        }
        value.set_sensitive(secret || name == header::AUTHORIZATION || name == header::COOKIE);
        self.append(name, value)
    }

    fn add(&mut self, add: Additions<'_>) -> Result<(), Error> {
        if !self.headers.contains_key(header::USER_AGENT) {
            let own = HeaderValue::from_static(concat!("piecework/", env!("CARGO_PKG_VERSION")));
            self.append(header::USER_AGENT, own)?;
        }
        let safe = matches!(self.method.as_str(), "GET" | "HEAD" | "OPTIONS");
        let name = HeaderName::from_static("idempotency-key");
        if let Some(key) = add.idempotency_key
            && !safe
            && !self.headers.contains_key(&name)
        {
            let Ok(key) = HeaderValue::from_bytes(key.as_bytes()) else {
                return Err(Error::Protocol(
                    "the job's idempotency key has characters that a header cannot have".to_owned(),
                ));
            };
            self.append(name, key)?;
        }
        // A part of a packed body cannot be unpacked.
        if add.gzip
            && !self.headers.contains_key(header::ACCEPT_ENCODING)
            && !self.headers.contains_key(header::RANGE)
        {
            self.unpack = true;
            self.append(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"))?;
        }
        // Servers may ask for a length where a body is usual; the library says none for an empty one.
        if add.empty && matches!(self.method.as_str(), "POST" | "PUT" | "PATCH") {
            self.append(header::CONTENT_LENGTH, HeaderValue::from_static("0"))?;
        }
        Ok(())
    }

    fn append(&mut self, name: HeaderName, value: HeaderValue) -> Result<(), Error> {
        if self.headers.len() >= MOST_HEADERS {
            return Err(too_many());
        }
        self.headers
            .try_append(name, value)
            .map(drop)
            .map_err(|_| too_many())
    }
}

/// What is left of the bytes that URL and headers of a request may have, with the secrets in them.
pub(super) struct Room {
    left: u64,
    limit: u64,
}

impl Room {
    /// Whether so many bytes more are within the limit.
    pub(super) fn fits(&self, length: usize) -> Result<(), Error> {
        if bytes(length) <= self.left {
            return Ok(());
        }
        Err(Error::TooLarge(format!(
            "the request's URL and headers are larger than {}",
            size(self.limit)
        )))
    }

    fn take(&mut self, length: usize) -> Result<(), Error> {
        self.fits(length)?;
        self.left -= bytes(length);
        Ok(())
    }
}

fn too_many() -> Error {
    Error::TooLarge("the request has too many headers".to_owned())
}

/// The method as servers know it: names are case-sensitive, and guests write `post`.
pub(super) fn method(given: &str) -> Result<Method, Error> {
    const USUAL: [Method; 7] = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
    ];
    let usual = USUAL
        .into_iter()
        .find(|usual| usual.as_str().eq_ignore_ascii_case(given));
    if let Some(usual) = usual {
        return Ok(usual);
    }
    // The allow lists cannot open them either: a tunnel passes every check, an echo shows the secrets.
    for never in ["CONNECT", "TRACE"] {
        if never.eq_ignore_ascii_case(given) {
            return Err(Error::Denied(format!("`{never}` is never allowed")));
        }
    }
    match Method::from_bytes(given.as_bytes()) {
        Ok(method) if given.len() <= LONGEST_METHOD => Ok(method),
        Ok(_) | Err(_) => Err(Error::Protocol(
            "the request's method is not a name that HTTP could know, such as `GET`".to_owned(),
        )),
    }
}

/// Takes out of a response's headers what belongs to the connection.
pub(super) fn strip(headers: &mut HeaderMap, to: &Destination, limit: u64) -> Result<(), Error> {
    // HTTP/2 compresses heads, so the library's own limit there is looser.
    if headers_size(headers) > limit {
        return Err(Error::head_too_large(to, limit));
    }
    for name in OF_THE_CONNECTION {
        headers.remove(name);
    }
    Ok(())
}

/// Roughly what headers take on the wire, in bytes.
pub(super) fn headers_size(headers: &HeaderMap) -> u64 {
    headers
        .iter()
        .map(|(name, value)| bytes(name.as_str().len() + value.len() + 4))
        .sum()
}

/// A length in memory as a number of bytes.
pub(super) fn bytes(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

fn is_hosts_own(name: &HeaderName) -> bool {
    let name = name.as_str();
    HOSTS_OWN.contains(&name) || name.starts_with("proxy-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_methods_are_known_in_any_case() {
        assert_eq!(method("post").unwrap(), Method::POST);
        assert_eq!(method("PURGE").unwrap().as_str(), "PURGE");
        assert!(method("CONNECT").is_err());
        assert!(method("GET /x").is_err());
        assert!(method("").is_err());
    }
}
