//! What passes as it is, and what is refused: paths, names, early answers, keys, idle clients.

use std::time::Duration;

use tests::fake_engine::{FakeEngine, Step};

use super::router_rig::{CHAT, Raw, Rig, config, echo, eventually, pair, post};

#[tokio::test]
async fn paths_pass_byte_for_byte() {
    let engine = echo().await;
    let rig = Rig::pinned(&engine, "").await;
    for path in [
        "/v1/models/org%2Fname",
        "/a//b/../c/./d",
        "/v1/x?y=%20&z=a+b&&=",
        "/%F0%9F%98%80",
        "/v1/chat/completions/",
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: r\r\n\r\n");
        assert_eq!(Raw::ask(rig.address(), request).await.status, 200);
        assert_eq!(engine.requests().last().unwrap().path(), path);
    }
    // A client that takes the router for a forward proxy.
    let request = "GET http://elsewhere.example/v1/models?a HTTP/1.1\r\nhost: x\r\n\r\n";
    assert_eq!(Raw::ask(rig.address(), request).await.status, 200);
    assert_eq!(engine.requests().last().unwrap().path(), "/v1/models?a");
    rig.settled().await;
}

#[tokio::test]
async fn names_of_requests_pass() {
    let engine = echo().await;
    let rig = Rig::pinned(&engine, "").await;
    let own = "x-request-id: abc-1\r\ntraceparent: 00-11-22-01\r\ntracestate: v=1\r\n";
    let got = Raw::ask(rig.address(), post(CHAT, own, "{}")).await;
    let seen = engine.requests().pop().unwrap();
    assert_eq!(
        (seen.header("x-request-id"), got.header("x-request-id")),
        (Some("abc-1"), Some("abc-1"))
    );
    assert_eq!(seen.header("traceparent"), Some("00-11-22-01"));
    assert_eq!(seen.header("tracestate"), Some("v=1"));
    // A refusal has a name too, the client's or a new one.
    let wrong = "x-crossover-target: nobody\r\n";
    let got = Raw::ask(rig.address(), post(CHAT, &format!("{own}{wrong}"), "{}")).await;
    assert_eq!((got.status, got.header("x-request-id")), (400, Some("abc-1")));
    let got = Raw::ask(rig.address(), post(CHAT, wrong, "{}")).await;
    assert!(got.header("x-request-id").unwrap().starts_with("req-"));
}

#[tokio::test]
async fn an_engine_that_answers_before_the_body_is_heard() {
    let engine = FakeEngine::start(|_| {
        let early = b"HTTP/1.1 400 Bad\r\ncontent-length: 5\r\nconnection: close\r\n\r\nearly";
        vec![Step::Send(early.to_vec()), Step::Wait(Duration::from_millis(300)), Step::Close]
    })
    .await;
    let rig = Rig::pinned(&engine, "").await;
    let mut client = Raw::connect(rig.address()).await;
    client.send("POST /e HTTP/1.1\r\nhost: r\r\ncontent-length: 1000000\r\n\r\nsome").await;
    let got = client.answer().await;
    assert_eq!((got.status, got.text()), (400, "early".to_owned()));
    rig.settled().await;
}

#[tokio::test]
async fn a_client_that_closes_its_sending_side_counts_as_gone() {
    let engine = FakeEngine::start(|_| vec![Step::ReadBody, Step::Stall]).await;
    let rig = Rig::pinned(&engine, "").await;
    let mut client = Raw::connect(rig.address()).await;
    client.send(post(CHAT, "", "{}")).await;
    eventually("it arrived", || engine.requests().len() == 1).await;
    tokio::io::AsyncWriteExt::shutdown(&mut client.stream).await.unwrap();
    eventually("the engine is let go", || engine.left() == 1).await;
    rig.settled().await;
}

#[tokio::test]
async fn requests_in_a_row_share_connections_on_both_sides() {
    let engine = echo().await;
    let text = format!("[health]\ninterval_ms = 3600000\n{}", pair(&[&engine]));
    let rig = Rig::start_with(config(&text), 1).await;
    let mismatch = || rig.fleet.metrics.text(&rig.fleet, router::clock::now());
    eventually("the first probe is over", || mismatch().contains("endpoint_mismatch{")).await;
    let before = engine.connections();
    let mut client = Raw::connect(rig.address()).await;
    for _ in 0..50 {
        client.send(post(CHAT, "", "{}")).await;
        assert_eq!(client.answer().await.status, 200);
    }
    // Two at once, the second in the first one's packet.
    client.send(format!("{}{}", post("/1", "", "{}"), post("/2", "", "{}"))).await;
    assert!(client.answer().await.text().starts_with("/1"));
    assert!(client.answer().await.text().starts_with("/2"));
    assert_eq!(engine.connections() - before, 1);
    rig.settled().await;
}

#[tokio::test]
async fn connect_is_refused_and_tunnels_nothing() {
    let engine = echo().await;
    let rig = Rig::pinned(&engine, "").await;
    let got = Raw::ask(rig.address(), "CONNECT h:1 HTTP/1.1\r\nhost: h\r\n\r\n").await;
    assert_eq!((got.status, got.code()), (405, "method_not_allowed".to_owned()));
    assert!(engine.requests().is_empty());
}

#[tokio::test]
async fn keys_are_asked_for_except_of_preflights() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    std::fs::write(&path, "sk-one\n").unwrap();
    let engine = echo().await;
    let access = format!("[access]\nkeys_file = {:?}\n", path.to_str().unwrap());
    let rig = Rig::pinned(&engine, &access).await;
    let got = Raw::ask(rig.address(), post(CHAT, "", "{}")).await;
    assert_eq!((got.status, got.code()), (401, "invalid_api_key".to_owned()));
    let own = "authorization: Bearer sk-one\r\n";
    assert_eq!(Raw::ask(rig.address(), post(CHAT, own, "{}")).await.status, 200);
    // The key was for the router: the engine does not see it.
    assert_eq!(engine.requests()[0].header("authorization"), None);
    let preflight = "OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: r\r\norigin: x\r\n\r\n";
    assert_eq!(Raw::ask(rig.address(), preflight).await.status, 200);
    assert_eq!(
        Raw::ask(rig.address(), "GET /health HTTP/1.1\r\nhost: r\r\n\r\n").await.status,
        200
    );
}

#[tokio::test]
async fn slow_heads_and_idle_connections_are_closed() {
    let engine = echo().await;
    let rig = Rig::pinned(&engine, "").await;
    let mut config = rig.fleet.live().config.clone();
    config.timeouts.client_header = Duration::from_millis(300);
    config.timeouts.client_idle = Duration::from_millis(300);
    rig.fleet.reload(config);
    let mut slow = Raw::connect(rig.address()).await;
    slow.send("POST / HTTP/1.1\r\nhos").await;
    // What may yet become HTTP/2, and what has, and then says nothing more.
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for count in [1, preface.len() - 1, preface.len()] {
        let mut silent = Raw::connect(rig.address()).await;
        silent.send(&preface[..count]).await;
        while !silent.ended().await {}
    }
    let mut idle = Raw::connect(rig.address()).await;
    let mut used = Raw::connect(rig.address()).await;
    used.send(post(CHAT, "", "{}")).await;
    assert_eq!(used.answer().await.status, 200);
    assert!(slow.ended().await && idle.ended().await && used.ended().await);
    eventually("no connection is left", || rig.metric("connections") == 0.0).await;
}
