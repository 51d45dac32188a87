//! A relay between a host and the database, for the day when the link fails: it can freeze (the sockets stay, nothing
//! passes any more) or break (they are closed, and so is every new one).

use std::path::Path;
use std::str::FromStr;

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How the link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Open,
    Frozen,
    /// Requests reach the database, and its answers wait.
    Deaf,
    Broken,
    /// Connections that are older than this number have gone silent for good; newer ones pass.
    Silent(usize),
}

/// A relay, which ends with the value.
#[derive(Debug)]
pub(crate) struct Relay {
    url: String,
    link: watch::Sender<Link>,
    used: watch::Receiver<usize>,
    _task: JoinSet<()>,
}

impl Relay {
    /// A relay to the database of this URL.
    pub(crate) async fn to(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (address, _) = url.split_once('?').unwrap_or((url, ""));
        let (start, database) = address.rsplit_once('/').unwrap();
        let user = start.rsplit_once('@').map_or(start, |(user, _)| user);
        let (link, links) = watch::channel(Link::Open);
        let (use_it, used) = watch::channel(0);
        let mut task = JoinSet::new();
        let server = PgConnectOptions::from_str(url).unwrap();
        task.spawn(async move {
            let mut streams = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let number = *use_it.borrow();
                use_it.send_replace(number + 1);
                streams.spawn(carry(client, server.clone(), number, links.clone()));
            }
        });
        Self {
            url: format!("{user}@127.0.0.1:{port}/{database}?sslmode=disable"),
            link,
            used,
            _task: task,
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn set(&self, link: Link) {
        self.link.send_replace(link);
    }

    /// Makes the connections of now silent for good, as a firewall does that forgot them; new ones pass.
    pub(crate) fn silence(&self) {
        let silent = *self.used.borrow();
        self.set(Link::Silent(silent));
    }

    /// Waits until somebody has connected.
    pub(crate) async fn used(&self) {
        self.used.clone().wait_for(|used| *used > 0).await.unwrap();
    }
}

async fn carry(
    client: TcpStream,
    server: PgConnectOptions,
    number: usize,
    link: watch::Receiver<Link>,
) {
    let port = server.get_port();
    if let Some(folder) = server.get_socket() {
        let path = Path::new(folder).join(format!(".s.PGSQL.{port}"));
        let (from, to) = UnixStream::connect(path).await.unwrap().into_split();
        both(client, from, to, number, link).await;
    } else {
        let server = TcpStream::connect((server.get_host(), port)).await.unwrap();
        let (from, to) = server.into_split();
        both(client, from, to, number, link).await;
    }
}

async fn both(
    client: TcpStream,
    server_from: impl AsyncRead + Unpin,
    server_to: impl AsyncWrite + Unpin,
    number: usize,
    link: watch::Receiver<Link>,
) {
    let (client_from, client_to) = client.into_split();
    // Whichever ends first ends both.
    tokio::select! {
        () = pass(client_from, server_to, number, false, link.clone()) => {}
        () = pass(server_from, client_to, number, true, link.clone()) => {}
        () = reaches(link, |link| link == Link::Broken) => {}
    }
}

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    number: usize,
    answers: bool,
    link: watch::Receiver<Link>,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let passes = |link| match link {
            Link::Frozen => false,
            Link::Deaf => !answers,
            Link::Silent(older) => number >= older,
            Link::Open | Link::Broken => true,
        };
        reaches(link.clone(), passes).await;
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

async fn reaches(mut link: watch::Receiver<Link>, wanted: impl Fn(Link) -> bool) {
    let _ = link.wait_for(|link| wanted(*link)).await;
}
