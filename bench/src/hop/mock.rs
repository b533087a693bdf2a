//! An engine that costs nothing: answers at once, or streams pieces that tell when they were sent.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::clock;

/// Begins a prompt that asks for a stream: `pieces=N every=MS;`.
pub(super) const STREAM: &str = "pieces=";

const READ: usize = 64 << 10;
const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 78\r\n\r\n\
    {\"object\":\"chat.completion\",\"choices\":[{\"index\":0,\"message\":{\"content\":\"x\"}}]}";
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
    transfer-encoding: chunked\r\n\r\n";

/// Serves until the program is ended.
///
/// # Errors
///
/// The address is taken.
pub(super) async fn serve(address: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let mut clients = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                stream.set_nodelay(true)?;
                clients.spawn(answer_all(stream));
            }
            // A client that breaks off is no concern of the others.
            Some(_) = clients.join_next() => {}
        }
    }
}

async fn answer_all(mut stream: TcpStream) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(READ);
    loop {
        let Some(end) = request_end(&bytes) else {
            if stream.read_buf(&mut bytes).await? == 0 {
                return Ok(());
            }
            continue;
        };
        match stream_of(&bytes[..end]) {
            None => stream.write_all(ANSWER).await?,
            Some((pieces, every)) => write_pieces(&mut stream, pieces, every).await?,
        }
        bytes.drain(..end);
    }
}

/// Where the first request ends, once all of it is there.
fn request_end(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|it| it == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..head]).ok()?.to_ascii_lowercase();
    if text.contains("transfer-encoding: chunked") {
        let body = &bytes[head..];
        return Some(head + body.windows(5).position(|it| it == b"0\r\n\r\n")? + 5);
    }
    let length = text.split("content-length:").nth(1).and_then(|it| it.lines().next());
    let end = head + length.map_or(Some(0), |it| it.trim().parse().ok())?;
    (end <= bytes.len()).then_some(end)
}

/// How many pieces a request asks for, and how far apart.
fn stream_of(request: &[u8]) -> Option<(u32, Duration)> {
    let at = request.windows(STREAM.len()).position(|it| it == STREAM.as_bytes())?;
    let text = std::str::from_utf8(&request[at + STREAM.len()..]).ok()?;
    let (pieces, rest) = text.split_once(" every=")?;
    let (ms, _) = rest.split_once(';')?;
    Some((pieces.parse().ok()?, Duration::from_millis(ms.parse().ok()?)))
}

async fn write_pieces(stream: &mut TcpStream, pieces: u32, every: Duration) -> io::Result<()> {
    stream.write_all(HEAD).await?;
    let start = Instant::now();
    for piece in 0..pieces {
        sleep_until(start + every * piece).await;
        let text = format!("data: {}\n\n", clock::unix_ns());
        stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await?;
    }
    stream.write_all(b"0\r\n\r\n").await
}

#[cfg(test)]
mod tests;
