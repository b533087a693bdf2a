//! A client's connection: what the two ends of it must know of each other.

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use http::HeaderValue;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;

use self::head::Head;
use self::preface::Preface;
use crate::clock;
use crate::upstream::Transport;

mod head;
mod preface;

/// How long a client that has its answer may go on sending.
const LINGER: Duration = Duration::from_secs(2);

/// A stream that can be reset, for answers whose end nothing else can mark as wrong.
pub trait Stream: Transport {
    fn reset(&mut self);
}

impl Stream for TcpStream {
    fn reset(&mut self) {
        // Best effort: the connection is going away either way.
        drop(socket2::SockRef::from(&*self).set_linger(Some(Duration::ZERO)));
    }
}

impl<S: Stream> Stream for TlsStream<S> {
    fn reset(&mut self) {
        self.get_mut().0.reset();
    }
}

/// One connection of a client, shared by its socket and its requests.
#[derive(Debug)]
pub struct Client {
    pub peer: SocketAddr,
    /// Its address, as endpoints are told it.
    pub forwarded: HeaderValue,
    pub is_tls: bool,
    /// Requests being served on it.
    active: AtomicU32,
    /// Requests begun on it so far.
    begun: AtomicU32,
    ambiguous: AtomicBool,
    stalled: AtomicBool,
    aborted: AtomicBool,
    lingers: AtomicBool,
}

impl Client {
    pub fn new(peer: SocketAddr, is_tls: bool) -> Self {
        Self {
            peer,
            forwarded: HeaderValue::try_from(peer.ip().to_string()).expect("an address is plain"),
            is_tls,
            active: AtomicU32::new(0),
            begun: AtomicU32::new(0),
            ambiguous: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            lingers: AtomicBool::new(false),
        }
    }

    /// The last head that was read gave both a length and a coding. Of requests that are sent
    /// before the one ahead of them is answered this is not known.
    pub fn is_ambiguous(&self) -> bool {
        self.ambiguous.load(Ordering::Relaxed)
    }

    /// The client stopped reading for too long.
    pub fn has_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }

    /// An answer ended badly: the connection must not close as if it had ended well.
    pub fn abort(&self) {
        self.aborted.store(true, Ordering::Relaxed);
    }

    /// It was answered before it had sent everything: when the connection ends, what it still
    /// sends is taken, since a reset would cost it the answer.
    pub fn linger(&self) {
        self.lingers.store(true, Ordering::Relaxed);
    }

    /// Counts a request on this connection until the guard is dropped.
    pub fn begin(self: &Arc<Self>) -> Active {
        self.active.fetch_add(1, Ordering::Relaxed);
        self.begun.fetch_add(1, Ordering::Relaxed);
        Active(Arc::clone(self))
    }
}

/// A request being served on a connection.
#[derive(Debug)]
pub struct Active(Arc<Client>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long a connection may do nothing.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Between requests.
    pub idle: Duration,
    /// From the first byte of a request to the end of its head; over HTTP/2 from the first byte of
    /// the connection to the end of its preface.
    pub header: Duration,
    /// While it does not take what is sent.
    pub send_stall: Option<Duration>,
}

/// The socket of a client, with limits on standing still.
#[derive(Debug)]
pub struct Socket<S: Stream> {
    stream: S,
    client: Arc<Client>,
    limits: Limits,
    /// None is "from the next look at the clock".
    idle_from: Option<Instant>,
    head_from: Option<Instant>,
    head: Head,
    preface: Preface,
    /// The client's `begun` when `head_from` was last right.
    begun_seen: u32,
    read_sleep: Option<Pin<Box<Sleep>>>,
    write_from: Option<Instant>,
    write_sleep: Option<Pin<Box<Sleep>>>,
    /// Since when it is only taking what is still sent.
    linger_from: Option<Instant>,
}

impl<S: Stream> Socket<S> {
    pub fn new(stream: S, client: Arc<Client>, limits: Limits, now: Instant) -> Self {
        Self {
            stream,
            client,
            limits,
            idle_from: Some(now),
            head_from: None,
            head: Head::default(),
            preface: Preface::default(),
            begun_seen: 0,
            read_sleep: None,
            write_from: None,
            write_sleep: None,
            linger_from: None,
        }
    }

