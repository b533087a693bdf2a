//! What is in flight is what is counted, however a request ends.

use std::sync::Arc;
use std::time::Duration;

use tests::fake_engine::{FakeEngine, Step, answer, chunk, ok, stream_head};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::router_rig::{Raw, Rig, config, eventually, pair, post};

/// An engine that never answers.
async fn silent() -> FakeEngine {
    FakeEngine::start(|_| vec![Step::ReadBody, Step::Stall]).await
}

/// Clients that have asked for tokens, all of them in flight.
async fn asking(rig: &Rig, count: u32) -> Vec<Raw> {
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(Raw::asking(rig.address()).await);
    }
    eventually("all are in flight", || rig.work("s") == count).await;
    clients
}

#[tokio::test]
async fn clients_that_leave_before_the_head_leave_no_count() {
    let silent = silent().await;
    let rig = Rig::pinned(&silent, "").await;
    for _ in 0..10 {
        drop(asking(&rig, 100).await);
        rig.settled().await;
    }
    eventually("the engine saw them leave", || silent.left() == 1000).await;
    assert_eq!(rig.metric("outcomes_total{endpoint=\"s\",outcome=\"client_gone\"}"), 1000.0);
}

#[tokio::test]
async fn a_lease_lasts_until_the_last_byte() {
    let gate = Arc::new(Notify::new());
    let script = Arc::clone(&gate);
    let engine = FakeEngine::start(move |_| {
        let gate = || Step::Gate(Arc::clone(&script));
        let piece = || Step::Send(chunk(b"data: x\n\n"));
        let end = Step::Send(chunk(b""));
        vec![Step::ReadBody, Step::Send(stream_head()), piece(), gate(), piece(), gate(), end]
    })
    .await;
    let rig = Rig::pinned(&engine, "").await;
    let mut client = Raw::asking(rig.address()).await;
    client.head().await;
    for _ in 0..2 {
        client.until(b"data: x\n\n").await.unwrap();
        assert_eq!((rig.work("s"), rig.fleet.total()), (1, 1));
        gate.notify_one();
    }
    client.until(b"0\r\n\r\n").await.unwrap();
    rig.settled().await;
}

#[tokio::test]
async fn probes_do_not_touch_the_count() {
    let engine = silent().await;
    let rig = Rig::pinned(&engine, "").await;
    let clients = asking(&rig, 5).await;
    let ready = "probes_total{endpoint=\"s\",result=\"ready\"}";
    let before = rig.metric(ready);
    eventually("twenty probes", || {
        assert_eq!(rig.work("s"), 5);
        before + 20.0 <= rig.metric(ready)
    })
    .await;
    drop(clients);
    rig.settled().await;
}

#[tokio::test]
async fn paths_that_nobody_knows_count_and_light_requests_count_beside() {
    let engine = silent().await;
    let rig = Rig::pinned(&engine, "").await;
    let mut work = Raw::connect(rig.address()).await;
    work.send(post("/v1/foo?bar=%2F", "", "not json")).await;
    let mut light = Raw::connect(rig.address()).await;
    light.send("GET /v1/models HTTP/1.1\r\nhost: r\r\n\r\n").await;
    eventually("both arrived", || engine.requests().len() == 2).await;
    assert_eq!((rig.work("s"), rig.fleet.total()), (1, 1));
    assert_eq!(rig.metric("in_flight{class=\"light\",endpoint=\"s\"}"), 1.0);
    drop((work, light));
    rig.settled().await;
}

/// The answer of an engine that is about to close.
fn closing(answer: Vec<u8>) -> Vec<u8> {
    let text = String::from_utf8(answer).unwrap();
    text.replacen("\r\n", "\r\nconnection: close\r\n", 1).into_bytes()
}

