//! A router in front of scripted engines, and clients with raw sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use router::access::AccessLog;
use router::config::Config;
use router::config::check::check;
use router::fleet::Fleet;
use router::metrics::Metrics;
use router::proxy::Shard;
use router::serve::{Stage, serve};
use router::upstream::tcp::Tcp;
use router::upstream::{Connect, Pool};
use router::{clock, probe};
use tests::fake_engine::{FakeEngine, Seen, Step, ok};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;

/// Long enough for anything here on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Short limits, so that tests of them are quick.
const USUAL: &str = "
[timeouts]
connect_ms = 2000
[health]
interval_ms = 20
slow_start_ms = 0
[queue]
wait_ms_max = 300
";

/// The router's own code on this runtime.
pub(crate) struct Rig {
    pub(crate) fleet: Arc<Fleet>,
    /// One address for each shard.
    pub(crate) addresses: Vec<SocketAddr>,
    _stage: watch::Sender<Stage>,
    tasks: JoinSet<()>,
}

/// Two endpoints, speculative and throughput, named s and t.
pub(crate) fn pair(engines: &[&FakeEngine]) -> String {
    let roles = [("s", "speculative"), ("t", "throughput")];
    let tables = engines.iter().zip(roles).map(|(engine, (name, role))| {
        format!(
            "[[endpoint]]\nname = {name:?}\nrole = {role:?}\nurl = \"http://{}\"\n\
             kind = \"vllm\"\n",
            engine.address
        )
    });
    tables.collect()
}

pub(crate) fn config(text: &str) -> Config {
    check(&toml::from_str(text).unwrap()).unwrap()
}

impl Rig {
    /// Starts with the usual limits before `text`, which must hold the endpoints, and waits until
    /// all of them are up.
    pub(crate) async fn start(text: &str) -> Self {
        Self::start_with(config(&format!("{USUAL}{text}")), 1).await
    }

    /// Everything goes to this engine, which is endpoint s.
    pub(crate) async fn pinned(engine: &FakeEngine, extra: &str) -> Self {
        let policy = "[policy]\nkind = \"pin\"\nrole = \"speculative\"\n";
        Self::start(&format!("{policy}{extra}{}", pair(&[engine]))).await
    }

    pub(crate) async fn start_with(config: Config, shards: usize) -> Self {
        Self::start_over(config, shards, || Tcp::new(Duration::from_secs(1))).await
    }

    /// Requests go over connections of that kind; probes still go over TCP.
    pub(crate) async fn start_over<C: Connect>(
        config: Config,
        shards: usize,
        connector: impl Fn() -> C,
    ) -> Self {
        let fleet = Fleet::new(config, Metrics::new(), clock::now());
        let (stage, seen) = watch::channel(Stage::Serving);
        let permits = Arc::new(Semaphore::new(10_000));
        let mut rig = Self { fleet, addresses: Vec::new(), _stage: stage, tasks: JoinSet::new() };
        for _ in 0..shards {
            let shard = Shard {
                fleet: Arc::clone(&rig.fleet),
                connector: connector(),
                pool: Arc::new(Pool::default()),
                access: AccessLog::open(None, None, Arc::clone(&rig.fleet.metrics)).unwrap(),
                tasks: TaskTracker::new(),
            };
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            rig.addresses.push(listener.local_addr().unwrap());
            let shard = Arc::new(shard);
            let pool = Arc::clone(&shard.pool);
            let fleet = Arc::clone(&rig.fleet);
            rig.tasks.spawn(serve(shard, listener, Arc::clone(&permits), seen.clone()));
            rig.tasks.spawn(async move {
                loop {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    pool.sweep(fleet.live().config.timeouts.pool_idle, clock::now());
                }
            });
        }
        let connector = Arc::new(Tcp::new(Duration::from_secs(1)));
        rig.tasks.spawn(probe::watch(Arc::clone(&rig.fleet), connector));
        let live = rig.fleet.live_owned();
        eventually("all endpoints are up", || live.members.iter().all(|it| it.state.is_up())).await;
        rig
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// Nothing is in flight any more, anywhere.
    pub(crate) async fn settled(&self) {
        eventually("every lease has ended", || {
            let endpoints = self.fleet.endpoints();
            let held = endpoints.iter().map(|it| it.work() + it.light()).sum::<u32>();
            self.fleet.total() + held == 0 && self.fleet.waiting() == 0
        })
        .await;
    }

    /// Requests for tokens on the endpoint of that name.
    pub(crate) fn work(&self, name: &str) -> u32 {
        let endpoints = self.fleet.endpoints();
        endpoints.iter().find(|it| *it.name == *name).map_or(0, |it| it.work())
    }

    /// The value of one line of the metrics; the name comes without its prefix.
    pub(crate) fn metric(&self, series: &str) -> f64 {
        let text = self.fleet.metrics.text(&self.fleet, clock::now());
        let line =
            text.lines().find_map(|it| it.strip_prefix(&format!("crossover_router_{series} ")));
        line.map_or(0.0, |it| it.parse().unwrap())
    }
}

/// An engine that answers with the path and the length of the body.
pub(crate) async fn echo() -> FakeEngine {
    let answer = |seen: &Seen| {
        let text = format!("{} {}", seen.path(), seen.body.len());
        vec![Step::ReadBody, Step::Send(ok("text/plain", text.as_bytes()))]
    };
    FakeEngine::start(answer).await
}

/// Waits for something that happens by itself.
pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let polled = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(SOON, polled).await.is_ok(), "never: {what}");
}

