//! A scripted server on a real socket: it answers, stalls, drips, resets, half-closes and lies.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// What the router asks for its own sake.
const ASIDE: [&str; 5] = ["/health", "/load", "/get_load", "/v1/models", "/server_info"];

/// What the server does next on a connection that has sent the head of a request.
#[derive(Clone, Debug)]
pub enum Step {
    /// Put first: the script itself answers what the router asks for its own sake.
    Aside,
    /// Reads the request's body.
    ReadBody,
    Send(Vec<u8>),
    Wait(Duration),
    /// Waits for the next request, and closes if none comes in time.
    CloseIfIdle(Duration),
    /// Waits until somebody opens the gate.
    Gate(Arc<Notify>),
    /// Waits until the peer leaves.
    Stall,
    /// Sends this many bytes as fast as they are taken.
    Flood(usize),
    /// Closes with a reset.
    Reset,
    /// Closes the sending side and waits until the peer leaves.
    HalfClose,
    Close,
}

/// A request as it came.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Request line and headers, as they were sent.
    pub head: String,
    /// Decoded, if the script read it.
    pub body: Vec<u8>,
    /// Which connection it came on, counted from 0.
    pub connection: usize,
}

impl Seen {
    pub fn path(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    /// The first header of that name, which is given in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

type Script = dyn Fn(&Seen) -> Vec<Step> + Send + Sync;

/// What the server has seen so far.
#[derive(Debug, Default)]
struct Record {
    requests: Mutex<Vec<Seen>>,
    connections: AtomicUsize,
    /// Peers that left while a script was waiting or sending.
    left: AtomicUsize,
    open: AtomicUsize,
    sent: AtomicUsize,
}

/// The server; it stops when dropped.
pub struct FakeEngine {
    pub address: SocketAddr,
    record: Arc<Record>,
    tasks: JoinSet<()>,
    script: Arc<Script>,
}

impl fmt::Debug for FakeEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeEngine").field("address", &self.address).finish_non_exhaustive()
    }
}

impl FakeEngine {
    /// Runs `script` for every request. What the router asks for its own sake (health, load,
    /// models) is not recorded, and is answered well unless the script begins with `Aside`.
    pub async fn start(script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let mut engine = Self {
            address: listener.local_addr().expect("it is bound"),
            record: Arc::default(),
            tasks: JoinSet::new(),
            script: Arc::new(script),
        };
        engine.listen(listener);
        engine
    }

    /// Stops listening and breaks all connections off.
    pub async fn stop(&mut self) {
        self.tasks.shutdown().await;
    }

    /// Listens again at the same address.
    pub async fn restart(&mut self) {
        let listener = TcpListener::bind(self.address).await.expect("the port is still free");
        self.listen(listener);
    }

    fn listen(&mut self, listener: TcpListener) {
        let (record, script) = (Arc::clone(&self.record), Arc::clone(&self.script));
        self.tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                while connections.try_join_next().is_some() {}
                let (record, script) = (Arc::clone(&record), Arc::clone(&script));
                connections.spawn(async move {
                    let number = record.connections.fetch_add(1, Ordering::SeqCst);
                    let open = Open::count(&record);
                    let mut peer = Peer { stream, buffer: Vec::new(), record: &record };
                    // However it ends: the peer left, or the script closed.
                    drop(peer.serve(number, &*script).await);
                    drop(open);
                });
            }
        });
    }

    pub fn requests(&self) -> Vec<Seen> {
        self.record.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many peers left in the middle of a script.
    pub fn left(&self) -> usize {
        self.record.left.load(Ordering::SeqCst)
    }

    /// Connections accepted so far, those of probes among them.
    pub fn connections(&self) -> usize {
        self.record.connections.load(Ordering::SeqCst)
    }

    /// Connections that are open now.
    pub fn open(&self) -> usize {
        self.record.open.load(Ordering::SeqCst)
    }

    /// Bytes that `Flood` could send.
    pub fn sent(&self) -> usize {
        self.record.sent.load(Ordering::SeqCst)
    }
}

struct Open<'a>(&'a Record);

