//! Every call to the database has a bound, and the pool outlives connections that went silent.

use std::time::Duration;

use piecework::config::{self, Span};
use piecework::store::{Error, Store};

use crate::support::db::Db;
use crate::support::relay::Relay;

/// O-11: a pool whose connections go silent is dead for good after as many timeouts as it has places, if the connections
/// are dropped the usual way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o_11_connections_that_went_silent_cost_their_calls_and_never_the_pool() {
    let db = Db::new().await;
    let relay = Relay::to(db.url()).await;
    let settings = config::Database {
        url: relay.url().to_owned(),
        connections: 3,
        connect_timeout: Span::secs(2),
        call_timeout: Span::millis(200),
        ..config::Database::default()
    };
    let store = Store::open(&settings).unwrap();
    for _ in 0..6 {
        // All connections of the pool are open and idle...
        let calls = [
            store.status_jobs(),
            store.status_jobs(),
            store.status_jobs(),
        ]
        .map(Box::pin);
        for call in calls {
            call.await.unwrap();
        }
        // ... and then their peer is gone without a word.
        relay.silence();
        let refused = store.status_jobs().await.unwrap_err();
        assert!(matches!(refused, Error::Unavailable(_)), "{refused}");
        // A caller that goes away in the middle of a call is the same case.
        let cut_off = tokio::time::timeout(Duration::from_millis(50), store.status_runners()).await;
        drop(cut_off);
    }
    // More were lost than there are places, and they are all there.
    let all = tokio::join!(
        store.status_jobs(),
        store.status_jobs(),
        store.status_jobs()
    );
    for answer in [all.0, all.1, all.2] {
        answer.unwrap();
    }
    store.close().await;
    db.drop().await;
}
