//! Start and stop of the whole router: sockets, threads, signals.

use std::fmt;
use std::future::pending;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use listenfd::ListenFd;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::task::TaskTracker;

use crate::access::AccessLog;
use crate::admin::{self, Admin};
use crate::config::raw::Args;
use crate::config::{Config, ConfigErrors};
use crate::fleet::Fleet;
use crate::metrics::Metrics;
use crate::notify::Beats;
use crate::probe::identity;
use crate::proxy::Shard;
use crate::reload::Reloader;
use crate::serve::{Stage, serve};
use crate::spans::Exporter;
use crate::upstream::Pool;
use crate::upstream::tcp::Tcp;
use crate::{clock, notify, probe, spans};

/// Why the router could not start.
#[derive(Debug)]
pub enum StartError {
    /// The configuration is wrong for the endpoints that are there.
    Config(ConfigErrors),
    System {
        what: String,
        error: io::Error,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(errors) => errors.fmt(f),
            Self::System { what, error } => write!(f, "{what}: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

fn context(what: impl Into<String>) -> impl FnOnce(io::Error) -> StartError {
    let what = what.into();
    move |error| StartError::System { what, error }
}

/// Serves until a signal ends it. `args` say what to read again on a reload.
pub fn run(args: Args, config: Config) -> Result<(), StartError> {
    // Sockets that were opened for us come first, in the order listen, admin.
    let mut given = ListenFd::from_env();
    let listener = bind("listen", given.take_tcp_listener(0), config.listen)?;
    let admin_listener = bind("admin", given.take_tcp_listener(1), config.admin)?;
    let metrics = Metrics::new();
    let collector = config.collector.as_deref();
    let (spans, exporter) = collector
        .map(|url| spans::to(url, Arc::clone(&metrics)))
        .transpose()
        .map_err(io::Error::other)
        .map_err(context("trace.collector"))?
        .unzip();
    let access = AccessLog::open(config.access_log.as_deref(), spans, Arc::clone(&metrics))
        .map_err(context("access.log"))?;
    let control = runtime()?;
    let resolve_every = config.timeouts.resolve;
    let connector = Arc::new(Tcp::new(resolve_every));
    let stale = control.block_on(identity::stale(&config, &*connector));
    if !stale.is_empty() {
        return Err(StartError::Config(ConfigErrors(stale)));
    }
    let now = {
        let _inside = control.enter();
        clock::now()
    };
    tracing::info!(listen = %address(&listener), admin = %address(&admin_listener), "starting");
    config.tell_doubts();
    let threads = threads(&config);
    let permits = usize::try_from(config.limits.connections_max).unwrap_or(1);
    let permits = Arc::new(Semaphore::new(permits));
    let fleet = Fleet::new(config, metrics, now);
    let (stage, stage_seen) = watch::channel(Stage::Serving);
    let (done, all_done) = mpsc::channel::<()>(1);
    let beats = Beats::new(threads);
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
        let (done, beats) = (done.clone(), Arc::clone(&beats));
        shards.push(spawn(&format!("serve-{index}"), move |runtime| {
            let served = runtime.block_on(run_shard(shard, listener, permits, stage, beats, index));
            drop(done);
            served
        })?);
    }
    drop((listener, done));
    let reloader = Reloader { args, fleet, access, connector };
    let governed = control.block_on(govern(reloader, exporter, admin_listener, stage, all_done));
    for shard in shards {
        shard.join().expect("a serving thread does not panic").map_err(context("serving"))?;
    }
    governed.map_err(context("control"))
}

async fn run_shard(
    shard: Shard<Tcp>,
    listener: StdListener,
    permits: Arc<Semaphore>,
    stage: watch::Receiver<Stage>,
    beats: Arc<Beats>,
    index: usize,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let shard = Arc::new(shard);
    let fleet = Arc::clone(&shard.fleet);
    let beating = beats.beat(index, || fleet.millis(clock::now()));
    tokio::select! {
        () = serve(Arc::clone(&shard), listener, permits, stage) => {}
        () = sweep(&shard) => {}
        () = beating => {}
    }
    Ok(())
}

/// The control runtime: operators, probes, signals; ends when the serving threads are done.
async fn govern(
    reloader: Reloader,
    mut exporter: Option<Exporter>,
    admin_listener: StdListener,
    stage: watch::Sender<Stage>,
    all_done: mpsc::Receiver<()>,
) -> io::Result<()> {
    let fleet = &reloader.fleet;
    let admin = Arc::new(Admin::new(Arc::clone(fleet)));
    let answering = admin::serve(admin, TcpListener::from_std(admin_listener)?);
    let probing = probe::watch(Arc::clone(fleet), Arc::clone(&reloader.connector));
    let stopping = stop(fleet, &stage, all_done, Signals::new()?);
    let mut hangup = signal(SignalKind::hangup())?;
    let reloading = async {
        while hangup.recv().await.is_some() {
            notify::reloading(async {
                reloader.reload().await;
            })
            .await;
        }
    };
    let exporting = async {
        match &mut exporter {
            Some(exporter) => exporter.run().await,
            None => pending().await,
        }
    };
    notify::ready();
    tokio::select! {
        () = exporting => {}
        () = answering => {}
        () = probing => {}
        () = reloading => {}
        () = reloader.watch() => {}
        () = stopping => {}
    }
    if let Some(exporter) = exporter {
        exporter.finish().await;
    }
    Ok(())
}

/// Waits to be told to stop; then says so, lets balancers notice, drains, and cuts what is left.
async fn stop(
    fleet: &Fleet,
    stage: &watch::Sender<Stage>,
    mut all_done: mpsc::Receiver<()>,
    mut signals: Signals,
) {
    let is_gentle = signals.stop().await;
    let rules = fleet.live().config.shutdown.clone();
    fleet.leave();
    notify::stopping();
    tracing::info!("stopping: not ready from now on");
    let drained = async {
        if is_gentle {
            tokio::time::sleep(rules.settle).await;
        }
        stage.send_replace(Stage::Draining);
        if tokio::time::timeout(rules.drain_max, all_done.recv()).await.is_err() {
            tracing::warn!(in_flight = fleet.total(), "drained for too long: cutting");
        }
    };
    tokio::select! {
        () = drained => {}
        _ = signals.stop() => tracing::warn!(in_flight = fleet.total(), "told again: cutting"),
    }
    stage.send_replace(Stage::Cut);
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

/// Closes connections to endpoints that nobody used for a while, and counts tasks.
async fn sweep(shard: &Shard<Tcp>) {
    let mut ticks = tokio::time::interval(Duration::from_millis(500));
    let mut counted = 0;
    loop {
        ticks.tick().await;
        let tasks = i64::try_from(shard.tasks.len()).unwrap_or(i64::MAX);
        shard.fleet.metrics.tasks.add(tasks - counted);
        counted = tasks;
        let idle_max = shard.fleet.live().config.timeouts.pool_idle;
        shard.pool.sweep(idle_max, clock::now());
    }
}

fn threads(config: &Config) -> usize {
    match config.threads {
        0 => thread::available_parallelism().map_or(1, usize::from),
        count => usize::try_from(count).unwrap_or(1),
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

fn bind(
    what: &str,
    given: io::Result<Option<StdListener>>,
    address: SocketAddr,
) -> Result<StdListener, StartError> {
    let listener = match given.map_err(context(format!("{what}: the given socket")))? {
        Some(listener) => listener,
        None => {
            StdListener::bind(address).map_err(context(format!("{what}: cannot bind {address}")))?
        }
    };
    listener.set_nonblocking(true).map_err(context(what))?;
    Ok(listener)
}

fn address(listener: &StdListener) -> String {
    listener.local_addr().map_or_else(|_| "?".to_owned(), |it| it.to_string())
}
