//! A plugin's HTTP for tests: rules that open what a test starts, short forms of the doors, and what to expect of them.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Empty;
use piecework::config::HttpLimits;
use piecework::http::{Answer, Body, Client, Error, Net, Rules, Session, Settings, Timeouts};
use piecework::policy::{Policy, Rule};

use super::server::Server;
use super::until;

pub(crate) const MIB: u64 = 1024 * 1024;

pub(crate) fn limits() -> HttpLimits {
    HttpLimits {
        calls: 100,
        concurrent: 8,
        response: 8 * MIB,
        request: 8 * MIB,
        headers: 64 * 1024,
        connect_timeout: Duration::from_secs(3),
        first_byte_timeout: Duration::from_secs(5),
        timeout: Duration::from_secs(10),
    }
}

pub(crate) fn rule(to: &str) -> Rule {
    Rule {
        to: to.parse().unwrap(),
        methods: None,
        private: true,
        idempotency_key: false,
    }
}

pub(crate) fn rules(allow: Vec<Rule>) -> Rules {
    Rules {
        plugin: "mail".into(),
        allow: Policy(allow),
        ceiling: Policy(vec![rule("*")]),
        limits: limits(),
        secrets: Vec::new(),
        allow_at: "`allow` under `[plugins.mail.http]` (runner.toml line 12)".into(),
        ceiling_at: "`allow` under `[ceiling.http]` (runner.toml line 3)".into(),
    }
}

pub(crate) fn net() -> Net {
    Net::start(&Settings::default()).unwrap()
}

pub(crate) fn in_a_minute() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

pub(crate) fn session(net: &Net, rules: Rules) -> Session {
    Arc::new(Client::new(net, rules)).session(in_a_minute(), "job-7")
}

pub(crate) fn with_limits(servers: &[&Server], change: impl FnOnce(&mut HttpLimits)) -> Rules {
    let mut rules = rules(
        servers
            .iter()
            .map(|server| rule(&server.origin()))
            .collect(),
    );
    change(&mut rules.limits);
    rules
}

pub(crate) async fn get(session: &Session, url: &str) -> Result<Answer, Error> {
    session.send("GET", url, &[], None, None).await
}

pub(crate) async fn post(session: &Session, url: &str, body: &str) -> Result<Answer, Error> {
    let body = Bytes::from(body.to_owned());
    session.send("POST", url, &[], Some(body), None).await
}

pub(crate) async fn stream(session: &Session, url: &str) -> Result<http::Response<Body>, Error> {
    let request = http::Request::get(url).body(Empty::new()).unwrap();
    session.stream(request, Timeouts::default()).await
}

pub(crate) fn json(answer: &Answer) -> serde_json::Value {
    serde_json::from_slice(&answer.body).unwrap()
}

/// The header that an echo says it was sent.
pub(crate) fn echoed(answer: &Answer, name: &str) -> Option<String> {
    let echo = json(answer);
    let headers = echo["headers"].as_array().unwrap();
    let found = headers.iter().find(|header| header[0] == name)?;
    Some(found[1].as_str().unwrap().to_owned())
}

#[track_caller]
pub(crate) fn is<T: std::fmt::Debug>(result: Result<T, Error>, kind: &str, part: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(
        error.to_string().contains(part),
        "`{part}` is not in: {error}"
    );
}

pub(crate) async fn until_true(what: &str, look: impl Fn() -> bool) {
    until(what, || {
        let found = look();
        async move { found.then_some(()) }
    })
    .await;
}

/// Ends within its limit and half a second.
pub(crate) async fn soon<T>(limit: Duration, work: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let done = work.await;
    let took = begun.elapsed();
    assert!(
        took < limit + Duration::from_millis(500),
        "{took:?} instead of {limit:?}"
    );
    done
}
