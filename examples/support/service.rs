//! An HTTP service on loopback that does to its clients what real ones do: it fails, hangs, breaks off, answers twice. Written by
//! hand since no library would.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A request, as far as the services look at it.
pub(crate) struct Request {
    pub(crate) idempotency_key: String,
    pub(crate) body: Value,
}

/// What the service does with it.
pub(crate) enum Reply {
    /// Answers, after a while.
    Answer(Duration, u16, &'static str),
    /// Answers, and then once more.
    Twice(u16),
    /// Never answers.
    Hang,
    /// Closes the connection without a word.
    Break,
}

/// Decides about each request; called once for each.
pub(crate) trait Service: Send + Sync + 'static {
    fn reply(&self, request: &Request) -> Reply;
    /// The caller of this request got its answer, or went away.
    fn gone(&self, _: &Request) {}
}

/// Serves until the program ends.
pub(crate) async fn serve(service: Arc<impl Service>) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service.clone();
            tokio::spawn(async move {
                let _ = talk(stream, &*service).await;
            });
        }
    });
    Ok(address)
}

async fn talk(stream: TcpStream, service: &impl Service) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    loop {
        let Some(request) = read(&mut stream).await? else {
            return Ok(());
        };
        let reply = service.reply(&request);
        let done = act(&mut stream, reply).await;
        service.gone(&request);
        if !done? {
            return Ok(());
        }
    }
}

/// Whether the connection goes on.
async fn act(stream: &mut BufReader<TcpStream>, reply: Reply) -> Result<bool> {
    let (wait, status, header, times) = match reply {
        Reply::Answer(wait, status, header) => (wait, status, header, 1),
        Reply::Twice(status) => (Duration::ZERO, status, "", 2),
        Reply::Break => return Ok(false),
        Reply::Hang => {
            // Until the client goes away.
            let _ = stream.read_u8().await;
            return Ok(false);
        }
    };
    // A client that goes away is noticed meanwhile.
    if tokio::time::timeout(wait, stream.read_u8()).await.is_ok() {
        return Ok(false);
    }
    let answer = format!("HTTP/1.1 {status} -\r\n{header}content-length: 2\r\n\r\n{{}}");
    stream
        .get_mut()
        .write_all(answer.repeat(times).as_bytes())
        .await?;
    Ok(true)
}

async fn read(stream: &mut BufReader<TcpStream>) -> Result<Option<Request>> {
    let (mut line, mut length, mut idempotency_key) = (String::new(), 0, String::new());
    if stream.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    loop {
        line.clear();
        if stream.read_line(&mut line).await? <= 2 {
            break;
        }
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse()?,
            "idempotency-key" => value.trim().clone_into(&mut idempotency_key),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Some(Request {
        idempotency_key,
        body: serde_json::from_slice(&body)?,
    }))
}
