//! What handlers' HTTP makes of requests and answers: headers, bodies, gzip, secrets.

use bytes::Bytes;
use http_body_util::BodyExt;
use piecework::config::{Hidden, Secret};
use piecework::http::{Error, Timeouts};

use crate::support::caller::*;
use crate::support::server::Server;

#[tokio::test]
async fn the_hosts_headers_are_the_hosts() {
    let (net, server) = (net(), Server::plain().await);
    let mut rules = with_limits(&[&server], |_| {});
    rules.allow.0[0].idempotency_key = true;
    let session = session(&net, rules);
    let given = [
        ("Host", "evil.example"),
        ("Content-Length", "3"),
        ("Transfer-Encoding", "chunked"),
        ("Connection", "close"),
        ("Proxy-Authorization", "x"),
        ("Expect", "100-continue"),
        ("X-Own", "kept"),
        ("x-own", "twice"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let url = server.url("/echo");
    let body = Some(Bytes::from_static(b"hello"));
    let answer = session
        .send("post", &url, &given, body, None)
        .await
        .unwrap();
    let sent = |name: &str| echoed(&answer, name);
    assert_eq!(sent("host"), Some(server.address.to_string()));
    assert_eq!(sent("content-length").as_deref(), Some("5"));
    assert_eq!(sent("x-own").as_deref(), Some("kept"));
    assert_eq!(sent("idempotency-key").as_deref(), Some("job-7"));
    assert_eq!(sent("accept-encoding").as_deref(), Some("gzip"));
    assert!(sent("user-agent").unwrap().starts_with("piecework/"));
    for name in [
        "transfer-encoding",
        "connection",
        "proxy-authorization",
        "expect",
    ] {
        assert_eq!(sent(name), None, "{name}");
    }
    let answer = get(&session, &url).await.unwrap();
    assert_eq!(echoed(&answer, "idempotency-key"), None);
    let own = [("Idempotency-Key".to_owned(), "mine".to_owned())];
    let answer = session.send("POST", &url, &own, None, None).await.unwrap();
    assert_eq!(echoed(&answer, "idempotency-key").as_deref(), Some("mine"));
    assert_eq!(echoed(&answer, "content-length").as_deref(), Some("0"));
    for bad in [("x\r\ny", "1"), ("", "1"), ("x", "1\r\nhost: evil.example")] {
        let bad = [(bad.0.to_owned(), bad.1.to_owned())];
        let error = session
            .send("GET", &url, &bad, None, None)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), "protocol");
        assert!(!error.to_string().contains("evil"), "{error}");
    }
}

#[tokio::test]
async fn gzip_is_unpacked_unless_the_guest_asked_itself() {
    let (net, server) = (net(), Server::plain().await);
    let session = session(&net, with_limits(&[&server], |_| {}));
    let url = server.url("/gzip");
    let answer = get(&session, &url).await.unwrap();
    assert_eq!(json(&answer)["path"], "/gzip");
    let kept = |name: &str| answer.headers.iter().any(|(key, _)| key == name);
    assert!(!kept("content-encoding") && !kept("content-length"));
    let own = [("Accept-Encoding".to_owned(), "gzip".to_owned())];
    let answer = session.send("GET", &url, &own, None, None).await.unwrap();
    assert!(answer.body.starts_with(&[0x1f, 0x8b]));
    let raw = stream(&session, &url).await.unwrap().into_body();
    let raw = raw.collect().await.unwrap().to_bytes();
    assert!(raw.starts_with(&[0x1f, 0x8b]));
    for path in ["/gzip-cut", "/gzip-false"] {
        is(get(&session, &server.url(path)).await, "protocol", "gzip");
    }
}

#[tokio::test]
async fn gzip_is_unpacked_by_the_caller_in_short_steps() {
    let (net, server) = (net(), Server::plain().await);
    let session = session(&net, with_limits(&[&server], |_| {}));
    let url = server.url("/gzip-zeros?4194304");
    let mut call = std::pin::pin!(get(&session, &url));
    let mut polls = 0;
    let answer = std::future::poll_fn(|cx| {
        polls += 1;
        call.as_mut().poll(cx)
    });
    let body = answer.await.unwrap().body;
    assert_eq!(body.len(), 4 * 1024 * 1024);
    assert!(body.iter().all(|byte| *byte == 0));
    // Each step is at most 64 KiB.
    assert!(polls >= 64, "{polls}");
    // Whoever waits can be stopped between two steps, and the call ends with it.
    let used = session.usage();
    let mut call = Box::pin(get(&session, &url));
    let mut polls = 0;
    std::future::poll_fn(|cx| {
        polls += 1;
        assert!(call.as_mut().poll(cx).is_pending());
        if polls < 30 {
            return std::task::Poll::Pending;
        }
        std::task::Poll::Ready(())
    })
    .await;
    drop(call);
    let now = session.usage();
    assert!(now.calls == 2 && now.time > used.time && now == session.usage());
}

