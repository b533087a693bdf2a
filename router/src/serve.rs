//! The listening side: accepts clients, one task for each connection, until told to stop.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::rt::Executor;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_util::task::TaskTracker;

use crate::client::{Client, Limits, Socket, Stream};
use crate::clock;
use crate::proxy::Shard;
use crate::upstream::Connect;

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
struct Tasks(TaskTracker);

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

async fn connection<S: Stream, C: Connect>(
    shard: Arc<Shard<C>>,
    stream: S,
    peer: SocketAddr,
    mut stage: watch::Receiver<Stage>,
) {
    let live = shard.fleet.live_owned();
    let client = Arc::new(Client::new(peer, false));
    let timeouts = &live.config.timeouts;
    let limits = Limits {
        idle: timeouts.client_idle,
        header: timeouts.client_header,
        send_stall: timeouts.send_stall,
    };
    let socket = Socket::new(stream, Arc::clone(&client), limits, clock::now());
    let builder = builder(&shard.tasks, &live.config.limits);
    drop(live);
    let open = Open::count(&shard);
    let service = service_fn(|request| {
        let (shard, client) = (Arc::clone(&shard), Arc::clone(&client));
        async move { Ok::<_, Infallible>(shard.handle(request, client).await) }
    });
    let mut served = pin!(builder.serve_connection(TokioIo::new(socket), service));
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = Stage::Draining.reached(&mut stage) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    drop(open);
    if let Err(error) = ended {
        // A client that leaves or sends nonsense is no event for an operator.
        tracing::debug!(%peer, error = %error, "connection ended");
    }
}

fn builder(tasks: &TaskTracker, limits: &crate::config::Limits) -> auto::Builder<Tasks> {
    let size = |it: u32| usize::try_from(it).unwrap_or(usize::MAX);
    let mut builder = auto::Builder::new(Tasks(tasks.clone()));
    builder
        .http1()
        .max_buf_size(size(limits.header_bytes_max).max(8192))
        .max_headers(size(limits.headers_max))
        .pipeline_flush(true);
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
