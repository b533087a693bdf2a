//! The engine as a process: killed without warning and started again, among clients of all kinds.

use std::net::SocketAddr;
use std::process::{Child, Command};
use std::time::Duration;

use http_body_util::Full;
use hyper::Request;
use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use crate::programs::program;
use crate::serve::asking::{COMPLETIONS, with};
use crate::serve::fixture::{Answer, Answering, send};

/// An engine with the default pair; killed when dropped.
struct Engine(Child, SocketAddr);

impl Drop for Engine {
    fn drop(&mut self) {
        // It may be dead already.
        let _dead = self.0.kill();
        let _reaped = self.0.wait();
    }
}

impl Engine {
    async fn start(address: SocketAddr) -> Self {
        let child = Command::new(program("crossover-engine"))
            .arg("--model")
            .arg(deploy::fetch::default_model(&mut |_| ()).unwrap())
            .args(["--mode", "eagle3", "--draft"])
            .arg(deploy::head::shipped().unwrap())
            .args(["--memory", "64MiB", "--device", "cpu:0", "--log", "warn"])
            .args(["--listen", &address.to_string()])
            .spawn()
            .unwrap();
        let mut engine = Self(child, address);
        for _ in 0..1200 {
            assert!(engine.0.try_wait().unwrap().is_none(), "it ended by itself");
            if TcpStream::connect(address).await.is_ok()
                && engine.get("/health").await.status == 200
            {
                return engine;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("never ready");
    }

    async fn get(&self, path: &str) -> Answer {
        send(self.1, Request::get(path).body(Full::default()).unwrap()).await.whole().await
    }

    async fn open(&self, body: &Value) -> Answering {
        let body = Full::new(Bytes::from(body.to_string()));
        send(self.1, Request::post(COMPLETIONS).body(body).unwrap()).await
    }

    /// The sum of a metric over those of its series that have `label`.
    async fn metric(&self, name: &str, label: &str) -> f64 {
        let page = self.get("/metrics").await.body;
        let is_own = |it: &&str| it.starts_with(&format!("{name}{{")) && it.contains(label);
        let own = page.lines().filter(is_own);
        own.map(|it| it.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
    }

    async fn until_idle(&self) {
        for _ in 0..600 {
            let load = self.get("/load").await.json();
            if load["server_load"] == 0 && load["kv_usage"] == 0.0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("never idle: {:?}", self.get("/load").await);
    }
}

async fn text(engine: &Engine) -> Value {
    let request = json!({ "prompt": "The capital of France is", "max_tokens": 12, "seed": 7 });
    engine.open(&request).await.whole().await.json()["choices"][0]["text"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_engine_starts_again_and_says_the_same() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let mut engine = Engine::start(address).await;
    let before = text(&engine).await;
    let long = json!({
        "prompt": "Once", "max_tokens": 2000, "ignore_eos": true, "stream": true,
    });
    let mut stream = engine.open(&long).await;
    stream.event().await.unwrap();
    engine.0.kill().unwrap();
    let rest = stream.whole().await;
    assert!(!rest.is_whole && !rest.body.contains("[DONE]"), "a cut text looks whole");
    drop(engine);
    let engine = Engine::start(address).await;
    assert_eq!(text(&engine).await, before);
}

/// Idle connections, wrong requests, clients that leave: each counts once, and for what it was.
#[tokio::test(flavor = "multi_thread")]
async fn counts_tell_what_happened() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let engine = Engine::start(address).await;
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(TcpStream::connect(address).await.unwrap());
    }
    let request = json!({ "prompt": "a b c", "max_tokens": 4, "ignore_eos": true });
    let (mut tokens, mut prompts) = (0, 0);
    for n in 1..=3 {
        let more = json!({ "n": n, "seed": n });
        let answer = engine.open(&with(request.clone(), more)).await.whole().await.json();
        tokens += answer["usage"]["completion_tokens"].as_u64().unwrap();
        prompts += answer["usage"]["prompt_tokens"].as_u64().unwrap() * n;
        let wrong = with(request.clone(), json!({ "n": 0 }));
        assert_eq!(engine.open(&wrong).await.status, 400);
        let long = json!({ "stream": true, "max_tokens": 2000 });
        let mut stream = engine.open(&with(request.clone(), long)).await;
        stream.event().await.unwrap();
        drop(stream);
        engine.until_idle().await;
    }
    assert_eq!(tokens, 4 * (1 + 2 + 3));
    let told = |name| engine.metric(name, "");
    for (reason, count) in [("length", 6.0), ("abort", 3.0), ("stop", 0.0)] {
        let reason = format!("finished_reason=\"{reason}\"");
        assert_eq!(engine.metric("vllm:request_success_total", &reason).await, count, "{reason}");
    }
    assert_eq!(told("crossover_engine_clients_gone_total").await, 3.0);
    assert_eq!(told("crossover_engine_requests_refused_total").await, 3.0);
    assert_eq!(told("vllm:num_requests_running").await, 0.0);
    assert_eq!(told("vllm:num_requests_waiting").await, 0.0);
    assert_eq!(told("crossover_engine_pages_used").await, 0.0);
    assert!(told("vllm:generation_tokens_total").await >= 24.0 + 3.0);
    assert!(told("vllm:prompt_tokens_total").await >= f64::from(u32::try_from(prompts).unwrap()));
    // One for each request that came to its end, of 4 tokens, however many texts it had.
    assert_eq!(told("vllm:request_max_num_generation_tokens_count").await, 3.0);
    assert_eq!(told("vllm:request_max_num_generation_tokens_sum").await, 12.0);
    let drafts = told("vllm:spec_decode_num_draft_tokens_total").await;
    let accepted = told("vllm:spec_decode_num_accepted_tokens_total").await;
    assert!(accepted <= drafts && 0.0 < drafts);
    let by_place = told("vllm:spec_decode_num_accepted_tokens_per_pos_total").await;
    assert_eq!(by_place, accepted);
    drop(idle);
}