impl<'a> Open<'a> {
    fn count(record: &'a Record) -> Self {
        record.open.fetch_add(1, Ordering::SeqCst);
        Self(record)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Peer<'a> {
    stream: TcpStream,
    buffer: Vec<u8>,
    record: &'a Record,
}

impl Peer<'_> {
    async fn serve(&mut self, number: usize, script: &Script) -> io::Result<()> {
        self.stream.set_nodelay(true)?;
        loop {
            let mut seen =
                Seen { head: self.read_head().await?, connection: number, ..Seen::default() };
            let steps = script(&seen);
            let is_aside =
                ASIDE.contains(&seen.path()) && seen.header("connection") == Some("close");
            if is_aside && !matches!(steps.first(), Some(Step::Aside)) {
                self.stream.write_all(&ok("text/plain", b"{}")).await?;
                continue;
            }
            let mut at = None;
            if !is_aside {
                let mut requests = self.requests();
                requests.push(seen.clone());
                at = Some(requests.len() - 1);
            }
            for step in steps {
                if matches!(step, Step::ReadBody) {
                    seen.body = self.read_body(&seen).await?;
                    if let Some(at) = at {
                        self.requests()[at].body.clone_from(&seen.body);
                    }
                } else if !self.step(step).await? {
                    return Ok(());
                }
            }
        }
    }

    fn requests(&self) -> std::sync::MutexGuard<'_, Vec<Seen>> {
        self.record.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does one step; false when the connection is over.
    async fn step(&mut self, step: Step) -> io::Result<bool> {
        match step {
            Step::Aside | Step::ReadBody => {}
            Step::Send(bytes) => {
                let sent = self.stream.write_all(&bytes).await;
                if sent.is_err() {
                    self.record.left.fetch_add(1, Ordering::SeqCst);
                }
                sent?;
            }
            Step::Wait(pause) => {
                return Ok(tokio::time::timeout(pause, self.peer_leaves()).await.is_err());
            }
            Step::CloseIfIdle(pause) => {
                if self.buffer.is_empty() {
                    let next = tokio::time::timeout(pause, self.stream.readable()).await;
                    return Ok(next.is_ok());
                }
            }
            Step::Gate(gate) => {
                return Ok(tokio::select! {
                    () = gate.notified() => true,
                    () = self.peer_leaves() => false,
                });
            }
            Step::Stall => {
                self.peer_leaves().await;
                return Ok(false);
            }
            Step::Flood(bytes) => return self.flood(bytes).await,
            Step::Reset => {
                socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))?;
                return Ok(false);
            }
            Step::HalfClose => {
                self.stream.shutdown().await?;
                self.peer_leaves().await;
                return Ok(false);
            }
            Step::Close => return Ok(false),
        }
        Ok(true)
    }

    async fn flood(&mut self, bytes: usize) -> io::Result<bool> {
        let piece = vec![b'x'; 64 * 1024];
        let mut left = bytes;
        while 0 < left {
            let Ok(count) = self.stream.write(&piece[..left.min(piece.len())]).await else {
                self.record.left.fetch_add(1, Ordering::SeqCst);
                return Ok(false);
            };
            self.record.sent.fetch_add(count, Ordering::SeqCst);
            left -= count;
        }
        Ok(true)
    }

    async fn peer_leaves(&mut self) {
        while let Ok(1..) = self.stream.read_buf(&mut self.buffer).await {}
        self.record.left.fetch_add(1, Ordering::SeqCst);
    }

    async fn read_more(&mut self) -> io::Result<()> {
        self.buffer.reserve(64 * 1024);
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    async fn read_until(&mut self, end: &[u8]) -> io::Result<Vec<u8>> {
        loop {
            if let Some(at) = self.buffer.windows(end.len()).position(|it| it == end) {
                return Ok(self.buffer.drain(..at + end.len()).collect());
            }
            self.read_more().await?;
        }
    }

    async fn read_exactly(&mut self, len: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() < len {
            self.read_more().await?;
        }
        Ok(self.buffer.drain(..len).collect())
    }

    async fn read_head(&mut self) -> io::Result<String> {
        let head = self.read_until(b"\r\n\r\n").await?;
        Ok(String::from_utf8_lossy(&head).into_owned())
    }

    async fn read_body(&mut self, seen: &Seen) -> io::Result<Vec<u8>> {
        if seen.header("transfer-encoding").is_none() {
            let len = seen.header("content-length").and_then(|it| it.parse().ok()).unwrap_or(0);
            return self.read_exactly(len).await;
        }
        let mut body = Vec::new();
        loop {
            let line = self.read_until(b"\r\n").await?;
            let line = String::from_utf8_lossy(&line);
            let len = usize::from_str_radix(line.trim(), 16).map_err(io::Error::other)?;
            let chunk = self.read_exactly(len + 2).await?;
            body.extend_from_slice(&chunk[..len]);
            if len == 0 {
                return Ok(body);
            }
        }
    }
}

/// A whole answer with a length.
pub fn ok(kind: &str, body: &[u8]) -> Vec<u8> {
    answer("200 OK", kind, body)
}

pub fn answer(status: &str, kind: &str, body: &[u8]) -> Vec<u8> {
    let len = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// The head of an event stream in chunks.
pub fn stream_head() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        .to_vec()
}

/// One chunk; an empty one ends the body.
pub fn chunk(data: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat()
}
