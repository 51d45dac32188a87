//! LISTEN, with a connection of its own that is opened again whenever it is lost. A lost notice costs one poll, no more.

use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};

use super::Store;

/// Where the SQL functions tell that a running job was cancelled.
const CANCELLED: &str = "piecework_cancel";
/// Where they tell that the fleet shall serve something else.
const PLUGINS: &str = "piecework_plugins";

/// What the listener has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Listening from now on: what was enqueued before may have been missed, so look once.
    Listening,
    /// Not listening: poll more often.
    Deaf,
    /// A job was enqueued.
    Enqueued,
    /// A job was cancelled while it ran.
    Cancelled,
    /// The fleet shall serve something else.
    Plugins,
}

impl Store {
    /// Listens until dropped, and tells `hear` what happens.
    pub(crate) async fn listen(&self, mut hear: impl FnMut(Notice)) {
        loop {
            if let Err(error) = self.hear_until_lost(&mut hear).await {
                tracing::warn!(%error, "LISTEN is down, polling meanwhile");
            }
            hear(Notice::Deaf);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    async fn hear_until_lost(&self, hear: &mut impl FnMut(Notice)) -> Result<(), sqlx::Error> {
        // A pool of its own, new each time: what a lost connection does to it concerns nobody else.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .connect_with(self.links.options.clone())
            .await?;
        let mut listener = PgListener::connect_with(&pool).await?;
        listener
            .listen_all(["piecework", CANCELLED, PLUGINS])
            .await?;
        hear(Notice::Listening);
        // `try_recv` says None when the connection was lost; the next one is made here, so that the loss is heard of.
        while let Some(notice) = listener.try_recv().await? {
            hear(match notice.channel() {
                CANCELLED => Notice::Cancelled,
                PLUGINS => Notice::Plugins,
                _ => Notice::Enqueued,
            });
        }
        Ok(())
    }
}
