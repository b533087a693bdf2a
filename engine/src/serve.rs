//! The HTTP side of an engine: open at once, ready when the model is loaded, closed when drained.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;

use crate::batch::step::Engine;
use crate::clock;
use crate::config::Serve;
use crate::metrics::{Fixed, Metrics};
use crate::runner::observer::{Observer, Seen};
use crate::runner::pulse::Pulse;
use crate::runner::{Inbox, Runner};
use crate::serve::ready::{About, Ready, Seeds};
use crate::serve::service::Service;
use crate::serve::speech::Speech;

pub mod answer;
pub mod answers;
pub mod aside;
pub mod calls;
pub mod chat;
pub mod choice;
pub mod completions;
pub mod connection;
pub mod cors;
pub mod fields;
pub mod gate;
pub mod generate;
pub mod grammar;
pub mod language;
pub mod logprobs;
pub mod notify;
pub mod overdue;
pub mod ready;
pub mod record;
pub mod service;
pub mod speech;
pub mod streams;
pub mod tokens;
pub mod tools;
pub mod wire;
pub mod wishes;
pub mod writer;

/// Time for connections to end once they were told to.
const CLOSE_MAX: Duration = Duration::from_secs(2);
/// Time to wait when the system has no more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a loaded model brings. Made in the thread that will own the engine.
#[derive(Debug)]
pub struct Started {
    pub engine: Engine,
    pub speech: Arc<dyn Speech>,
    pub about: About,
    pub page_tokens: u32,
    /// Letters that may wait for the loop: requests it is sure to take in at once.
    pub inbox_max: usize,
    pub simulated_acceptance: bool,
}

/// Loads the model; the error is one line for the operator.
pub type Start = Box<dyn FnOnce() -> Result<Started, String> + Send>;

/// What the server is asked to do about its end. May only rise.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub enum Stop {
    No,
    /// Refuse what is new, end what runs.
    Drain,
    /// End at once.
    Now,
}

/// Why the server ended without being asked to.
#[derive(Debug)]
pub enum ServeError {
    /// The model could not be loaded.
    Start(String),
    /// The engine failed while it ran.
    Engine(String),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(detail) => f.write_str(detail),
            Self::Engine(detail) => write!(f, "the engine failed: {detail}"),
        }
    }
}

impl std::error::Error for ServeError {}

/// Serves until `stop` rises and the requests have ended, or the engine fails.
pub async fn run(
    listener: TcpListener,
    options: Serve,
    start: Start,
    mut stop: watch::Receiver<Stop>,
) -> Result<(), ServeError> {
    let pulse = Pulse::default();
    let (mut loaded, mut ended) = start_loop(start, options.clone(), pulse.clone());
    let service = Arc::new(Service::new(options.clone()));
    let mut server = Server::new(Arc::clone(&service), &options);
    let mut watchdog = pin!(notify::feed(pulse));
    let overdue = service.gate.overdue.clone();
    let mut overdue = pin!(overdue.watch());
    let (mut is_loading, mut is_ready) = (true, false);
    let end = loop {
        tokio::select! {
            biased;
            () = rises(&mut stop, Stop::Drain) => break None,
            end = &mut ended => break Some(end),
            ready = &mut loaded, if is_loading => {
                is_loading = false;
                // Without a model the thread is about to say why.
                if let Ok(ready) = ready {
                    is_ready = true;
                    service.set_ready(ready);
                    notify::ready();
                }
            }
            () = &mut watchdog, if is_ready => {}
            () = &mut overdue => {}
            () = server.accept(&listener) => {}
        }
    };
    notify::stopping();
    service.drain();
    if let Some(end) = end {
        server.close(CLOSE_MAX).await;
        return Err(end.map_or_else(|_| panicked(is_ready), |end| failure(end, is_ready)));
    }
    tokio::select! {
        () = drain(&mut server, listener, &service, options.drain_max, stop) => {}
        () = &mut watchdog => {}
        () = &mut overdue => {}
    }
    server.close(Duration::ZERO).await;
    drop((server, service));
    if !is_ready {
        return Ok(());
    }
    // The last way to the loop is gone, so it ends as soon as its step does.
    match tokio::time::timeout(CLOSE_MAX, ended).await {
        Ok(Ok(Err(detail))) => Err(ServeError::Engine(detail)),
        Ok(Err(_)) => Err(panicked(is_ready)),
        Ok(Ok(Ok(()))) | Err(_) => Ok(()),
    }
}

