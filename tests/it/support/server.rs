//! An HTTP server that does what a test asks for, also what no server should: the path of a request says what. It counts
//! connections and requests, and ends with the value.

use std::convert::Infallible;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// What a server does before it reads anything.
#[derive(Clone, Debug)]
pub(crate) enum Door {
    Plain,
    /// TLS; with HTTP/2 if that is set.
    Tls(Identity, bool),
    /// TLS with HTTP/2, except that the first connection gets no answer at all.
    FirstHangs(Identity),
    /// Closes each connection at once.
    Closed,
}

/// A certificate for `localhost` and both loopback addresses, which is its own authority.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    config: Arc<ServerConfig>,
    /// The certificate as a file, for `ca_file`.
    pub(crate) file: PathBuf,
}

impl Identity {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("piecework-ca-{}-{number}.pem", std::process::id());
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, made.cert.pem()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        Self {
            config: Arc::new(config),
            file,
        }
    }

    pub(crate) fn remove(&self) {
        std::fs::remove_file(&self.file).unwrap();
    }
}

/// A server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    scheme: &'static str,
    counts: Arc<Counts>,
    goaway: watch::Sender<usize>,
    _task: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Counts {
    accepted: AtomicUsize,
    open: AtomicUsize,
    requests: AtomicUsize,
}

impl Server {
    /// A server on `127.0.0.1`.
    pub(crate) async fn plain() -> Self {
        Self::start("127.0.0.1:0", Door::Plain).await
    }

    pub(crate) async fn start(address: &str, door: Door) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let counts = Arc::new(Counts::default());
        let counted = counts.clone();
        let (goaway, told) = watch::channel(0);
        let scheme = match &door {
            Door::Tls(..) | Door::FirstHangs(_) => "https",
            Door::Plain | Door::Closed => "http",
        };
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                // Head and body are written one after the other: without this the second waits 40 ms for the first.
                let _ = stream.set_nodelay(true);
                let number = counted.accepted.fetch_add(1, Ordering::SeqCst);
                counted.open.fetch_add(1, Ordering::SeqCst);
                let open = Open(counted.clone());
                let (door, told) = (door.clone(), told.clone());
                connections.spawn(async move {
                    let counts = &open.0;
                    match door {
                        Door::Closed => {}
                        Door::Plain => drop(serve(stream, counts).await),
                        Door::Tls(identity, h2) => {
                            serve_tls(stream, &identity, h2, counts, told).await;
                        }
                        Door::FirstHangs(_) if number == 0 => std::future::pending().await,
                        Door::FirstHangs(identity) => {
                            serve_tls(stream, &identity, true, counts, told).await;
                        }
                    }
                });
            }
        });
        Self {
            address,
            scheme,
            counts,
            goaway,
            _task: task,
        }
    }

    /// `http://127.0.0.1:PORT`.
    pub(crate) fn origin(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.origin())
    }

    /// Connections since the start.
    pub(crate) fn accepted(&self) -> usize {
        self.counts.accepted.load(Ordering::SeqCst)
    }

    /// Connections that are open.
    pub(crate) fn open(&self) -> usize {
        self.counts.open.load(Ordering::SeqCst)
    }

    /// Requests whose head was read.
    pub(crate) fn requests(&self) -> usize {
        self.counts.requests.load(Ordering::SeqCst)
    }

    /// Tells all HTTP/2 connections to go away.
    pub(crate) fn goaway(&self) {
        self.goaway.send_modify(|count| *count += 1);
    }
}

