//! One kept connection: sends a request that is ready made, reads the answer piece by piece.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const HEAD_MAX: usize = 64 << 10;

/// Who takes nothing or tells nothing for this long is broken; pieces come at least once a minute.
const SILENCE_MAX: Duration = Duration::from_secs(90);

/// A chat request whose only message is `prompt` and some filling, as bytes for the wire.
pub(super) fn request(prompt: &str, len: usize, is_stream: bool) -> Vec<u8> {
    let filling = "x".repeat(len.saturating_sub(prompt.len()));
    let message = format!(r#"{{"role":"user","content":"{prompt}{filling}"}}"#);
    let body = format!(r#"{{"model":"m","stream":{is_stream},"messages":[{message}]}}"#);
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// How an answer's body ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Framing {
    Length(usize),
    Chunks,
}

/// A connection to a proxy, or past it.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    /// What was read and not used.
    bytes: Vec<u8>,
}

impl Wire {
    pub(super) async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = timeout(SILENCE_MAX, TcpStream::connect(address)).await??;
        stream.set_nodelay(true)?;
        Ok(Self { stream, bytes: Vec::new() })
    }

    /// Sends a request and reads its answer to the end; `on_piece` sees the body as it comes.
    ///
    /// # Errors
    ///
    /// The connection broke, or the answer is not a good one.
    pub(super) async fn ask(
        &mut self,
        request: &[u8],
        mut on_piece: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        timeout(SILENCE_MAX, self.stream.write_all(request)).await??;
        let framing = self.head().await?;
        match framing {
            Framing::Length(len) => self.take(len, &mut on_piece).await,
            Framing::Chunks => loop {
                let line = self.line().await?;
                let size = line.split(';').next().unwrap_or_default().trim();
                let len =
                    usize::from_str_radix(size, 16).map_err(|_| bad("a chunk has no size"))?;
                self.take(len, &mut on_piece).await?;
                if !self.line().await?.is_empty() {
                    return Err(bad("a chunk is longer than it says"));
                }
                if len == 0 {
                    return Ok(());
                }
            },
        }
    }

    async fn head(&mut self) -> io::Result<Framing> {
        let status = self.line().await?;
        if status.split(' ').nth(1) != Some("200") {
            return Err(bad(&format!("the answer is {status}")));
        }
        let mut framing = None;
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                return framing.ok_or_else(|| bad("the answer has no length"));
            }
            let (name, value) = line.split_once(':').ok_or_else(|| bad("not a header"))?;
            if name.eq_ignore_ascii_case("content-length") {
                let len = value.trim().parse().map_err(|_| bad("not a length"))?;
                framing = Some(Framing::Length(len));
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                framing = Some(Framing::Chunks);
            }
        }
    }

    async fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.bytes.windows(2).position(|it| it == b"\r\n") {
                let line = String::from_utf8_lossy(&self.bytes[..end]).into_owned();
                self.bytes.drain(..end + 2);
                return Ok(line);
            }
            if HEAD_MAX < self.bytes.len() {
                return Err(bad("a line without an end"));
            }
            self.fill().await?;
        }
    }

    async fn take(&mut self, len: usize, on_piece: &mut impl FnMut(&[u8])) -> io::Result<()> {
        let mut left = len;
        while 0 < left {
            if self.bytes.is_empty() {
                self.fill().await?;
            }
            let taken = left.min(self.bytes.len());
            on_piece(&self.bytes[..taken]);
            self.bytes.drain(..taken);
            left -= taken;
        }
        Ok(())
    }

    async fn fill(&mut self) -> io::Result<()> {
        match timeout(SILENCE_MAX, self.stream.read_buf(&mut self.bytes)).await?? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
