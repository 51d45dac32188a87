//! Connections of handlers' HTTP: which are used again, which are not, TLS, HTTP/2. No request is sent twice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use piecework::http::{Client, Net, Settings};

use crate::support::caller::*;
use crate::support::server::{Door, Identity, Server};

#[tokio::test]
async fn calls_in_turn_share_a_connection() {
    let (net, server) = (net(), Server::plain().await);
    let session = session(&net, with_limits(&[&server], |_| {}));
    for round in 0..5 {
        let body = format!("round {round}");
        let answer = post(&session, &server.url("/echo"), &body).await.unwrap();
        assert_eq!(json(&answer)["body"], body);
        get(&session, &server.url("/continue")).await.unwrap();
        get(&session, &server.url("/no-content")).await.unwrap();
        let url = server.url("/no-content");
        let head = session.send("HEAD", &url, &[], None, None);
        assert!(head.await.unwrap().body.is_empty());
        let body = stream(&session, &server.url("/fill?100000")).await.unwrap();
        let body = body.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body.len(), 100_000);
    }
    assert_eq!(server.accepted(), 1);
    let wait = Some(Duration::from_millis(100));
    let silent = server.url("/silent");
    is(
        session.send("GET", &silent, &[], None, wait).await,
        "timeout",
        "100ms",
    );
    get(&session, &server.url("/echo")).await.unwrap();
    assert_eq!(server.accepted(), 2);
}

#[tokio::test]
async fn a_stale_connection_costs_no_call_and_a_post_is_sent_once() {
    let (net, server) = (net(), Server::plain().await);
    let session = session(&net, with_limits(&[&server], |_| {}));
    for _ in 0..10 {
        // Answers, says nothing of it and closes: what comes next must not end up in the closed connection.
        get(&session, &server.url("/close-idle")).await.unwrap();
        until_true("the close", || server.open() == 0).await;
        post(&session, &server.url("/echo"), "x").await.unwrap();
        get(&session, &server.url("/close-idle")).await.unwrap();
        until_true("the close", || server.open() == 0).await;
        get(&session, &server.url("/echo")).await.unwrap();
    }
    let before = server.requests();
    // On a connection that has been used before, where a retry would be tempting.
    is(
        post(&session, &server.url("/close-now"), "pay").await,
        "protocol",
        "closed",
    );
    assert_eq!(server.requests(), before + 1);
    is(
        post(&session, &server.url("/close-now"), "pay").await,
        "protocol",
        "closed",
    );
    assert_eq!(server.requests(), before + 2);
}

#[tokio::test]
async fn idle_connections_are_closed_and_plugins_share_none() {
    let settings = Settings {
        idle: Duration::from_millis(200),
        ..Settings::default()
    };
    let (net, server) = (Net::start(&settings).unwrap(), Server::plain().await);
    let one = session(&net, with_limits(&[&server], |_| {}));
    let two = session(&net, with_limits(&[&server], |_| {}));
    get(&one, &server.url("/echo")).await.unwrap();
    get(&two, &server.url("/echo")).await.unwrap();
    assert_eq!(server.accepted(), 2);
    until_true("the idle ones to close", || server.open() == 0).await;
    get(&one, &server.url("/echo")).await.unwrap();
    assert_eq!((server.accepted(), server.open()), (3, 1));
    drop(one);
    until_true("a client's connections to close with it", || {
        server.open() == 0
    })
    .await;
}

#[tokio::test]
async fn tls_needs_a_known_authority() {
    let identity = Identity::new();
    let door = Door::Tls(identity.clone(), false);
    let server = Server::start("127.0.0.1:0", door).await;
    let unknowing = net();
    let session_of = |net: &Net| session(net, with_limits(&[&server], |_| {}));
    let unknown = get(&session_of(&unknowing), &server.url("/echo")).await;
    is(unknown, "tls", "put it into the file that `ca_file`");
    assert_eq!(server.requests(), 0);
    let knowing = Net::start(&Settings {
        ca_file: Some(identity.file.clone()),
        ..Settings::default()
    });
    let knowing = knowing.unwrap();
    let session = session_of(&knowing);
    for _ in 0..3 {
        let answer = get(&session, &server.url("/echo")).await.unwrap();
        let host = echoed(&answer, "host").unwrap();
        assert_eq!(host, server.address.to_string());
    }
    assert_eq!(server.accepted(), 2);
    let plain = Server::plain().await;
    let url = plain.url("/echo").replace("http:", "https:");
    let wrong = Client::new(&knowing, rules(vec![rule("*")]));
    let wrong = Arc::new(wrong).session(Instant::now() + Duration::from_secs(9), "");
    let wait = Some(Duration::from_secs(1));
    let error = wrong.send("GET", &url, &[], None, wait).await.unwrap_err();
    assert!(["tls", "timeout"].contains(&error.kind()), "{error}");
    identity.remove();
}

#[tokio::test]
async fn http2_calls_share_one_connection() {
    let identity = Identity::new();
    let door = Door::Tls(identity.clone(), true);
    let server = Server::start("127.0.0.1:0", door).await;
    let net = Net::start(&Settings {
        ca_file: Some(identity.file.clone()),
        ..Settings::default()
    });
    let net = net.unwrap();
    let session = Arc::new(session(&net, with_limits(&[&server], |_| {})));
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (session, url) = (session.clone(), server.url("/echo?a=b"));
        calls.spawn(async move { post(&session, &url, "hello").await });
    }
    while let Some(answer) = calls.join_next().await {
        let answer = answer.unwrap().unwrap();
        assert_eq!(json(&answer)["path"], server.url("/echo?a=b"));
        assert_eq!(json(&answer)["body"], "hello");
        assert_eq!(echoed(&answer, "content-length").as_deref(), Some("5"));
        assert!(echoed(&answer, "host").is_none());
    }
    let large = get(&session, &server.url("/fill?8000000")).await.unwrap();
    assert_eq!(large.body.len(), 8_000_000);
    assert_eq!(server.accepted(), 1);
    let begun = stream(&session, &server.url("/fill?3000000"))
        .await
        .unwrap();
    let wait = Some(Duration::from_millis(200));
    let silent = server.url("/silent");
    is(
        session.send("GET", &silent, &[], None, wait).await,
        "timeout",
        "200ms",
    );
    get(&session, &server.url("/echo")).await.unwrap();
    assert_eq!(server.accepted(), 2);
    // The stream that was on the first connection goes on.
    let begun = begun.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(begun.len(), 3_000_000);
    until_true("the first connection to close", || server.open() == 1).await;
    server.goaway();
    for _ in 0..3 {
        post(&session, &server.url("/echo"), "x").await.unwrap();
    }
    assert_eq!(server.accepted(), 3);
    is(
        get(&session, &server.url("/large-header?66000")).await,
        "too-large",
        "64 KiB",
    );
    is(
        get(&session, &server.url("/fill?9000000")).await,
        "too-large",
        "8 MiB",
    );
    {
        // A guest that goes away takes only its own call with it.
        get(&session, &server.url("/echo")).await.unwrap();
        let before = (server.accepted(), server.requests());
        let url = server.url("/silent");
        tokio::select! {
            answer = get(&session, &url) => panic!("{answer:?}"),
            () = until_true("the request", || server.requests() > before.1) => {}
        }
        get(&session, &server.url("/echo")).await.unwrap();
        assert_eq!(server.accepted(), before.0);
    }
    drop(session);
    until_true("all connections to close", || server.open() == 0).await;
    identity.remove();
}