#[tokio::test]
async fn secrets_count_as_what_they_are() {
    let (net, server) = (net(), Server::plain().await);
    let mut rules = with_limits(&[&server], |_| {});
    rules.secrets = [
        ("large", "s".repeat(16 * 1024)),
        ("odd", "\u{e9}".repeat(4000)),
    ]
    .map(|(name, value)| Secret {
        name: name.into(),
        value: Hidden::new(value),
        hosts: vec![server.origin().parse().unwrap()],
    })
    .into();
    let session = session(&net, rules);
    let placeholders: Vec<_> = session
        .placeholders()
        .map(|(_, text)| text.to_owned())
        .collect();
    let [large, odd] = [0, 1].map(|at| placeholders[at].as_str());
    let header = |value: String| [("x".to_owned(), value)];
    let too_large = "URL and headers are larger than 64 KiB";
    let url = server.url("/echo");
    let few = header(large.repeat(3));
    let sent = session.send("GET", &url, &few, None, None).await.unwrap();
    assert_eq!(echoed(&sent, "x").unwrap().len(), 3 * 16 * 1024);
    for value in [
        large.repeat(4),
        large.repeat(1200),
        format!("Basic {}", base64(&large.repeat(3))),
        format!("Basic {}", base64(&large.repeat(800))),
        format!("{}{}", odd.repeat(7), large),
    ] {
        let many = header(value);
        is(
            session.send("GET", &url, &many, None, None).await,
            "too-large",
            too_large,
        );
    }
    let each = [large; 4].map(|value| ("x".to_owned(), value.to_owned()));
    is(
        session.send("GET", &url, &each, None, None).await,
        "too-large",
        too_large,
    );
    // In a query, `é` becomes six bytes.
    let query = |text: String| server.url(&format!("/echo?key={text}"));
    get(&session, &query(odd.repeat(2))).await.unwrap();
    for text in [odd.repeat(3), large.repeat(4), large.repeat(150)] {
        is(get(&session, &query(text)).await, "too-large", too_large);
    }
    assert_eq!(server.requests(), 2);
}

#[tokio::test]
async fn more_headers_than_a_map_holds_are_too_large() {
    let (net, server) = (net(), Server::plain().await);
    let rules = with_limits(&[&server], |limits| limits.headers = 1024 * 1024);
    let session = session(&net, rules);
    let mut full = http::HeaderMap::new();
    for name in ["user-agent", "accept-encoding"] {
        full.insert(name, http::HeaderValue::from_static(""));
    }
    let name = |number: usize| http::HeaderName::try_from(format!("x{number}")).unwrap();
    let more =
        (0..).map(|number| full.try_insert(name(number), http::HeaderValue::from_static("")));
    let fit = more.take_while(Result::is_ok).count();
    let names: Vec<_> = full
        .keys()
        .map(|name| (name.to_string(), String::new()))
        .collect();
    assert!(fit > 10_000 && names.len() == fit + 2);
    let url = server.url("/echo");
    for less in [0, 1, 2] {
        let given = &names[less..];
        for method in ["GET", "POST"] {
            let body = (method == "POST").then(|| Bytes::from_static(b"x"));
            is(
                session.send(method, &url, given, body, None).await,
                "too-large",
                "too many headers",
            );
        }
    }
    assert_eq!(server.accepted(), 0);
}

#[tokio::test]
async fn a_streamed_body_goes_out_as_it_comes() {
    let (net, server) = (net(), Server::plain().await);
    let rules = with_limits(&[&server], |limits| limits.request = 1000);
    let session = session(&net, rules);
    let send = |length: Option<&str>, pieces: Vec<Result<&'static str, &'static str>>| {
        let (give, frames) = tokio::sync::mpsc::unbounded_channel();
        for piece in pieces {
            give.send(piece).unwrap();
        }
        let mut request = http::Request::post(server.url("/echo"));
        if let Some(length) = length {
            request = request.header("content-length", length);
        }
        let request = request.body(Pieces(frames)).unwrap();
        async {
            let response = session.stream(request, Timeouts::default()).await?;
            let body = response.into_body().collect().await?.to_bytes();
            Ok::<_, Error>(serde_json::from_slice::<serde_json::Value>(&body).unwrap())
        }
    };
    let echo = send(None, vec![Ok("one "), Ok("two")]).await.unwrap();
    assert_eq!(echo["body"], "one two");
    let echo = send(Some("7"), vec![Ok("one "), Ok("two")]).await.unwrap();
    assert_eq!(echo["body"], "one two");
    let headers = echo["headers"].as_array().unwrap();
    assert!(headers.contains(&serde_json::json!(["content-length", "7"])));
    is(
        send(Some("9"), vec![Ok("one")]).await,
        "protocol",
        "`content-length` is 9",
    );
    is(
        send(Some("2"), vec![Ok("one")]).await,
        "protocol",
        "`content-length` is 2",
    );
    is(
        send(Some("1001"), vec![Ok("one")]).await,
        "too-large",
        "(`request`)",
    );
    let many = vec![Ok("0123456789"); 101];
    is(
        send(None, many).await,
        "too-large",
        "1000 bytes (`request`)",
    );
    is(
        send(None, vec![Ok("one"), Err("gone")]).await,
        "protocol",
        "with an error: gone",
    );
}

