//! Makes HTTP calls through `wasi:http`, as handlers do that use their language's own client.
//!
//! Not part of the probe: the client makes a component of twice the size, and every test pays for compiling it.

mod request;

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use piecework::handler::types::Disposition;
use serde_json::{Value, json};
use wasi::config::store;
use wasip2::http::outgoing_handler;
use wasip2::http::types::{ErrorCode, Fields, OutgoingRequest, Scheme};
use wstd::http::body::util::Empty;
use wstd::http::{Body, Client, Request as Outgoing, Uri};
use wstd::runtime;

use crate::request::{Call, Request};

wit_bindgen::generate!({ path: "../../../wit", world: "handler", generate_all });

struct Handler;

impl Guest for Handler {
    fn run(job: Job) -> Result<Option<String>, Failure> {
        let request = serde_json::from_str(&job.payload)
            .map_err(|error| discard(format!("the client does not know what to do: {error}")))?;
        let answer = match request {
            Request::WasiHttp(call) => self::call(*call)?,
            Request::OpenMany { url, count, hold } => {
                open_many(&url, count, hold).map_err(discard)?
            }
            Request::Hoard { count } => hoard(count),
        };
        Ok(Some(answer.to_string()))
    }
}

export!(Handler);

/// What came back: an answer, or the kind of an error and its text.
type Outcome = Result<Value, (String, String)>;

fn call(mut call: Call) -> Result<Value, Failure> {
    if let Some(secret) = &call.secret {
        let key = format!("secrets.{secret}");
        let placeholder = store::get(&key)
            .map_err(|error| discard(format!("`{key}`: {error:?}")))?
            .ok_or_else(|| discard(format!("no setting `{key}`")))?;
        let value = format!("Bearer {placeholder}");
        call.headers.push(("authorization".to_owned(), value));
    }
    if let Some(concurrent) = call.concurrent {
        return Ok(at_once(&call, concurrent));
    }
    let mut outcome = runtime::block_on(exchange(&call));
    for _ in 1..call.times {
        outcome = runtime::block_on(exchange(&call));
    }
    match outcome {
        Ok(answer) => Ok(answer),
        Err((_, message)) if call.fail => Err(Failure {
            message,
            disposition: Disposition::Retry,
        }),
        Err((kind, message)) => Ok(json!({ "error": kind, "message": message })),
    }
}

fn at_once(call: &Call, concurrent: u32) -> Value {
    let outcomes = runtime::block_on(async {
        let mut open = Vec::new();
        for _ in 0..concurrent {
            let call = call.clone();
            open.push(runtime::spawn(async move { exchange(&call).await }));
        }
        let mut outcomes = Vec::new();
        for exchange in open {
            outcomes.push(exchange.await);
        }
        outcomes
    });
    let mut ok = 0;
    let mut errors: BTreeMap<String, u32> = BTreeMap::new();
    for outcome in outcomes {
        match outcome {
            Ok(_) => ok += 1,
            Err((_, text)) => *errors.entry(text).or_default() += 1,
        }
    }
    json!({ "ok": ok, "errors": errors })
}

/// One call, its body read to the end.
async fn exchange(call: &Call) -> Outcome {
    let attempt = async {
        let mut request = Outgoing::builder()
            .method(call.method.as_str())
            .uri(call.url.as_str());
        for (name, value) in &call.headers {
            request = request.header(name, value);
        }
        let body = match &call.body {
            Some(text) => Body::from(text.as_str()),
            // `Body::empty` writes nothing, but does write. Where the host has given the call up by then, that is a
            // connection reset, and the host's own error is lost: 7 of 20 at once to a closed port.
            None => Body::from_http_body(Empty::<&'static [u8]>::new()),
        };
        let mut client = Client::new();
        if let Some(ms) = call.timeout {
            let limit = Duration::from_millis(ms.into());
            client.set_connect_timeout(limit);
            client.set_first_byte_timeout(limit);
            client.set_between_bytes_timeout(limit);
        }
        let mut response = client.send(request.body(body)?).await?;
        let headers: Vec<_> = response
            .headers()
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), lossy(value.as_bytes())))
            .collect();
        let status = response.status().as_u16();
        let body = lossy(response.body_mut().contents().await?);
        Ok(json!({ "status": status, "headers": headers, "body": body }))
    };
    attempt.await.map_err(|error: wstd::http::Error| {
        let kind = match error.downcast_ref::<ErrorCode>() {
            Some(code) => kebab(code),
            // The client itself, or a body that broke off.
            None => "client".to_owned(),
        };
        (kind, format!("{error:#}"))
    })
}

/// Without a client: the futures of the answers are kept and never asked.
fn open_many(url: &str, count: u32, hold: bool) -> Result<Value, String> {
    let uri: Uri = url.parse().map_err(|error| format!("{url}: {error}"))?;
    let scheme = match uri.scheme_str() {
        Some("https") => Scheme::Https,
        _ => Scheme::Http,
    };
    let authority = uri.authority().map(|part| part.as_str());
    let path = uri.path_and_query().map(|part| part.as_str());
    let mut open = Vec::new();
    let mut refused = 0;
    for _ in 0..count {
        let request = OutgoingRequest::new(Fields::new());
        request
            .set_scheme(Some(&scheme))
            .and_then(|()| request.set_authority(authority))
            .and_then(|()| request.set_path_with_query(path))
            .map_err(|()| format!("{url}: the host does not take this address"))?;
        match outgoing_handler::handle(request, None) {
            Ok(answer) => open.push(answer),
            Err(_) => refused += 1,
        }
    }
    if hold {
        loop {
            thread::sleep(Duration::from_nanos(u64::MAX));
        }
    }
    Ok(json!({ "opened": open.len(), "refused": refused }))
}

/// What is made here is never sent, and all of it is kept by the host until the attempt's end.
fn hoard(count: u32) -> Value {
    let mut kept = Vec::new();
    for _ in 0..count {
        let fields = Fields::new();
        let mut bytes = 60 * 1024;
        // As large as the host takes it.
        while bytes > 0 && fields.set("x", &[vec![b'x'; bytes]]).is_err() {
            bytes /= 2;
        }
        let request = OutgoingRequest::new(fields);
        if let Ok(body) = request.body() {
            if let Ok(stream) = body.write() {
                while let Ok(room @ 1..) = stream.check_write() {
                    let room = usize::try_from(room).unwrap_or(usize::MAX);
                    if stream.write(&vec![b'x'; room]).is_err() {
                        break;
                    }
                }
            }
        }
        kept.push(request);
    }
    json!({ "kept": kept.len() })
}

/// `ErrorCode::HttpRequestDenied` as `http-request-denied`, without what it carries.
fn kebab(code: &ErrorCode) -> String {
    let shown = format!("{code:?}");
    let name = shown.strip_prefix("ErrorCode::").unwrap_or(&shown);
    let mut text = String::new();
    for letter in name.chars().take_while(char::is_ascii_alphanumeric) {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn discard(message: String) -> Failure {
    Failure {
        message,
        disposition: Disposition::Discard,
    }
}
