//! HTTP calls through the world's own interface.

use std::net::{TcpListener, TcpStream, ToSocketAddrs as _, UdpSocket};

use serde_json::{Value, json};

use crate::piecework::handler::http::{self, HttpError};
use crate::piecework::handler::log;
use crate::piecework::handler::types::{Disposition, Failure};
use crate::request::{Call, Place, SecretCall};
use crate::wasi::config::store;

impl Call {
    pub fn get(url: String) -> Self {
        Self {
            method: "GET".to_owned(),
            url,
            headers: Vec::new(),
            body: None,
            timeout: None,
            times: 1,
            fail: false,
        }
    }

    fn authorize(&mut self, value: String) {
        self.headers.push(("authorization".to_owned(), value));
    }
}

pub fn call(call: Call) -> Result<Value, Failure> {
    let request = http::Request {
        method: call.method,
        url: call.url,
        headers: call.headers,
        body: call.body.map(String::into_bytes),
        timeout: call.timeout,
    };
    let mut answer = http::send(&request);
    for _ in 1..call.times {
        answer = http::send(&request);
    }
    match answer.map_err(explain) {
        Ok(answer) => Ok(json!({
            "status": answer.status,
            "headers": answer.headers,
            "body": String::from_utf8_lossy(&answer.body),
        })),
        Err((_, message)) if call.fail => Err(Failure {
            message,
            disposition: Disposition::Retry,
        }),
        Err((kind, message)) => Ok(json!({ "error": kind, "message": message })),
    }
}

/// Sends a secret without ever having it.
pub fn secret_call(request: SecretCall) -> Result<Value, Failure> {
    let key = format!("secrets.{}", request.secret);
    let placeholder = store::get(&key)
        .map_err(|error| crate::discard(format!("`{key}`: {error:?}")))?
        .ok_or_else(|| crate::discard(format!("no setting `{key}`")))?;
    let mut sent = Call::get(request.url);
    match request.place {
        Place::Header => sent.authorize(format!("Bearer {placeholder}")),
        Place::Basic => {
            let pair = base64(format!("user:{placeholder}").as_bytes());
            sent.authorize(format!("Basic {pair}"));
        }
        Place::Query => {
            let mark = if sent.url.contains('?') { '&' } else { '?' };
            sent.url = format!("{}{mark}key={placeholder}", sent.url);
        }
        Place::Body => {
            sent.method = "POST".to_owned();
            sent.body = Some(placeholder.clone());
        }
    }
    let answer = call(sent)?;
    if request.echo {
        let text = format!("sent {placeholder}, got {answer}");
        println!("{text}");
        log::log(log::Level::Info, &text);
    }
    Ok(answer)
}

/// The kind of an error as the world spells it, and its text.
pub fn explain(error: HttpError) -> (&'static str, String) {
    match error {
        HttpError::Denied(text) => ("denied", text),
        HttpError::Timeout(text) => ("timeout", text),
        HttpError::Dns(text) => ("dns", text),
        HttpError::Connect(text) => ("connect", text),
        HttpError::Tls(text) => ("tls", text),
        HttpError::Protocol(text) => ("protocol", text),
        HttpError::TooLarge(text) => ("too-large", text),
        HttpError::Limit(text) => ("limit", text),
        HttpError::Cancelled(text) => ("cancelled", text),
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut block = [0; 4];
        block[1..=chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes(block);
        for place in 0..4 {
            if place > chunk.len() {
                text.push('=');
                continue;
            }
            let digit = (bits >> (18 - 6 * place)) & 63;
            text.push(char::from(DIGITS[digit as usize]));
        }
    }
    text
}

/// Each way out that is not HTTP, and what came of it.
pub fn sockets(address: &str) -> Value {
    let said = |outcome: std::io::Result<()>| match outcome {
        Ok(()) => "it worked".to_owned(),
        Err(error) => error.to_string(),
    };
    json!({
        "tcp": said(TcpStream::connect(address).map(drop)),
        "listen": said(TcpListener::bind("127.0.0.1:0").map(drop)),
        "udp": said(UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.send_to(b"x", address)).map(drop)),
        "lookup": said("localhost:80".to_socket_addrs().map(drop)),
    })
}
