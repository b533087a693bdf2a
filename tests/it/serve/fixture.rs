//! A service on loopback and a plain client for it.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::mpsc;
use std::time::Duration;

use engine::batch::step::{Engine, Limits};
use engine::config::{Serve, UnknownFields};
use engine::draft::depth::Depth;
use engine::draft::held::Held;
use engine::serve::ready::About;
use engine::serve::{ServeError, Start, Started, Stop};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tests::parrot::{Behaviour, Parrot};
use tests::toy::{self, Toy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What a service is made of.
pub(super) struct Setup {
    pub(super) serve: Serve,
    /// Drafts for each request.
    pub(super) depth: u32,
    pub(super) waiting_max: usize,
    pub(super) lanes: u32,
    pub(super) context_max: u32,
    pub(super) steps_max: Option<u32>,
    /// The model computes a step only when told to.
    pub(super) is_paced: bool,
    /// What loading says instead of giving an engine.
    pub(super) start_error: Option<String>,
    /// Loading waits for a message on this channel.
    pub(super) loads_after: Option<mpsc::Receiver<()>>,
}

impl Default for Setup {
    fn default() -> Self {
        let serve = Serve {
            listen: "127.0.0.1:0".parse().unwrap(),
            unknown_fields: UnknownFields::Ignore,
            allowed_origins: Vec::new(),
            body_max: 64 << 10,
            connections_max: 64,
            head_max: Duration::from_secs(30),
            request_max: Duration::from_secs(60),
            drain_max: Duration::from_secs(20),
        };
        Self {
            serve,
            depth: 0,
            waiting_max: 64,
            lanes: 8,
            context_max: 256,
            steps_max: None,
            is_paced: false,
            start_error: None,
            loads_after: None,
        }
    }
}

/// A running service.
pub(super) struct Service {
    pub(super) address: SocketAddr,
    pub(super) stop: watch::Sender<Stop>,
    pace: Option<mpsc::Sender<()>>,
    server: JoinSet<Result<(), ServeError>>,
}

impl Service {
    pub(super) async fn start(setup: Setup) -> Self {
        let service = Self::start_unready(setup).await;
        service.until("/health", |it| it.status == 200).await;
        service
    }

    pub(super) async fn start_unready(setup: Setup) -> Self {
        let (pace, paced) = mpsc::channel();
        let pace = setup.is_paced.then_some(pace);
        let serve = setup.serve.clone();
        Self::run(serve, starter(setup, paced), pace).await
    }

    pub(super) async fn run(serve: Serve, start: Start, pace: Option<mpsc::Sender<()>>) -> Self {
        let listener = TcpListener::bind(serve.listen).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(Stop::No);
        let mut server = JoinSet::new();
        server.spawn(engine::serve::run(listener, serve, start, stopped));
        Self { address, stop, pace, server }
    }

    /// Lets the model compute `steps` steps.
    pub(super) fn step(&self, steps: u32) {
        for _ in 0..steps {
            // The model may be gone by now.
            let _gone = self.pace.as_ref().expect("a paced service").send(());
        }
    }

    /// From now on the model computes as it likes.
    pub(super) fn run_free(&mut self) {
        self.pace = None;
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        send(self.address, Request::get(path).body(Full::default()).unwrap()).await.whole().await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.open(path, body).await.whole().await
    }

    /// Sends a request and gives its answer as soon as the head is there.
    pub(super) async fn open(&self, path: &str, body: &Value) -> Answering {
        let body = Full::new(Bytes::from(body.to_string()));
        send(self.address, Request::post(path).body(body).unwrap()).await
    }

    /// Asks until the answer is as wanted.
    pub(super) async fn until(&self, path: &str, wanted: impl Fn(&Answer) -> bool) -> Answer {
        self.until_within(Duration::from_secs(20), path, wanted).await
    }

    pub(super) async fn until_within(
        &self,
        patience: Duration,
        path: &str,
        wanted: impl Fn(&Answer) -> bool,
    ) -> Answer {
        let asking = async {
            loop {
                let answer = self.get(path).await;
                if wanted(&answer) {
                    return answer;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        match tokio::time::timeout(patience, asking).await {
            Ok(answer) => answer,
            Err(_) => panic!("{path} never came to that: {:?}", self.get(path).await),
        }
    }

    /// The same in a paced service, where a request is taken in between two steps.
    pub(super) async fn open_paced(&self, path: &str, body: &Value) -> Answering {
        let mut opening = pin!(self.open(path, body));
        loop {
            tokio::select! {
                answer = &mut opening => return answer,
                () = tokio::time::sleep(Duration::from_millis(20)) => self.step(1),
            }
        }
    }

    /// Waits until nobody runs or waits and no page is in use.
    pub(super) async fn until_idle(&self) {
        self.until("/load", |it| {
            if self.pace.is_some() {
                self.step(1);
            }
            let load = it.json();
            load["running"] == 0 && load["waiting"] == 0 && load["kv_usage"] == 0.0
        })
        .await;
    }

    /// Waits for the end.
    pub(super) async fn end(mut self) -> Result<(), ServeError> {
        self.server.join_next().await.unwrap().unwrap()
    }
}

fn starter(setup: Setup, paced: mpsc::Receiver<()>) -> Start {
    Box::new(move || {
        if let Some(gate) = &setup.loads_after {
            gate.recv().unwrap();
        }
        if let Some(error) = setup.start_error {
            return Err(error);
        }
        let shape = engine::backend::Shape {
            pages: setup.lanes * setup.context_max / 4,
            page_tokens: 4,
            vocab: toy::VOCAB,
            rows_max: 64,
            lanes: setup.lanes,
            held_max: 16,
            ahead_max: 0,
        };
        let behaviour =
            Behaviour { pace: setup.is_paced.then_some(paced), steps_max: setup.steps_max };
        let limits = Limits {
            waiting_max: setup.waiting_max,
            tokens_max: setup.context_max,
            prompt_rows_max: 32,
        };
        let parrot = Box::new(Parrot::new(shape, behaviour));
        let engine = Engine::new(limits, parrot, Box::new(Held), Depth::always(setup.depth));
        Ok(Started {
            engine,
            speech: std::sync::Arc::new(Toy),
            about: About {
                names: vec!["parrot".to_owned(), "org/parrot".to_owned()],
                mode: "eagle3",
                context_max: setup.context_max,
                scores_prompts: true,
                fingerprint: "fp".to_owned(),
                created: 1,
                quantisation: "q4_1".to_owned(),
                device: "cpu:0".to_owned(),
                config: "lanes = 8".to_owned(),
            },
            page_tokens: 4,
            inbox_max: 128,
            simulated_acceptance: false,
        })
    })
}

/// An answer whose head has come.
pub(super) struct Answering {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    body: Incoming,
    rest: String,
    /// The connection; dropped with the answer.
    _connection: JoinSet<()>,
}

/// A whole answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
    /// Whether the connection ended as it should.
    pub(super) is_whole: bool,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The `data:` lines of a stream.
    pub(super) fn events(&self) -> Vec<String> {
        let lines = self.body.split("\n\n").filter(|it| !it.is_empty());
        lines.map(|it| it.strip_prefix("data: ").unwrap().to_owned()).collect()
    }
}

pub(super) async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> Answering {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let _ended = connection.await;
    });
    let response: Response<Incoming> = sender.send_request(request).await.unwrap();
    let (head, body) = response.into_parts();
    let status = head.status.as_u16();
    Answering { status, headers: head.headers, body, rest: String::new(), _connection: tasks }
}

impl Answering {
    pub(super) async fn whole(mut self) -> Answer {
        let mut body = std::mem::take(&mut self.rest);
        let mut is_whole = true;
        while let Some(frame) = self.body.frame().await {
            let Ok(frame) = frame else {
                is_whole = false;
                break;
            };
            body += std::str::from_utf8(frame.data_ref().unwrap()).unwrap();
        }
        Answer { status: self.status, headers: self.headers, body, is_whole }
    }

    /// The next event of a stream.
    pub(super) async fn event(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.rest.split_once("\n\n") {
                let event = event.strip_prefix("data: ").unwrap().to_owned();
                self.rest = rest.to_owned();
                return Some(serde_json::from_str(&event).unwrap_or(Value::String(event)));
            }
            let frame = self.body.frame().await?.ok()?;
            self.rest += std::str::from_utf8(frame.data_ref().unwrap()).unwrap();
        }
    }
}