/// A body of pieces that come one by one.
struct Pieces(tokio::sync::mpsc::UnboundedReceiver<Result<&'static str, &'static str>>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, &'static str>>> {
        self.0.poll_recv(cx).map(|piece| {
            piece.map(|piece| piece.map(|text| http_body::Frame::data(Bytes::from(text))))
        })
    }
}

#[tokio::test]
async fn secrets_go_only_where_they_belong() {
    let (net, server, other) = (net(), Server::plain().await, Server::plain().await);
    let mut rules = with_limits(&[&server, &other], |_| {});
    rules.secrets = vec![Secret {
        name: "pay-api".into(),
        value: Hidden::new("s3&cr#t"),
        hosts: vec![server.origin().parse().unwrap()],
    }];
    let session = session(&net, rules);
    let placeholder = session.placeholders().next().unwrap().1.to_owned();
    assert!(placeholder.starts_with("secret_pay_api_") && placeholder.len() == 15 + 32);
    let with = |url: String, header: Option<(&str, String)>, body: Option<String>| {
        let headers: Vec<_> = header
            .map(|(name, value)| (name.to_owned(), value))
            .into_iter()
            .collect();
        let session = &session;
        async move {
            session
                .send("POST", &url, &headers, body.map(Bytes::from), None)
                .await
        }
    };
    let bearer = || Some(("Authorization", format!("Bearer {placeholder}")));
    let answer = with(server.url("/echo"), bearer(), None).await.unwrap();
    assert_eq!(
        echoed(&answer, "authorization").as_deref(),
        Some("Bearer s3&cr#t")
    );
    let basic = || {
        Some((
            "Authorization",
            format!("Basic {}", base64(&format!("me:{placeholder}"))),
        ))
    };
    let answer = with(server.url("/echo"), basic(), None).await.unwrap();
    let expected = format!("Basic {}", base64("me:s3&cr#t"));
    assert_eq!(echoed(&answer, "authorization"), Some(expected));
    let query = |server: &Server| server.url(&format!("/echo?a=1&key={placeholder}&b=2"));
    let answer = with(query(&server), None, None).await.unwrap();
    assert_eq!(json(&answer)["path"], "/echo?a=1&key=s3%26cr%23t&b=2");
    let requests = server.requests();
    let path = |server: &Server| server.url(&format!("/{placeholder}"));
    let fragment = |server: &Server| server.url(&format!("/#{placeholder}"));
    let name = || Some((placeholder.as_str(), String::new()));
    for (denied, part) in [
        (
            with(other.url("/echo"), bearer(), None).await,
            "the secret `pay-api` may be sent to",
        ),
        (
            with(other.url("/echo"), basic(), None).await,
            "`[secrets.pay-api]`",
        ),
        (
            with(other.url("/echo"), name(), None).await,
            "`[secrets.pay-api]`",
        ),
        (with(query(&other), None, None).await, "`[secrets.pay-api]`"),
        (with(path(&other), None, None).await, "`[secrets.pay-api]`"),
        (
            with(fragment(&other), None, None).await,
            "`[secrets.pay-api]`",
        ),
        (
            with(path(&server), None, None).await,
            "stands in the URL's path",
        ),
        (
            with(server.url("/echo"), name(), None).await,
            "stands in a header's name",
        ),
        (
            with(server.url("/echo"), None, Some(format!("x{placeholder}"))).await,
            "stands in the request's body",
        ),
    ] {
        let error = denied.as_ref().unwrap_err();
        assert!(!error.to_string().contains(&placeholder), "{error}");
        is(denied, "denied", part);
    }
    assert_eq!((server.requests(), other.accepted()), (requests, 0));
    let shown = format!("{session:?}");
    assert!(
        !shown.contains("s3&cr#t") && !shown.contains(&placeholder),
        "{shown}"
    );
}

fn base64(text: &str) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    text.as_bytes()
        .chunks(3)
        .flat_map(|chunk| {
            let at = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
            let bits = at(0) << 16 | at(1) << 8 | at(2);
            let length = chunk.len();
            (0..4).map(move |place| {
                if place > length {
                    return '=';
                }
                let index = (bits >> (18 - 6 * place)) & 63;
                char::from(ALPHABET[usize::try_from(index).unwrap()])
            })
        })
        .collect()
}