/// Counts a connection as open.
struct Open(Arc<Counts>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A request as it was read.
struct Asked {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Asked {
    fn echo(&self) -> Vec<u8> {
        let echo = serde_json::json!({
            "method": self.method,
            "path": self.path,
            "headers": self.headers,
            "body": String::from_utf8_lossy(&self.body),
        });
        serde_json::to_vec(&echo).unwrap()
    }

    /// The path without its query, and the query.
    fn split(&self) -> (&str, &str) {
        self.path.split_once('?').unwrap_or((&self.path, ""))
    }
}

/// Serves HTTP/1.1 until one side closes.
async fn serve<T: AsyncRead + AsyncWrite>(stream: T, counts: &Counts) -> io::Result<()> {
    let (read, mut write) = tokio::io::split(stream);
    let mut read = BufReader::new(read);
    loop {
        let Some(mut asked) = read_head(&mut read).await? else {
            return Ok(());
        };
        counts.requests.fetch_add(1, Ordering::SeqCst);
        if asked.path == "/no-read" {
            // The request's body stays where it is for a while.
            tokio::time::sleep(Duration::from_millis(300)).await;
            closed(&mut read).await;
            return Ok(());
        }
        read_body(&mut read, &mut asked).await?;
        if !answer(&asked, &mut read, &mut write).await? {
            return Ok(());
        }
    }
}

/// Answers, and says whether the connection goes on.
async fn answer<R, W>(asked: &Asked, read: &mut R, write: &mut W) -> io::Result<bool>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (path, query) = asked.split();
    match path {
        "/echo" => whole(write, "", &asked.echo()).await?,
        "/latin" => whole(write, "", b"caf\xe9").await?,
        "/redirect" => {
            let head =
                format!("HTTP/1.1 302 Found\r\nlocation: {query}\r\ncontent-length: 0\r\n\r\n");
            write.write_all(head.as_bytes()).await?;
        }
        "/silent" => closed(read).await,
        "/dribble-head" => {
            write.write_all(b"HTTP/1.1 200 OK\r\nx: ").await?;
            dribble(write).await?;
        }
        "/dribble-body" => {
            let head = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n";
            write.write_all(head).await?;
            dribble(write).await?;
        }
        "/begun" => {
            let head = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nbegun";
            write.write_all(head).await?;
            closed(read).await;
        }
        "/endless-headers" => {
            write.write_all(b"HTTP/1.1 200 OK\r\n").await?;
            for _ in 0..100 * 1024 {
                let line = format!("x: {}\r\n", "a".repeat(1019));
                write.write_all(line.as_bytes()).await?;
            }
        }
        "/headers" => {
            let lines = "x: a\r\n".repeat(query.parse().unwrap());
            whole(write, &lines, b"").await?;
        }
        "/large-header" => {
            let line = format!("x: {}\r\n", "a".repeat(query.parse().unwrap()));
            whole(write, &line, b"").await?;
        }
        "/fill" => whole(write, "", &vec![b'x'; query.parse().unwrap()]).await?,
        "/huge" => {
            let length = if query == "chunked" {
                "transfer-encoding: chunked"
            } else {
                "content-length: 1073741824"
            };
            let head = format!("HTTP/1.1 200 OK\r\n{length}\r\n\r\n");
            write.write_all(head.as_bytes()).await?;
            let chunk = vec![b'x'; 64 * 1024];
            for _ in 0..16 * 1024 {
                if query == "chunked" {
                    write.write_all(b"10000\r\n").await?;
                }
                write.write_all(&chunk).await?;
                if query == "chunked" {
                    write.write_all(b"\r\n").await?;
                }
            }
        }
        "/short" => {
            let head = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345";
            write.write_all(head).await?;
            return Ok(false);
        }
        "/gzip" => packed(write, &gzip(asked.echo().as_slice())).await?,
        "/bomb" => packed(write, &gzip(&vec![0; 10 * 1024 * 1024])).await?,
        "/gzip-zeros" => packed(write, &gzip(&vec![0; query.parse().unwrap()])).await?,
        "/gzip-cut" => {
            let all = gzip(asked.echo().as_slice());
            packed(write, &all[..all.len() - 9]).await?;
        }
        "/gzip-false" => packed(write, b"no gzip at all, but it says so").await?,
        "/junk" => write.write_all(b"what is this\r\n\r\n").await?,
        "/upgrade" => {
            let head =
                b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n";
            write.write_all(head).await?;
        }
        "/continue" => {
            write.write_all(b"HTTP/1.1 103 Early Hints\r\n\r\n").await?;
            whole(write, "", b"done").await?;
        }
        "/no-content" => write.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await?,
        "/close-now" => return Ok(false),
        "/close-idle" => {
            whole(write, "", b"").await?;
            return Ok(false);
        }
        _ => {
            write
                .write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                .await?
        }
    }
    write.flush().await?;
    Ok(true)
}

async fn whole<W: AsyncWrite + Unpin>(write: &mut W, lines: &str, body: &[u8]) -> io::Result<()> {
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n{lines}\r\n");
    write.write_all(head.as_bytes()).await?;
    write.write_all(body).await?;
    write.flush().await
}

async fn packed<W: AsyncWrite + Unpin>(write: &mut W, body: &[u8]) -> io::Result<()> {
    whole(write, "content-encoding: gzip\r\n", body).await
}

/// A byte every 50 ms, which no timer that starts anew with each byte would end.
async fn dribble<W: AsyncWrite + Unpin>(write: &mut W) -> io::Result<()> {
    loop {
        write.write_all(b"x").await?;
        write.flush().await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until the other side closes.
async fn closed<R: AsyncRead + Unpin>(read: &mut R) {
    let mut byte = [0];
    while let Ok(1..) = read.read(&mut byte).await {}
}

async fn read_head<R: AsyncRead + Unpin>(read: &mut BufReader<R>) -> io::Result<Option<Asked>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if read.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let mut first = lines[0].split(' ').map(str::to_owned);
    Ok(Some(Asked {
        method: first.next().unwrap(),
        path: first.next().unwrap(),
        headers: lines[1..]
            .iter()
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        body: Vec::new(),
    }))
}

async fn read_body<R: AsyncRead + Unpin>(
    read: &mut BufReader<R>,
    asked: &mut Asked,
) -> io::Result<()> {
    let find = |name: &str| asked.headers.iter().find(|(key, _)| key == name);
    if let Some((_, length)) = find("content-length") {
        asked.body = vec![0; length.parse().unwrap()];
        read.read_exact(&mut asked.body).await?;
    } else if find("transfer-encoding").is_some() {
        loop {
            let mut line = String::new();
            if read.read_line(&mut line).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let length = usize::from_str_radix(line.trim_end(), 16).unwrap();
            let mut chunk = vec![0; length + 2];
            read.read_exact(&mut chunk).await?;
            asked.body.extend_from_slice(&chunk[..length]);
            if length == 0 {
                return Ok(());
            }
        }
    }
    Ok(())
}

async fn serve_tls(
    stream: TcpStream,
    identity: &Identity,
    h2: bool,
    counts: &Arc<Counts>,
    told: watch::Receiver<usize>,
) {
    let mut config = (*identity.config).clone();
    let name: &[u8] = if h2 { b"h2" } else { b"http/1.1" };
    config.alpn_protocols = vec![name.to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    match acceptor.accept(stream).await {
        Ok(stream) if h2 => serve_h2(stream, counts, told).await,
        Ok(stream) => drop(serve(stream, counts).await),
        Err(_) => {}
    }
}

async fn serve_h2<T>(stream: T, counts: &Arc<Counts>, mut told: watch::Receiver<usize>)
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let counts = counts.clone();
    let service = hyper::service::service_fn(move |request| {
        counts.requests.fetch_add(1, Ordering::SeqCst);
        answer_h2(request)
    });
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    told.mark_unchanged();
    loop {
        tokio::select! {
            _ = &mut connection => return,
            Ok(()) = told.changed() => connection.as_mut().graceful_shutdown(),
        }
    }
}

async fn answer_h2(
    request: http::Request<hyper::body::Incoming>,
) -> Result<http::Response<BoxBody<Bytes, Infallible>>, hyper::Error> {
    let (head, body) = request.into_parts();
    let asked = Asked {
        method: head.method.to_string(),
        path: head.uri.to_string(),
        headers: head
            .headers
            .iter()
            .map(|(name, value)| {
                let value = String::from_utf8_lossy(value.as_bytes());
                (name.as_str().to_owned(), value.into_owned())
            })
            .collect(),
        body: body.collect().await?.to_bytes().to_vec(),
    };
    let mut response = http::Response::builder();
    let body = match head.uri.path() {
        "/echo" => asked.echo(),
        "/fill" => vec![b'x'; asked.split().1.parse().unwrap()],
        "/large-header" => {
            let value = "a".repeat(asked.split().1.parse().unwrap());
            response = response.header("x", value);
            Vec::new()
        }
        "/silent" => std::future::pending().await,
        _ => b"what?".to_vec(),
    };
    Ok(response.body(Full::new(body.into()).boxed()).unwrap())
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    packer.write_all(plain).unwrap();
    packer.finish().unwrap()
}
