//! Start and stop of the whole router: sockets, threads, signals.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::task::TaskTracker;

use crate::access::AccessLog;
use crate::admin::{self, Admin};
use crate::clock;
use crate::config::Config;
use crate::fleet::Fleet;
use crate::metrics::Metrics;
use crate::probe;
use crate::proxy::Shard;
use crate::serve::{Stage, serve};
use crate::upstream::Pool;
use crate::upstream::tcp::Tcp;

/// Why the router could not start.
#[derive(Debug)]
pub struct StartError {
    what: String,
    error: io::Error,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.error)
    }
}

impl std::error::Error for StartError {}

fn context(what: impl Into<String>) -> impl FnOnce(io::Error) -> StartError {
    let what = what.into();
    move |error| StartError { what, error }
}

/// Serves until a signal ends it.
pub fn run(config: Config) -> Result<(), StartError> {
    let listener = bind("listen", config.listen)?;
    let admin_listener = bind("admin", config.admin)?;
    let metrics = Metrics::new();
    let access = AccessLog::open(config.access_log.as_deref(), Arc::clone(&metrics))
        .map_err(context("access.log"))?;
    let control = runtime()?;
    let now = {
        let _inside = control.enter();
        clock::now()
    };
    let threads = match config.threads {
        0 => thread::available_parallelism().map_or(1, usize::from),
        count => usize::try_from(count).unwrap_or(1),
    };
    let permits = usize::try_from(config.limits.connections_max).unwrap_or(1);
    let permits = Arc::new(Semaphore::new(permits));
    let resolve_every = config.timeouts.resolve;
    tracing::info!(listen = %address(&listener), admin = %address(&admin_listener), "starting");
    let fleet = Fleet::new(config, metrics, now);
    let (stage, stage_seen) = watch::channel(Stage::Serving);
    let (done, all_done) = mpsc::channel::<()>(1);
    let mut shards = Vec::new();
    for index in 0..threads {
        let shard = Shard {
            fleet: Arc::clone(&fleet),
            connector: Tcp::new(resolve_every),
            pool: Arc::new(Pool::default()),
            access: Arc::clone(&access),
            tasks: TaskTracker::new(),
        };
        let listener = listener.try_clone().map_err(context("listen"))?;
        let (permits, stage) = (Arc::clone(&permits), stage_seen.clone());
        let done = done.clone();
        shards.push(spawn(&format!("serve-{index}"), move |runtime| {
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener)?;
                let shard = Arc::new(shard);
                let sweeping = sweep(Arc::clone(&shard));
                tokio::select! {
                    () = serve(shard, listener, permits, stage) => {}
                    () = sweeping => {}
                }
                drop(done);
                Ok(())
            })
        })?);
    }
    drop((listener, done));
    let drained = control.block_on(govern(fleet, admin_listener, resolve_every, stage, all_done));
    for shard in shards {
        shard.join().expect("a serving thread does not panic").map_err(context("serving"))?;
    }
    drained.map_err(context("control"))
}

/// The control runtime: operators, probes, signals; ends when the serving threads are done.
async fn govern(
    fleet: Arc<Fleet>,
    admin_listener: StdListener,
    resolve_every: Duration,
    stage: watch::Sender<Stage>,
    mut all_done: mpsc::Receiver<()>,
) -> io::Result<()> {
    let admin = Arc::new(Admin { fleet: Arc::clone(&fleet) });
    let answering = admin::serve(admin, TcpListener::from_std(admin_listener)?);
    let probing = probe::watch(Arc::clone(&fleet), Arc::new(Tcp::new(resolve_every)));
    let mut signals = Signals::new()?;
    let stopping = async {
        let is_gentle = signals.stop().await;
        let rules = fleet.live().config.shutdown.clone();
        fleet.leave();
        tracing::info!("stopping: not ready from now on");
        let settled = async {
            if is_gentle {
                tokio::time::sleep(rules.settle).await;
            }
            stage.send_replace(Stage::Draining);
            let drained = tokio::time::timeout(rules.drain_max, all_done.recv()).await;
            if drained.is_err() {
                tracing::warn!(in_flight = fleet.total(), "drained for too long: cutting");
            }
        };
        tokio::select! {
            () = settled => {}
            _ = signals.stop() => tracing::warn!(in_flight = fleet.total(), "told again: cutting"),
        }
        stage.send_replace(Stage::Cut);
    };
    tokio::select! {
        () = answering => {}
        () = probing => {}
        () = stopping => {}
    }
    Ok(())
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits to be told to stop; true if there is time to settle first.
    async fn stop(&mut self) -> bool {
        tokio::select! {
            _ = self.terminate.recv() => true,
            _ = self.interrupt.recv() => false,
        }
    }
}

/// Closes connections to endpoints that nobody used for a while.
async fn sweep(shard: Arc<Shard<Tcp>>) {
    let mut ticks = tokio::time::interval(Duration::from_millis(500));
    loop {
        ticks.tick().await;
        let idle_max = shard.fleet.live().config.timeouts.pool_idle;
        shard.pool.sweep(idle_max, clock::now());
    }
}

fn spawn(
    name: &str,
    body: impl FnOnce(Runtime) -> io::Result<()> + Send + 'static,
) -> Result<JoinHandle<io::Result<()>>, StartError> {
    let runtime = runtime()?;
    let builder = thread::Builder::new().name(name.to_owned());
    builder.spawn(move || body(runtime)).map_err(context("thread"))
}

fn runtime() -> Result<Runtime, StartError> {
    Builder::new_current_thread().enable_all().build().map_err(context("runtime"))
}

fn bind(what: &str, address: SocketAddr) -> Result<StdListener, StartError> {
    let bound = StdListener::bind(address).and_then(|it| {
        it.set_nonblocking(true)?;
        Ok(it)
    });
    bound.map_err(context(format!("{what}: cannot bind {address}")))
}

fn address(listener: &StdListener) -> String {
    listener.local_addr().map_or_else(|_| "?".to_owned(), |it| it.to_string())
}
