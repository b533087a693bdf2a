//! Connections to endpoints: made, kept for a short while, used again.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;
use std::time::{Duration, Instant};

use http::uri::Scheme;
use hyper::client::conn::http2;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::task::TaskTracker;

use self::upload::Upload;
use self::wire::Wire;
use crate::config::{Limits, Target};
use crate::fleet::endpoint::EndpointId;
use crate::serve::Tasks;

pub mod tcp;
pub mod upload;
pub mod wire;

/// Idle connections kept by one thread.
const IDLE_MAX: usize = 1024;

/// A stream of bytes in both directions.
pub trait Transport: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin + 'static> Transport for T {}

/// Opens streams: sockets in production, a simulated network in tests.
pub trait Connect: fmt::Debug + Send + Sync + 'static {
    type Io: Transport;

    /// Errors of kind `TimedOut` when it takes longer than `limit`, `ConnectionRefused` when
    /// nobody listens there.
    fn connect(
        &self,
        target: &Target,
        limit: Duration,
    ) -> impl Future<Output = io::Result<Self::Io>> + Send;
}

/// Opens a connection to the target in the protocol that it speaks.
pub async fn open<C: Connect>(
    connector: &C,
    target: &Target,
    limit: Duration,
    limits: &Limits,
    tasks: &TaskTracker,
) -> io::Result<Wire<C::Io>> {
    let io = connector.connect(target, limit).await?;
    if !target.http2 {
        let wire = Wire::http1(io, limits.header_bytes_max, limits.headers_max).await;
        return wire.map_err(io::Error::other);
    }
    let mut builder = http2::Builder::new(Tasks(tasks.clone()));
    builder.max_header_list_size(limits.header_bytes_max);
    let handshake = builder.handshake::<_, Upload>(TokioIo::new(io));
    let (sender, connection) = handshake.await.map_err(io::Error::other)?;
    // Ends when its last request and the pool have let go of it.
    drop(tasks.spawn(async move { drop(connection.await) }));
    let scheme = if target.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
    Ok(Wire::Http2 { sender, scheme })
}

#[derive(Debug)]
struct Idle<Io: Transport> {
    endpoint: EndpointId,
    target: Arc<Target>,
    since: Instant,
    wire: Wire<Io>,
}

/// Connections that nobody uses at the moment, or that may be shared, of one thread.
#[derive(Debug)]
pub struct Pool<Io: Transport> {
    idle: Mutex<Vec<Idle<Io>>>,
}

impl<Io: Transport> Default for Pool<Io> {
    fn default() -> Self {
        Self { idle: Mutex::new(Vec::new()) }
    }
}

impl<Io: Transport> Pool<Io> {
    /// The connection used last, if one is young enough and still open.
    pub fn take(
        &self,
        endpoint: EndpointId,
        target: &Arc<Target>,
        idle_max: Duration,
        now: Instant,
        cx: &mut Context<'_>,
    ) -> Option<Wire<Io>> {
        loop {
            let mut found = {
                let mut idle = self.idle();
                let fits = |it: &Idle<Io>| it.endpoint == endpoint && it.target == *target;
                let at = idle.iter().rposition(fits)?;
                if let Some(wire) = idle[at].wire.share()
                    && idle[at].wire.is_usable(cx)
                {
                    idle[at].since = now;
                    return Some(wire);
                }
                idle.remove(at)
            };
            let is_young = now.saturating_duration_since(found.since) < idle_max;
            if is_young && found.wire.is_usable(cx) {
                return Some(found.wire);
            }
        }
    }

    /// Keeps a connection: one whose last answer is complete, or one to share.
    pub fn put(&self, endpoint: EndpointId, target: Arc<Target>, wire: Wire<Io>, now: Instant) {
        let mut idle = self.idle();
        if idle.len() < IDLE_MAX {
            idle.push(Idle { endpoint, target, since: now, wire });
        }
    }

    /// Closes what has been idle for too long. To be called every now and then.
    pub fn sweep(&self, idle_max: Duration, now: Instant) {
        let is_old = |it: &Idle<Io>| idle_max <= now.saturating_duration_since(it.since);
        let old: Vec<_> = self.idle().extract_if(.., |it| is_old(it)).collect();
        drop(old);
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle<Io>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
