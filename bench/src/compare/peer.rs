//! Other servers and routers: how each is started, and how it is told that it runs.

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::time::sleep;

use crate::client::Client;
use crate::clock::Clock;

/// What can be compared with.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, clap::ValueEnum)]
pub enum Kind {
    /// llama.cpp's server on the same model, alone on all cores.
    LlamaServer,
    /// HAProxy before our own pair, `balance first`: the static threshold.
    Haproxy,
    /// nginx before our own pair, least connections.
    Nginx,
    /// SGLang's router before our own pair, power of two.
    SglangRouter,
    /// vLLM's router before our own pair, power of two.
    VllmRouter,
}

impl Kind {
    /// Its name, and its program's.
    pub fn label(self) -> &'static str {
        match self {
            Self::LlamaServer => "llama-server",
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
            Self::SglangRouter => "sglang-router",
            Self::VllmRouter => "vllm-router",
        }
    }

    /// What each request to it has to say. llama.cpp's server announces that it keeps a connection
    /// and closes it after a stream: the next request would meet the closing.
    pub fn headers(self) -> Vec<(String, String)> {
        let closes = self == Self::LlamaServer;
        let header = || ("connection".to_owned(), "close".to_owned());
        closes.then(header).into_iter().collect()
    }
}

/// Our own pair, and the threshold for those that take one.
#[derive(Clone, Debug)]
pub struct Pair {
    pub speculative: String,
    pub throughput: String,
    pub high: u32,
}

/// Everything that a peer is started with.
#[derive(Clone, Debug)]
pub struct Start {
    pub kind: Kind,
    pub program: PathBuf,
    /// For configurations and logs.
    pub folder: PathBuf,
    pub pair: Pair,
    pub gguf: Option<PathBuf>,
    pub threads: Option<usize>,
    pub in_flight_max: u32,
}

/// A running peer; it ends when this is dropped.
#[derive(Debug)]
pub struct Peer {
    pub url: String,
    child: Child,
}

const READY_MAX_S: u32 = 120;

/// Tokens that llama.cpp's server keeps for each of its places.
const CONTEXT_EACH: u32 = 2048;

impl Start {
    /// Starts it and waits until it answers; an error says why it did not.
    pub async fn run(&self) -> Result<Peer, String> {
        let (port, other_port) = (free_port()?, free_port()?);
        let args = self.args(port, other_port)?;
        let log = self.folder.join(format!("{}.log", self.kind.label()));
        let open = || File::create(&log).map_err(|error| format!("{}: {error}", log.display()));
        let out = open()?;
        let err = out.try_clone().map_err(|error| format!("{}: {error}", log.display()))?;
        let mut command = Command::new(&self.program);
        command.args(&args).stdin(Stdio::null()).stdout(out).stderr(err).kill_on_drop(true);
        let child = command.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                format!("{} is not installed", self.program.display())
            }
            _ => format!("{}: {error}", self.program.display()),
        })?;
        let mut peer = Peer { url: format!("http://127.0.0.1:{port}"), child };
        peer.wait().await.map_err(|why| {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            format!("{why}: {}", text.lines().last().unwrap_or("it said nothing"))
        })?;
        Ok(peer)
    }

    /// The command line; writes a configuration where one is needed.
    fn args(&self, port: u16, other_port: u16) -> Result<Vec<String>, String> {
        let workers = [&self.pair.speculative, &self.pair.throughput];
        match self.kind {
            Kind::LlamaServer => {
                let gguf = self.gguf.as_ref().ok_or("needs --gguf, the model's file")?;
                let threads = self.threads.map_or_else(cores, Ok)?;
                let context = self.in_flight_max.saturating_mul(CONTEXT_EACH);
                let mut args = vec!["-m".to_owned(), gguf.display().to_string()];
                let line = format!(
                    "--host 127.0.0.1 --port {port} -t {threads} -np {} -c {context} --no-webui",
                    self.in_flight_max
                );
                args.extend(line.split(' ').map(str::to_owned));
                Ok(args)
            }
            Kind::Haproxy => Ok(vec!["-f".to_owned(), self.write(&self.haproxy(port)?)?]),
            Kind::Nginx => {
                let at = self.folder.display().to_string();
                Ok(vec!["-p".to_owned(), at, "-c".to_owned(), self.write(&self.nginx(port)?)?])
            }
            Kind::SglangRouter | Kind::VllmRouter => {
                let launch = if self.kind == Kind::SglangRouter { "launch " } else { "" };
                let line = format!(
                    "{launch}--host 127.0.0.1 --port {port} --policy power_of_two \
                     --prometheus-host 127.0.0.1 --prometheus-port {other_port} \
                     --worker-urls {} {}",
                    workers[0], workers[1]
                );
                Ok(line.split(' ').map(str::to_owned).collect())
            }
        }
    }

    /// The speculative instance takes `high`, then the other is used.
    fn haproxy(&self, port: u16) -> Result<String, String> {
        let [speculative, throughput] = self.authorities()?;
        let high = self.pair.high;
        Ok(format!(
            "global\n  maxconn 9000\n  nbthread 1\ndefaults\n  mode http\n  timeout connect 5s\n  \
             timeout client 1h\n  timeout server 1h\n  option http-no-delay\nfrontend all\n  \
             bind 127.0.0.1:{port}\n  default_backend pair\nbackend pair\n  balance first\n  \
             server speculative {speculative} maxconn {high}\n  \
             server throughput {throughput} maxconn 256\n"
        ))
    }

    fn nginx(&self, port: u16) -> Result<String, String> {
        let [speculative, throughput] = self.authorities()?;
        Ok(format!(
            "master_process off; daemon off; pid nginx.pid; error_log nginx.err warn;\n\
             events {{ worker_connections 4096; }}\n\
             http {{ access_log off; client_body_temp_path body; proxy_temp_path proxy;\n\
             fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n\
             upstream pair {{ least_conn; keepalive 64;\n\
             server {speculative}; server {throughput}; }}\n\
             server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://pair;\n\
             proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_buffering off;\n\
             proxy_read_timeout 1h; }} }} }}\n"
        ))
    }

    /// `host:port` of the pair.
    fn authorities(&self) -> Result<[String; 2], String> {
        let authority = |url: &str| {
            let url = reqwest::Url::parse(url).map_err(|error| format!("{url}: {error}"))?;
            let host = url.host_str().unwrap_or_default();
            Ok::<_, String>(format!("{host}:{}", url.port_or_known_default().unwrap_or(80)))
        };
        Ok([authority(&self.pair.speculative)?, authority(&self.pair.throughput)?])
    }

    fn write(&self, text: &str) -> Result<String, String> {
        let path = self.folder.join(format!("{}.conf", self.kind.label()));
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path.display().to_string())
    }
}

impl Peer {
    /// Until it serves a model's name: then engines behind it are reached too.
    async fn wait(&mut self) -> Result<(), String> {
        let client = Client::new(Clock::start());
        let page = format!("{}/v1/models", self.url);
        for _ in 0..READY_MAX_S * 5 {
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                return Err(format!("ended by itself ({status})"));
            }
            if client.text(&page).await.is_ok() {
                return Ok(());
            }
            sleep(Duration::from_millis(200)).await;
        }
        Err(format!("did not answer {page} within {READY_MAX_S} s"))
    }
}

fn cores() -> Result<usize, String> {
    std::thread::available_parallelism().map(usize::from).map_err(|error| error.to_string())
}

fn free_port() -> Result<u16, String> {
    let bound = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
    bound.map(|it| it.port()).map_err(|error| format!("no free port: {error}"))
}

#[cfg(test)]
mod tests;