    /// A request that has begun had a whole head, and while one runs the client may be silent.
    /// True if one runs.
    fn note_requests(&mut self) -> bool {
        let begun = self.client.begun.load(Ordering::Relaxed);
        let is_active = self.client.active.load(Ordering::Relaxed) != 0;
        if begun != self.begun_seen || is_active {
            self.begun_seen = begun;
            self.idle_from = None;
            self.head_from = None;
        }
        is_active
    }

    /// Something came, or the end.
    fn on_read(&mut self, bytes: &[u8]) {
        let is_active = self.note_requests();
        self.preface.read(bytes);
        if self.preface.is_whole() {
            // Over HTTP/2 what comes between requests may be no request: settings, pings.
            self.head_from = None;
            return;
        }
        if self.head_from.is_none() {
            self.head_from = Some(clock::now());
            self.head = Head::default();
        }
        // While a request runs it is a body, mostly.
        if !is_active {
            self.head.read(bytes);
            self.client.ambiguous.store(self.head.is_ambiguous(), Ordering::Relaxed);
        }
    }

    /// Nothing came: is it taking too long?
    fn on_read_pending(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.note_requests() {
            // No limit holds; another look later, in case nothing comes after the request.
            let idle = self.limits.idle;
            let look = self.read_sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(idle)));
            while look.as_mut().poll(cx).is_ready() {
                look.as_mut().reset((clock::now() + idle).into());
            }
            return Poll::Pending;
        }
        let until = match self.head_from {
            Some(from) => from + self.limits.header,
            None => *self.idle_from.get_or_insert_with(clock::now) + self.limits.idle,
        };
        let sleep =
            self.read_sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until.into())));
        // A later limit is only set when the sleep ends, so that most requests set no timer.
        if tokio::time::Instant::from_std(until) < sleep.deadline() {
            sleep.as_mut().reset(until.into());
        }
        while sleep.as_mut().poll(cx).is_ready() {
            if until <= clock::now() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            sleep.as_mut().reset(until.into());
        }
        Poll::Pending
    }

    /// Takes what is still sent, for a short while.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut scratch = [0; 4096];
        for _ in 0..256 {
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
                // The client has closed, or is gone: either way there is nothing to wait for.
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    let until = *self.linger_from.get_or_insert_with(clock::now) + LINGER;
                    let sleep =
                        self.write_sleep.insert(Box::pin(tokio::time::sleep_until(until.into())));
                    return sleep.as_mut().poll(cx).map(Ok);
                }
            }
        }
        // Others have a turn as well.
        cx.waker().wake_by_ref();
        let from = *self.linger_from.get_or_insert_with(clock::now);
        if clock::now() < from + LINGER { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    fn on_write<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        let Some(limit) = self.limits.send_stall else { return written };
        if written.is_ready() {
            self.write_from = None;
            return written;
        }
        let now = clock::now();
        let until = *self.write_from.get_or_insert(now) + limit;
        let sleep = self
            .write_sleep
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until.into())));
        while sleep.as_mut().poll(cx).is_ready() {
            if until <= now {
                self.client.stalled.store(true, Ordering::Relaxed);
                self.stream.reset();
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            sleep.as_mut().reset(until.into());
        }
        Poll::Pending
    }
}

impl<S: Stream> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        match Pin::new(&mut this.stream).poll_read(cx, buffer) {
            Poll::Ready(result) => {
                this.on_read(&buffer.filled()[before..]);
                Poll::Ready(result)
            }
            Poll::Pending => this.on_read_pending(cx),
        }
    }
}

impl<S: Stream> AsyncWrite for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.on_write(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.on_write(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.linger_from.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            this.note_requests();
            let is_in_head = this.head_from.is_some();
            if !is_in_head && !this.client.lingers.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
            this.linger_from = Some(clock::now());
        }
        this.poll_linger(cx)
    }
}

impl<S: Stream> Drop for Socket<S> {
    fn drop(&mut self) {
        if self.client.aborted.load(Ordering::Relaxed) {
            self.stream.reset();
        }
    }
}
