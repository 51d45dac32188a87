//! Connections of handlers' HTTP: which are used again, which are not, TLS, HTTP/2. No request is sent twice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use piecework::http::{Body, Client, Net, Session, Settings};

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
async fn a_connection_serves_only_calls_of_its_rule() {
    let (net, server) = (net(), Server::plain().await);
    let mut narrow = rule(&server.origin());
    narrow.methods = Some(vec!["GET".into()]);
    let mut wide = rule("*");
    wide.methods = Some(vec!["POST".into()]);
    let session = session(&net, rules(vec![narrow, wide]));
    for _ in 0..2 {
        // The address was checked by the rule of one of them only.
        get(&session, &server.url("/echo")).await.unwrap();
        post(&session, &server.url("/echo"), "x").await.unwrap();
    }
    assert_eq!(server.accepted(), 2);
}

#[tokio::test]
async fn a_plugin_has_at_most_256_connections() {
    let (net, server, other) = (net(), Server::plain().await, Server::plain().await);
    let rules = with_limits(&[&server, &other], |limits| {
        limits.calls = 1000;
        limits.concurrent = 300;
        limits.timeout = Duration::from_secs(60);
    });
    let session = session(&net, rules);
    for body in large(&session, &other, 3).await {
        body.collect().await.unwrap();
    }
    assert_eq!(other.open(), 3);
    let mut bodies = Vec::new();
    for _ in 0..256 {
        let begun = stream(&session, &server.url("/begun")).await;
        bodies.push(begun.unwrap().into_body());
    }
    // Idle ones made room.
    until_true("the idle ones to close", || other.open() == 0).await;
    is(
        stream(&session, &server.url("/begun")).await,
        "limit",
        "the plugin `mail` has 256 HTTP connections open",
    );
    assert_eq!((server.accepted(), server.open()), (256, 256));
    bodies.pop();
    get(&session, &server.url("/echo")).await.unwrap();
    let own = with_limits(&[&server], |_| {});
    let another = Arc::new(Client::new(&net, own)).session(in_a_minute(), "");
    get(&another, &server.url("/echo")).await.unwrap();
}

#[tokio::test]
async fn idle_connections_of_both_versions_are_bounded_together() {
    let identity = Identity::new();
    let door = Door::Tls(identity.clone(), true);
    let shared = Server::start("127.0.0.1:0", door).await;
    let net = knowing(&identity);
    let mut servers = vec![shared];
    for _ in 0..8 {
        servers.push(Server::plain().await);
    }
    let all: Vec<_> = servers.iter().collect();
    let session = session(&net, with_limits(&all, |_| {}));
    for server in &servers[1..] {
        for body in large(&session, server, 8).await {
            body.collect().await.unwrap();
        }
    }
    let open = || servers.iter().map(Server::open).sum::<usize>();
    assert_eq!(open(), 64);
    get(&session, &servers[0].url("/echo")).await.unwrap();
    assert_eq!(servers[0].open(), 1);
    until_true("the oldest to close", || open() == 64).await;
    assert_eq!(servers[1].open(), 7);
    identity.remove();
}

#[tokio::test]
async fn unread_answers_stall_no_other_call() {
    let identity = Identity::new();
    let door = Door::Tls(identity.clone(), true);
    let server = Server::start("127.0.0.1:0", door).await;
    let net = knowing(&identity);
    let rules = with_limits(&[&server], |limits| limits.concurrent = 40);
    let session = session(&net, rules);
    let unread = large(&session, &server, 20).await;
    let wait = Duration::from_secs(2);
    let echo = soon(wait, get(&session, &server.url("/echo"))).await;
    assert_eq!(echo.unwrap().status, 200);
    // Eight to a connection.
    assert_eq!(server.accepted(), 3);
    for body in unread {
        let body = body.collect().await.unwrap().to_bytes();
        assert_eq!(body.len(), 1_000_000);
    }
    get(&session, &server.url("/echo")).await.unwrap();
    assert_eq!(server.accepted(), 3);
    identity.remove();
}

#[tokio::test]
async fn calls_at_the_same_time_wait_for_connections_to_share() {
    let identity = Identity::new();
    let door = Door::Tls(identity.clone(), true);
    let server = Server::start("127.0.0.1:0", door).await;
    let net = knowing(&identity);
    let rules = with_limits(&[&server], |limits| limits.concurrent = 64);
    let session = Arc::new(session(&net, rules));
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let (session, url) = (session.clone(), server.url("/fill?100000"));
        calls.spawn(async move { get(&session, &url).await });
    }
    while let Some(answer) = calls.join_next().await {
        assert_eq!(answer.unwrap().unwrap().body.len(), 100_000);
    }
    // Eight are enough; each that takes more than 300 ms to open lets one more be opened.
    assert!(server.accepted() <= 16, "{}", server.accepted());
    identity.remove();
}

#[tokio::test]
async fn a_connect_that_hangs_holds_up_no_other_for_long() {
    let identity = Identity::new();
    let door = Door::FirstHangs(identity.clone());
    let server = Server::start("127.0.0.1:0", door).await;
    let net = knowing(&identity);
    let session = session(&net, with_limits(&[&server], |_| {}));
    let url = server.url("/echo");
    let others = async {
        until_true("the first", || server.accepted() == 1).await;
        for _ in 0..3 {
            let answer = soon(Duration::from_secs(1), get(&session, &url)).await;
            assert_eq!(answer.unwrap().status, 200);
        }
    };
    let (first, ()) = tokio::join!(get(&session, &url), others);
    is(first, "timeout", "(connect timeout)");
    assert_eq!(server.accepted(), 2);
    identity.remove();
}

#[tokio::test]
async fn the_process_may_open_as_many_files_as_it_can() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::Nofile);
    let lower = Rlimit {
        current: before.maximum.map(|most| most - 1),
        ..before
    };
    setrlimit(Resource::Nofile, lower).unwrap();
    drop(net());
    assert_eq!(getrlimit(Resource::Nofile).current, before.maximum);
}

fn knowing(identity: &Identity) -> Net {
    let settings = Settings {
        ca_file: Some(identity.file.clone()),
        ..Settings::default()
    };
    Net::start(&settings).unwrap()
}

/// Answers that are too large to be read to their end before somebody asks for them.
async fn large(session: &Session, server: &Server, count: usize) -> Vec<Body> {
    let mut bodies = Vec::new();
    for _ in 0..count {
        let begun = stream(session, &server.url("/fill?1000000")).await;
        bodies.push(begun.unwrap().into_body());
    }
    bodies
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
