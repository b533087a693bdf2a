//! Connections to endpoints: made, kept for a short while, used again.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::config::Target;
use crate::fleet::endpoint::EndpointId;
use crate::upstream::upload::Upload;

pub mod tcp;
pub mod upload;

/// Idle connections kept for one endpoint by one thread.
const IDLE_MAX: usize = 512;

/// A stream of bytes in both directions.
pub trait Transport: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin + 'static> Transport for T {}

/// Opens streams: sockets in production, a simulated network in tests.
pub trait Connect: fmt::Debug + Send + Sync + 'static {
    type Io: Transport;

    fn connect(&self, target: &Target) -> impl Future<Output = io::Result<Self::Io>> + Send;
}

/// A connection to an endpoint. Nothing runs it but the request that holds it, so dropping it
/// closes the socket at once, whatever was going on.
#[derive(Debug)]
pub struct Wire<Io: Transport> {
    sender: http1::SendRequest<Upload>,
    /// None once it has ended.
    connection: Option<http1::Connection<TokioIo<Io>, Upload>>,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum SendError {
    /// Nothing was written; the request comes back.
    Unsent(Box<Request<Upload>>),
    /// Something was written, and then the connection ended or spoke no HTTP.
    Sent(hyper::Error),
}

impl<Io: Transport> Wire<Io> {
    pub async fn open(io: Io, header_bytes_max: u32, headers_max: u32) -> hyper::Result<Self> {
        let bytes_max = usize::try_from(header_bytes_max).unwrap_or(usize::MAX).max(8192);
        let mut builder = http1::Builder::new();
        builder.max_buf_size(bytes_max);
        builder.max_headers(usize::try_from(headers_max).unwrap_or(usize::MAX));
        let (sender, connection) = builder.handshake(TokioIo::new(io)).await?;
        Ok(Self { sender, connection: Some(connection) })
    }

    /// Moves bytes; to be called whenever something waits for this connection.
    pub fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && Pin::new(connection).poll(cx).is_ready()
        {
            self.connection = None;
        }
    }

    /// Can it take a request? Looks at the socket first, to see whether it has been closed.
    pub fn is_usable(&mut self, cx: &mut Context<'_>) -> bool {
        self.drive(cx);
        self.connection.is_some() && self.sender.is_ready()
    }

    /// Sends a request and waits for the head of its answer. `check` is asked at each turn and
    /// may end the wait.
    pub async fn send<T>(
        &mut self,
        request: Request<Upload>,
        mut check: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Result<Result<Response<Incoming>, SendError>, T> {
        let mut answer = pin!(self.sender.try_send_request(request));
        let connection = &mut self.connection;
        poll_fn(|cx| {
            if let Some(it) = connection
                && Pin::new(it).poll(cx).is_ready()
            {
                *connection = None;
            }
            if let Poll::Ready(result) = answer.as_mut().poll(cx) {
                return Poll::Ready(Ok(result.map_err(|mut error| match error.take_message() {
                    Some(request) => SendError::Unsent(Box::new(request)),
                    None => SendError::Sent(error.into_error()),
                })));
            }
            check(cx).map(Err)
        })
        .await
    }
}

#[derive(Debug)]
struct Idle<Io: Transport> {
    endpoint: EndpointId,
    target: Arc<Target>,
    since: Instant,
    wire: Box<Wire<Io>>,
}

/// Connections that nobody uses at the moment, of one thread.
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
    ) -> Option<Box<Wire<Io>>> {
        loop {
            let mut found = {
                let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
                let fits = |it: &Idle<Io>| it.endpoint == endpoint && it.target == *target;
                let at = idle.iter().rposition(fits)?;
                idle.remove(at)
            };
            let is_young = now.saturating_duration_since(found.since) < idle_max;
            if is_young && found.wire.is_usable(cx) {
                return Some(found.wire);
            }
        }
    }

    /// Keeps a connection whose last answer is complete.
    pub fn put(
        &self,
        endpoint: EndpointId,
        target: Arc<Target>,
        wire: Box<Wire<Io>>,
        now: Instant,
    ) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(Idle { endpoint, target, since: now, wire });
        }
    }

    /// Closes what has been idle for too long. To be called every now and then.
    pub fn sweep(&self, idle_max: Duration, now: Instant) {
        let is_old = |it: &Idle<Io>| idle_max <= now.saturating_duration_since(it.since);
        let old: Vec<_> = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.extract_if(.., |it| is_old(it)).collect()
        };
        drop(old);
    }
}