/// Lets what runs end and be sent, and refuses what comes meanwhile; what is there after this was
/// to be cut.
async fn drain(
    server: &mut Server,
    listener: TcpListener,
    service: &Service,
    drain_max: Duration,
    mut stop: watch::Receiver<Stop>,
) {
    tracing::info!(requests = service.gate.within(), "draining");
    let mut deadline = pin!(tokio::time::sleep(drain_max));
    let mut empty = pin!(service.gate.empty());
    loop {
        tokio::select! {
            biased;
            () = &mut empty => break,
            () = rises(&mut stop, Stop::Now) => return cut(service),
            () = &mut deadline => return cut(service),
            () = server.accept(&listener) => {}
        }
    }
    drop(listener);
    // What was said last may still be on its way out.
    let left = deadline.deadline().into_std().saturating_duration_since(clock::now());
    tokio::select! {
        () = server.close(left.max(CLOSE_MAX)) => {}
        () = rises(&mut stop, Stop::Now) => {}
    }
}

fn cut(service: &Service) {
    tracing::warn!(requests = service.gate.within(), "cutting what still runs");
}

/// Waits until `stop` is at least `to`; forever if nobody can raise it.
async fn rises(stop: &mut watch::Receiver<Stop>, to: Stop) {
    if stop.wait_for(|it| to <= *it).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// How the loop's thread ended.
type End = Result<(), String>;

fn failure(end: End, was_ready: bool) -> ServeError {
    match end {
        Err(detail) if was_ready => ServeError::Engine(detail),
        Err(detail) => ServeError::Start(detail),
        Ok(()) => ServeError::Engine("its loop ended".to_owned()),
    }
}

fn panicked(was_ready: bool) -> ServeError {
    failure(Err("its thread panicked; the message stands above".to_owned()), was_ready)
}

/// Starts the thread that loads the model and owns the loop.
fn start_loop(
    start: Start,
    options: Serve,
    pulse: Pulse,
) -> (oneshot::Receiver<Arc<Ready>>, oneshot::Receiver<End>) {
    let (say_loaded, loaded) = oneshot::channel();
    let (say_ended, ended) = oneshot::channel();
    let body = move || {
        let end = start().and_then(|started| {
            let (ready, runner) = assemble(started, options, pulse);
            // A server that is gone dropped the only way in, so the loop ends by itself.
            let _gone = say_loaded.send(Arc::new(ready));
            runner.run().map_err(|error| error.to_string())
        });
        let _gone = say_ended.send(end);
    };
    let spawned = thread::Builder::new().name("engine".to_owned()).spawn(body);
    spawned.expect("a process can have a second thread");
    (loaded, ended)
}

fn assemble(started: Started, options: Serve, pulse: Pulse) -> (Ready, Runner) {
    let Started { engine, speech, about, page_tokens, inbox_max, simulated_acceptance } = started;
    let metrics = Arc::new(Metrics::new(&Fixed {
        model: about.names[0].clone(),
        mode: about.mode,
        context_max: about.context_max,
        page_tokens,
        pages: engine.load().pages_total,
        simulated_acceptance,
    }));
    let seen = Arc::new(Seen::default());
    let (inbox, letters) = Inbox::new(inbox_max);
    let observer = Observer::new(Arc::clone(&metrics), Arc::clone(&seen), pulse);
    let runner = Runner::new(engine, letters, observer);
    let seeds = Seeds::by_chance();
    let (grammars, form) = (OnceLock::new(), OnceLock::new());
    let aside = Ready::places();
    let ready =
        Ready { about, options, speech, inbox, metrics, seen, seeds, aside, grammars, form };
    (ready, runner)
}

/// The connections.
#[derive(Debug)]
struct Server {
    service: Arc<Service>,
    connections: JoinSet<()>,
    permits: Arc<Semaphore>,
    head_max: Duration,
    closing: watch::Sender<bool>,
}

impl Server {
    fn new(service: Arc<Service>, options: &Serve) -> Self {
        Self {
            service,
            connections: JoinSet::new(),
            permits: Arc::new(Semaphore::new(options.connections_max)),
            head_max: options.head_max,
            closing: watch::Sender::new(false),
        }
    }

    /// Takes one connection in, once there is room for it.
    async fn accept(&mut self, listener: &TcpListener) {
        while let Some(ended) = self.connections.try_join_next() {
            if let Err(error) = ended {
                tracing::error!(%error, "a connection's task broke");
            }
        }
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.expect("never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                let service = Arc::clone(&self.service);
                let closing = self.closing.subscribe();
                let head_max = self.head_max;
                self.connections.spawn(async move {
                    connection::serve(stream, service, head_max, closing).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }

    /// Ends the connections: idle ones at once, others after their answer, all after `grace`.
    async fn close(&mut self, grace: Duration) {
        self.closing.send_replace(true);
        let all = async { while self.connections.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, all).await.is_err() {
            self.connections.shutdown().await;
        }
    }
}