/// Each of these ends in its own way, many at once.
#[tokio::test]
async fn counts_return_after_every_kind_of_end() {
    let engine = FakeEngine::start(|seen| {
        let head = || Step::Send(stream_head());
        let piece = || Step::Send(chunk(b"data: x\n\n"));
        match seen.path() {
            "/ok" => vec![Step::ReadBody, Step::Send(ok("text/plain", b"ok"))],
            "/bad" => vec![Step::ReadBody, Step::Send(answer("400 Bad", "text/plain", b"no"))],
            "/broken" => vec![Step::ReadBody, Step::Send(answer("500 Oh", "text/plain", b"no"))],
            "/early" => vec![
                Step::Send(closing(answer("413 Too", "text/plain", b"no"))),
                Step::Wait(Duration::from_millis(20)),
                Step::Close,
            ],
            "/close" => vec![Step::ReadBody, Step::Close],
            "/reset" => vec![Step::Reset],
            "/cut" => vec![Step::ReadBody, head(), piece(), Step::Reset],
            "/half" => vec![Step::ReadBody, head(), piece(), Step::HalfClose],
            "/lie" => vec![Step::ReadBody, head(), Step::Send(b"zz\r\nlie".to_vec()), Step::Stall],
            "/short" => vec![
                Step::ReadBody,
                Step::Send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort".to_vec()),
                Step::Close,
            ],
            "/noise" => vec![Step::ReadBody, Step::Send(b"\x00\x01 nonsense\r\n\r\n".to_vec())],
            "/stall" => vec![Step::ReadBody, head(), piece(), Step::Stall],
            _ => vec![Step::ReadBody, Step::Stall],
        }
    })
    .await;
    let text = "[policy]\nkind = \"pin\"\nrole = \"speculative\"\n[timeouts]\nidle_ms = 2500\n\
                first_byte_ms = 2500\n[health]\ninterval_ms = 20\n[breaker]\nfailures_max = 1000\n";
    let rig = Rig::start_with(config(&format!("{text}{}", pair(&[&engine]))), 1).await;
    let paths = [
        "/ok", "/bad", "/broken", "/early", "/close", "/reset", "/cut", "/half", "/lie", "/short",
        "/noise", "/stall", "/silent",
    ];
    let expected = [200, 400, 500, 413, 502, 502, 200, 200, 200, 200, 502, 200, 504];
    let mut clients = JoinSet::new();
    for turn in 0..20 {
        for (path, status) in paths.into_iter().zip(expected) {
            let address = rig.address();
            clients.spawn(async move {
                let mut client = Raw::connect(address).await;
                client.send(post(path, "", "{}")).await;
                if turn % 4 == 3 {
                    // Leaves at some moment, whatever was going on.
                    tokio::time::sleep(Duration::from_millis(turn * 7)).await;
                    return;
                }
                let got = client.answer().await;
                assert_eq!(got.status, status, "{path}");
                let is_whole = !["/cut", "/half", "/lie", "/short", "/stall"].contains(&path);
                assert_eq!(got.complete, is_whole, "{path}");
            });
        }
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    rig.settled().await;
    let text = rig.fleet.metrics.text(&rig.fleet, router::clock::now());
    let outcomes = text.lines().filter(|it| it.starts_with("crossover_router_outcomes_total"));
    let ended: f64 =
        outcomes.map(|it| it.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum();
    let routed =
        rig.metric("routed_total{endpoint=\"s\",reason=\"pinned\",target=\"speculative\"}");
    assert_eq!(ended, routed);
}

#[tokio::test]
async fn a_burst_at_the_threshold_puts_no_more_than_the_threshold_on_one_side() {
    for kind in ["switch", "spill"] {
        let (s, t) = (silent().await, silent().await);
        let text = format!("[policy]\nkind = {kind:?}\nhigh = 8\n{}", pair(&[&s, &t]));
        let rig = Rig::start_with(config(&text), 2).await;
        let mut clients = JoinSet::new();
        for index in 0..64 {
            let address = rig.addresses[index % 2];
            clients.spawn(Raw::asking(address));
        }
        let clients = clients.join_all().await;
        eventually("all are in flight", || rig.fleet.total() == 64).await;
        assert_eq!((rig.work("s"), rig.work("t")), (8, 56), "{kind}");
        drop(clients);
        rig.settled().await;
    }
}

#[tokio::test]
async fn every_policy_counts_alike() {
    for policy in ["kind = \"switch\"", "kind = \"spill\"", "kind = \"pin\"\nrole = \"throughput\""]
    {
        let (s, t) = (silent().await, silent().await);
        let rig = Rig::start(&format!("[policy]\n{policy}\n{}", pair(&[&s, &t]))).await;
        let mut clients = Vec::new();
        for count in 1..=12 {
            clients.push(Raw::asking(rig.address()).await);
            eventually("it is counted", || rig.fleet.total() == count).await;
            assert_eq!(rig.work("s") + rig.work("t"), count, "{policy}");
        }
        drop(clients);
        rig.settled().await;
    }
}

#[tokio::test]
async fn reloads_in_the_middle_of_streams_change_no_count_and_cut_nothing() {
    let gate = Arc::new(Notify::new());
    let script = Arc::clone(&gate);
    let engine = FakeEngine::start(move |_| {
        vec![
            Step::ReadBody,
            Step::Send(stream_head()),
            Step::Send(chunk(b"data: first\n\n")),
            Step::Gate(Arc::clone(&script)),
            Step::Send(chunk(b"data: last\n\n")),
            Step::Send(chunk(b"")),
        ]
    })
    .await;
    let rig = Rig::pinned(&engine, "").await;
    let mut clients = asking(&rig, 100).await;
    let base = rig.fleet.live().config.clone();
    for turn in 0..100 {
        let mut next = base.clone();
        if turn % 3 == 0 {
            next.endpoints[0].name = "other".into();
        }
        rig.fleet.reload(next);
        assert_eq!((rig.work("s"), rig.fleet.total()), (100, 100));
    }
    rig.fleet.reload(base);
    eventually("the head of each stream came", || engine.requests().len() == 100).await;
    for client in &mut clients {
        client.until(b"first").await.unwrap();
    }
    let mut opener = JoinSet::new();
    opener.spawn(async move {
        loop {
            gate.notify_waiters();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    for client in &mut clients {
        client.until(b"data: last\n\n\r\n0\r\n\r\n").await.unwrap();
    }
    rig.settled().await;
}

#[tokio::test]
async fn endpoints_that_come_and_go_leave_nothing_behind() {
    let engine =
        FakeEngine::start(|_| vec![Step::ReadBody, Step::Send(ok("text/plain", b"ok"))]).await;
    let rig = Rig::pinned(&engine, "").await;
    let base = rig.fleet.live().config.clone();
    for turn in 0..2000 {
        let mut next = base.clone();
        let mut extra = next.endpoints[0].clone();
        extra.name = format!("extra-{turn}").into();
        next.endpoints.push(extra);
        rig.fleet.reload(next);
    }
    rig.fleet.reload(base);
    eventually("only one is known", || rig.fleet.endpoints().len() == 1).await;
    let text = rig.fleet.metrics.text(&rig.fleet, router::clock::now());
    assert!(!text.contains("extra-"), "metrics of endpoints that are gone");
}

/// Only `fleet` and its rooms touch counts; a second place would leak sooner or later.
#[test]
fn only_the_lease_touches_counts() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../router/src");
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let at = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                folders.push(path);
            } else if at.ends_with(".rs") && !at.starts_with("fleet") {
                let text = std::fs::read_to_string(&path).unwrap();
                for call in [".claim", ".unclaim", "tally()", ".give()"] {
                    assert!(!text.contains(call), "{at} says {call}");
                }
            }
        }
    }
}
