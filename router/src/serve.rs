//! The listening side: accepts clients, one task for each connection, until told to stop.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use hyper::rt::Executor;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use self::streams::Streams;
use crate::client::{Client, Limits, Socket, Stream};
use crate::clock;
use crate::config::Config;
use crate::proxy::Shard;
use crate::upstream::Connect;

pub(crate) mod streams;

/// The number of headers for which hyper needs no memory from the heap.
pub(crate) const HEADERS_INLINE: u32 = 100;

/// How far the router is on its way out.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Stage {
    Serving,
    /// Accepts nothing new, finishes what runs.
    Draining,
    /// Ends everything.
    Cut,
}

impl Stage {
    /// Waits until the router has come at least that far.
    pub async fn reached(self, seen: &mut watch::Receiver<Self>) {
        // Without a sender nobody is left who could want anything but an end.
        drop(seen.wait_for(|it| self <= *it).await);
    }
}

/// Accepts streams: a socket in production, a simulated network in tests.
pub trait Listen: Send + Sync + 'static {
    type Io: Stream;

    fn accept(&self) -> impl Future<Output = io::Result<(Self::Io, SocketAddr)>> + Send;
}

impl Listen for TcpListener {
    type Io = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, peer) = Self::accept(self).await?;
        stream.set_nodelay(true)?;
        Ok((stream, peer))
    }
}

/// Runs what hyper wants to run beside a connection, in the set that shutdown joins.
#[derive(Clone, Debug)]
pub(crate) struct Tasks(pub TaskTracker);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, future: F) {
        drop(self.0.spawn(future));
    }
}

/// Serves until the stage is past serving, then until all connections are done or it is cut.
/// `permits` bounds the open connections of all threads together.
pub async fn serve<L: Listen, C: Connect>(
    shard: Arc<Shard<C>>,
    listener: L,
    permits: Arc<Semaphore>,
    mut stage: watch::Receiver<Stage>,
) {
    loop {
        let accepted = async {
            let permit = Arc::clone(&permits).acquire_owned().await;
            (permit.expect("never closed"), listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            biased;
            () = Stage::Draining.reached(&mut stage) => break,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (shard, stage) = (Arc::clone(&shard), stage.clone());
                shard.tasks.clone().spawn(async move {
                    connection(shard, stream, peer, stage).await;
                    drop(permit);
                });
            }
            Err(error) if is_of_one_client(&error) => {}
            Err(error) => {
                // Out of descriptors, most likely: they come back as connections end.
                tracing::warn!(%error, "cannot accept");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    shard.tasks.close();
    tokio::select! {
        () = shard.tasks.wait() => {}
        () = Stage::Cut.reached(&mut stage) => {}
    }
}

fn is_of_one_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// One client, from the first byte to the last.
async fn connection<S: Stream, C: Connect>(
    shard: Arc<Shard<C>>,
    stream: S,
    peer: SocketAddr,
    stage: watch::Receiver<Stage>,
) {
    let live = shard.fleet.live_owned();
    let open = Open::count(&shard);
    let ended = if let Some(tls) = &live.config.tls {
        let accepted = Box::pin(TlsAcceptor::from(Arc::clone(&tls.0)).accept(stream));
        match tokio::time::timeout(live.config.timeouts.client_header, accepted).await {
            // On the heap, so that connections without TLS need not have room for it.
            Ok(Ok(stream)) => {
                Box::pin(speak(&shard, &live.config, stream, peer, true, stage)).await
            }
            Ok(Err(error)) => Err(error.into()),
            Err(elapsed) => Err(elapsed.into()),
        }
    } else {
        speak(&shard, &live.config, stream, peer, false, stage).await
    };
    drop(open);
    if let Err(error) = ended {
        // A client that leaves or sends nonsense is no event for an operator.
        tracing::debug!(%peer, %error, "connection ended");
    }
}

type Ended = Result<(), Box<dyn std::error::Error + Send + Sync>>;

async fn speak<S: Stream, C: Connect>(
    shard: &Arc<Shard<C>>,
    config: &Config,
    stream: S,
    peer: SocketAddr,
    is_tls: bool,
    mut stage: watch::Receiver<Stage>,
) -> Ended {
    let client = Arc::new(Client::new(peer, is_tls));
    let limits = Limits {
        idle: config.timeouts.client_idle,
        header: config.timeouts.client_header,
        send_stall: config.timeouts.send_stall,
    };
    let socket = Socket::new(stream, Arc::clone(&client), limits, clock::now());
    let builder = builder(&shard.tasks, config);
    let service = service_fn(|request| {
        let (shard, client) = (Arc::clone(shard), Arc::clone(&client));
        async move { Ok::<_, Infallible>(shard.handle(request, client).await) }
    });
    let mut served = pin!(builder.serve_connection(TokioIo::new(socket), service));
    let news = stage.clone();
    let mut leaving = pin!(Stage::Draining.reached(&mut stage));
    let mut asked_by: Option<Waker> = None;
    let ended = poll_fn(|cx| {
        if let Poll::Ready(ended) = served.as_mut().poll(cx) {
            return Poll::Ready(Some(ended));
        }
        // Asked once and then when there is news: to ask takes a lock, and turns are many.
        let is_asked = asked_by.as_ref().is_some_and(|it| it.will_wake(cx.waker()));
        if is_asked && news.has_changed().is_ok_and(|it| !it) {
            return Poll::Pending;
        }
        asked_by = Some(cx.waker().clone());
        leaving.as_mut().poll(cx).map(|()| None)
    });
    match ended.await {
        Some(ended) => ended,
        None => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    }
}

fn builder(tasks: &TaskTracker, config: &Config) -> auto::Builder<Streams> {
    let size = |it: u32| usize::try_from(it).unwrap_or(usize::MAX);
    let limits = &config.limits;
    let send_stall = config.timeouts.send_stall;
    let mut builder = auto::Builder::new(Streams { tasks: tasks.clone(), send_stall });
    // Without `pipeline_flush`: it holds answers back while bytes of a next request are there.
    builder.http1().max_buf_size(size(limits.header_bytes_max).max(8192));
    if limits.headers_max != HEADERS_INLINE {
        builder.http1().max_headers(size(limits.headers_max));
    }
    builder
        .http2()
        .max_concurrent_streams(limits.streams_max)
        .max_header_list_size(limits.header_bytes_max);
    builder
}

/// Counts a connection for the metrics.
struct Open<C: Connect>(Arc<Shard<C>>);

impl<C: Connect> Open<C> {
    fn count(shard: &Arc<Shard<C>>) -> Self {
        shard.fleet.metrics.connections.inc();
        Self(Arc::clone(shard))
    }
}

impl<C: Connect> Drop for Open<C> {
    fn drop(&mut self) {
        self.0.fleet.metrics.connections.dec();
    }
}