pub(crate) fn post(path: &str, headers: &str, body: &str) -> String {
    let len = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: r\r\n{headers}content-length: {len}\r\n\r\n{body}")
}

pub(crate) const CHAT: &str = "/v1/chat/completions";

/// A client that sends what it is told.
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
    pub(crate) buffer: Vec<u8>,
}

/// An answer as it came.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// The body ended as its framing says it should.
    pub(crate) complete: bool,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// The code of an error in OpenAI shape.
    pub(crate) fn code(&self) -> String {
        let value: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        value["error"]["code"].as_str().unwrap().to_owned()
    }
}

impl Raw {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(address).await.unwrap(), buffer: Vec::new() }
    }

    pub(crate) async fn send(&mut self, text: impl AsRef<[u8]>) {
        self.stream.write_all(text.as_ref()).await.unwrap();
    }

    /// A client that has asked for tokens, on a fresh connection.
    pub(crate) async fn asking(address: SocketAddr) -> Self {
        let mut raw = Self::connect(address).await;
        raw.send(post(CHAT, "", "{}")).await;
        raw
    }

    /// One whole exchange on a fresh connection.
    pub(crate) async fn ask(address: SocketAddr, text: impl AsRef<[u8]>) -> Got {
        let mut raw = Self::connect(address).await;
        raw.send(text).await;
        raw.answer().await
    }

    async fn more(&mut self) -> bool {
        self.buffer.reserve(64 * 1024);
        let read = tokio::time::timeout(SOON, self.stream.read_buf(&mut self.buffer)).await;
        matches!(read.expect("an answer, or an end"), Ok(1..))
    }

    pub(crate) async fn until(&mut self, end: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = self.buffer.windows(end.len()).position(|it| it == end) {
                return Some(self.buffer.drain(..at + end.len()).collect());
            }
            if !self.more().await {
                return None;
            }
        }
    }

    pub(crate) async fn head(&mut self) -> String {
        let head = self.until(b"\r\n\r\n").await.expect("a head");
        String::from_utf8(head).unwrap()
    }

    /// Reads one answer to the end that its framing gives it.
    pub(crate) async fn answer(&mut self) -> Got {
        let head = self.head().await;
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut got = Got { status, head, body: Vec::new(), complete: false };
        if got.header("transfer-encoding").is_some() {
            got.complete = self.chunks(&mut got.body).await;
        } else if let Some(len) = got.header("content-length") {
            let len: usize = len.parse().unwrap();
            while self.buffer.len() < len && self.more().await {}
            got.complete = len <= self.buffer.len();
            got.body = self.buffer.drain(..len.min(self.buffer.len())).collect();
        } else {
            while self.more().await {}
            got.complete = true;
            got.body = std::mem::take(&mut self.buffer);
        }
        got
    }

    /// Reads chunks into `body`; true if the last one came.
    async fn chunks(&mut self, body: &mut Vec<u8>) -> bool {
        loop {
            let Some(line) = self.until(b"\r\n").await else { return false };
            let line = String::from_utf8(line).unwrap();
            let len = usize::from_str_radix(line.trim(), 16).unwrap();
            while self.buffer.len() < len + 2 {
                if !self.more().await {
                    body.append(&mut self.buffer);
                    return false;
                }
            }
            body.extend(self.buffer.drain(..len + 2).take(len));
            if len == 0 {
                return true;
            }
        }
    }

    /// The other side has closed, and said nothing more.
    pub(crate) async fn ended(&mut self) -> bool {
        !self.more().await
    }
}
