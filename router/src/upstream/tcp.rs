//! Opens sockets: names are resolved, every address is tried, the next one first next time.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::Connect;
use crate::clock;
use crate::config::Target;

/// Addresses of a name, as of when they were looked up.
#[derive(Debug)]
struct Resolved {
    addresses: Arc<[SocketAddr]>,
    at: Instant,
    turn: usize,
}

/// Connects over TCP, with TLS where the target says so.
#[derive(Debug)]
pub struct Tcp {
    resolved: Mutex<HashMap<(String, u16), Resolved>>,
    resolve_every: Duration,
}

impl Tcp {
    pub fn new(resolve_every: Duration) -> Self {
        Self { resolved: Mutex::new(HashMap::new()), resolve_every }
    }

    /// The addresses of the target and which of them to try first.
    async fn addresses(&self, target: &Target) -> io::Result<(Arc<[SocketAddr]>, usize)> {
        let key = (target.host.clone(), target.port);
        let now = clock::now();
        if let Some(it) = self.resolved().get_mut(&key)
            && now.saturating_duration_since(it.at) < self.resolve_every
        {
            it.turn = it.turn.wrapping_add(1);
            return Ok((Arc::clone(&it.addresses), it.turn));
        }
        let found: Arc<[SocketAddr]> =
            lookup_host((target.host.as_str(), target.port)).await?.collect();
        if found.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
        }
        let resolved = Resolved { addresses: Arc::clone(&found), at: now, turn: 0 };
        self.resolved().insert(key, resolved);
        Ok((found, 0))
    }

    fn resolved(&self) -> MutexGuard<'_, HashMap<(String, u16), Resolved>> {
        self.resolved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries the addresses in turn, each for its share of the time that is left.
    async fn open(&self, target: &Target, until: Instant) -> io::Result<TcpStream> {
        if let Ok(ip) = target.host.parse::<IpAddr>() {
            return by(until, TcpStream::connect((ip, target.port))).await;
        }
        let (addresses, turn) = by(until, self.addresses(target)).await?;
        let left = until.saturating_duration_since(clock::now());
        let share = left / u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for step in 0..addresses.len() {
            let address = addresses[turn.wrapping_add(step) % addresses.len()];
            match by(clock::now() + share, TcpStream::connect(address)).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        // None of them answers: what was looked up may be out of date.
        self.resolved().remove(&(target.host.clone(), target.port));
        Err(last)
    }
}

async fn by<T>(until: Instant, wanted: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let timed = tokio::time::timeout_at(until.into(), wanted).await;
    timed.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

impl Connect for Tcp {
    type Io = Socket;

    async fn connect(&self, target: &Target, limit: Duration) -> io::Result<Socket> {
        // One limit for everything: the name, its addresses, TLS.
        let until = clock::now() + limit;
        let stream = self.open(target, until).await?;
        stream.set_nodelay(true)?;
        let Some(config) = &target.tls else { return Ok(Socket::Plain(stream)) };
        let name = ServerName::try_from(target.host.clone()).map_err(io::Error::other)?;
        let connector = TlsConnector::from(Arc::clone(&config.0));
        let tls = by(until, connector.connect(name, stream)).await?;
        if target.http2 && tls.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(io::Error::other("the endpoint does not speak HTTP/2"));
        }
        Ok(Socket::Tls(Box::new(tls)))
    }
}

/// A socket to an endpoint.
#[derive(Debug)]
pub enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(it) => Pin::new(it).poll_read(cx, buffer),
            Self::Tls(it) => Pin::new(it).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(it) => Pin::new(it).poll_write(cx, bytes),
            Self::Tls(it) => Pin::new(it).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(it) => Pin::new(it).poll_write_vectored(cx, slices),
            Self::Tls(it) => Pin::new(it).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(it) => it.is_write_vectored(),
            Self::Tls(it) => it.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(it) => Pin::new(it).poll_flush(cx),
            Self::Tls(it) => Pin::new(it).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(it) => Pin::new(it).poll_shutdown(cx),
            Self::Tls(it) => Pin::new(it).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests;
