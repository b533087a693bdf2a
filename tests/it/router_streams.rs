//! Answers pass byte for byte, as they come, and never end well when they ended badly.

use std::sync::Arc;
use std::time::Duration;

use tests::fake_engine::{FakeEngine, Step, answer, chunk, ok, stream_head};
use tokio::sync::Notify;

use super::router_rig::{CHAT, Raw, Rig, eventually, post};

#[tokio::test]
async fn bytes_split_anywhere_arrive_unchanged() {
    let event = "data: {\"content\":\"😀 é\"}\r\n\r\n: comment\n\ndata: [DONE]\n\n";
    let engine = FakeEngine::start(move |seen| {
        let at: usize = seen.path()[1..].parse().unwrap_or(0);
        let (left, right) = event.as_bytes().split_at(at);
        let mut steps = vec![Step::ReadBody, Step::Send(stream_head())];
        for part in [left, right] {
            if !part.is_empty() {
                steps.push(Step::Send(chunk(part)));
                steps.push(Step::Wait(Duration::from_millis(1)));
            }
        }
        steps.push(Step::Send(chunk(b"")));
        steps
    })
    .await;
    let rig = Rig::pinned(&engine, "").await;
    for at in 0..=event.len() {
        let got = Raw::ask(rig.address(), post(&format!("/{at}"), "", "{}")).await;
        assert!(got.complete);
        assert_eq!(got.body, event.as_bytes(), "split at {at}");
    }
    rig.settled().await;
}

/// The next event is only sent once the client has the one before.
#[tokio::test]
async fn each_event_passes_before_the_next_is_made() {
    let gate = Arc::new(Notify::new());
    let script = Arc::clone(&gate);
    let engine = FakeEngine::start(move |_| {
        let mut steps = vec![Step::ReadBody, Step::Send(stream_head())];
        for index in 0..50 {
            steps.push(Step::Send(chunk(format!("data: {index}\n\n").as_bytes())));
            steps.push(Step::Gate(Arc::clone(&script)));
        }
        steps.push(Step::Send(chunk(b"")));
        steps
    })
    .await;
    let rig = Rig::pinned(&engine, "").await;
    let mut client = Raw::connect(rig.address()).await;
    client.send(post(CHAT, "accept-encoding: gzip, br\r\n", "{\"stream\":true}")).await;
    let head = client.head().await;
    assert!(!head.to_lowercase().contains("content-encoding"));
    for index in 0..50 {
        let piece = client.until(b"\n\n").await.unwrap();
        assert!(String::from_utf8(piece).unwrap().ends_with(&format!("data: {index}\n\n")));
        gate.notify_one();
    }
    client.until(b"0\r\n\r\n").await.unwrap();
    rig.settled().await;
}

/// A client that has sent its next request already gets each event all the same.
#[tokio::test]
async fn the_next_request_does_not_hold_a_stream_back() {
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
    let mut client = Raw::connect(rig.address()).await;
    client.send(post("/1", "", "{}") + &post("/2", "", "{}")).await;
    for _ in 0..2 {
        client.head().await;
        for _ in 0..2 {
            client.until(b"data: x\n\n\r\n").await.unwrap();
            gate.notify_one();
        }
        client.until(b"0\r\n\r\n").await.unwrap();
    }
    rig.settled().await;
}

/// However long a request takes, limits on heads and on idle connections do not end it.
#[tokio::test]
async fn a_request_outlives_every_limit_on_heads_and_idle_connections() {
    let pause = || Step::Wait(Duration::from_millis(500));
    let engine = FakeEngine::start(move |seen| {
        let piece = || Step::Send(chunk(b"data: x\n\n"));
        let steps = match seen.path() {
            // Silent before its head, or between its events; in one piece, or as a stream.
            "/late" => vec![pause(), Step::Send(ok("text/plain", b"late"))],
            "/quick" => vec![Step::Send(ok("text/plain", b"quick"))],
            _ => vec![
                pause(),
                Step::Send(stream_head()),
                piece(),
                pause(),
                piece(),
                pause(),
                Step::Send(chunk(b"data: [DONE]\n\n")),
                Step::Send(chunk(b"")),
            ],
        };
        [vec![Step::ReadBody], steps].concat()
    })
    .await;
    let rig = Rig::pinned(&engine, "").await;
    let mut config = rig.fleet.live().config.clone();
    config.timeouts.client_header = Duration::from_millis(200);
    config.timeouts.client_idle = Duration::from_millis(200);
    rig.fleet.reload(config);
    let mut client = Raw::connect(rig.address()).await;
    // The limits begin anew on a connection that has served before.
    for path in ["/stream", "/late", "/quick", "/stream", "/quick", "/late"] {
        client.send(post(path, "", "{}")).await;
        let got = client.answer().await;
        assert!(got.complete && got.status == 200, "{path}: {got:?}");
        assert_eq!(got.text().ends_with("data: [DONE]\n\n"), path == "/stream", "{path}");
    }
    rig.settled().await;
}

#[tokio::test]
async fn an_engine_that_breaks_off_is_never_a_clean_end() {
    let engine = FakeEngine::start(|seen| {
        let piece = |it: &[u8]| Step::Send(chunk(it));
        let events = [piece(b"data: 1\n\n"), piece(b"data: 2\n\n"), piece(b"data: 3\n\n")];
        let mut steps = vec![Step::ReadBody];
        if seen.path() == "/length" {
            let head = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\ndata: 3\n\n";
            steps.push(Step::Send(head.to_vec()));
        } else {
            steps.push(Step::Send(stream_head()));
            steps.extend(events);
        }
        steps.push(Step::Wait(Duration::from_millis(20)));
        steps.push(if seen.path() == "/close" { Step::Close } else { Step::Reset });
        steps
    })
    .await;
    let rig = Rig::pinned(&engine, "").await;
    for path in ["/reset", "/close", "/length"] {
        let got = Raw::ask(rig.address(), post(path, "", "{}")).await;
        assert_eq!(got.status, 200);
        assert!(!got.complete, "{path}");
        assert!(String::from_utf8_lossy(&got.body).ends_with("data: 3\n\n"), "{path}: {got:?}");
    }
    // To HTTP/1.0 the end of the connection is the end of the body, so it must be an error.
    let mut old = Raw::connect(rig.address()).await;
    old.send("POST /reset HTTP/1.0\r\ncontent-length: 2\r\n\r\n{}").await;
    let mut text = Vec::new();
    let end = loop {
        let mut piece = [0; 4096];
        match tokio::io::AsyncReadExt::read(&mut old.stream, &mut piece).await {
            Ok(0) => break Ok(()),
            Ok(count) => text.extend_from_slice(&piece[..count]),
            Err(error) => break Err(error.kind()),
        }
    };
    assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset));
    assert!(String::from_utf8_lossy(&text).ends_with("data: 3\n\n"));
    rig.settled().await;
    assert_eq!(rig.metric("outcomes_total{endpoint=\"s\",outcome=\"broken_off\"}"), 4.0);
}

/// The most that the kernel holds for one direction of a socket.
fn buffer_max(direction: &str) -> usize {
    let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/tcp_{direction}")).unwrap();
    text.split_whitespace().last().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_slow_reader_holds_the_engine_back_instead_of_filling_memory() {
    const SIZE: usize = 1 << 30;
    let engine = FakeEngine::start(|_| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {SIZE}\r\n\r\n");
        vec![Step::ReadBody, Step::Send(head.into_bytes()), Step::Flood(SIZE)]
    })
    .await;
    let rig = Rig::pinned(&engine, "").await;
    let mut client = Raw::connect(rig.address()).await;
    client.send(post(CHAT, "", "{}")).await;
    client.head().await;
    let mut before = usize::MAX;
    eventually("the engine is held back", || {
        let still = engine.sent() == before;
        before = engine.sent();
        std::thread::yield_now();
        still && 0 < before
    })
    .await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    // What the kernel holds for two connections, with some leave, and two buffers of ours.
    let kernel_max = 2 * (buffer_max("rmem") + buffer_max("wmem"));
    assert!(2 * kernel_max < SIZE, "this machine's socket buffers hold {kernel_max} bytes");
    assert!(engine.sent() < 2 * kernel_max, "{} bytes went in", engine.sent());
    drop(client);
    rig.settled().await;
}

#[tokio::test]
async fn a_reader_that_stands_still_is_cut() {
    let engine = FakeEngine::start(|_| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 1 << 30);
        vec![Step::ReadBody, Step::Send(head.into_bytes()), Step::Flood(1 << 30)]
    })
    .await;
    let rig = Rig::pinned(&engine, "").await;
    let mut config = rig.fleet.live().config.clone();
    config.timeouts.send_stall = Some(Duration::from_millis(200));
    rig.fleet.reload(config);
    let mut client = Raw::connect(rig.address()).await;
    client.send(post(CHAT, "", "{}")).await;
    let stalled = "outcomes_total{endpoint=\"s\",outcome=\"client_stalled\"}";
    eventually("it is cut", || rig.metric(stalled) == 1.0).await;
    rig.settled().await;
    eventually("the engine noticed", || engine.left() == 1).await;
}

#[tokio::test]
async fn a_stream_without_any_line_end_passes() {
    const SIZE: usize = 24 << 20;
    let engine = FakeEngine::start(|_| {
        let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
        vec![Step::ReadBody, Step::Send(head.to_vec()), Step::Flood(SIZE), Step::Close]
    })
    .await;
    let rig = Rig::pinned(&engine, "").await;
    let mut client = Raw::connect(rig.address()).await;
    client.send(post(CHAT, "connection: close\r\n", "{}")).await;
    let got = client.answer().await;
    assert!(got.complete);
    assert_eq!(got.body.len(), SIZE);
    rig.settled().await;
}

#[tokio::test]
async fn a_client_that_leaves_is_gone_at_the_engine_too_in_every_phase() {
    for body in ["{\"stream\":true}", "{\"stream\":false}"] {
        let engine = FakeEngine::start(|seen| {
            let head = Step::Send(stream_head());
            let piece = Step::Send(chunk(b"data: 1\n\n"));
            match seen.path() {
                "/before" => vec![Step::ReadBody, Step::Stall],
                "/after-head" => vec![Step::ReadBody, head, Step::Stall],
                _ => vec![Step::ReadBody, head, piece, Step::Stall],
            }
        })
        .await;
        let rig = Rig::pinned(&engine, "").await;
        for (count, path) in ["/before", "/after-head", "/between"].into_iter().enumerate() {
            let mut client = Raw::connect(rig.address()).await;
            client.send(post(path, "", body)).await;
            eventually("it arrived", || engine.requests().len() == count + 1).await;
            if path != "/before" {
                client.head().await;
            }
            drop(client);
            eventually("the engine saw it leave", || engine.left() == count + 1).await;
        }
        // In the middle of its own body.
        let mut client = Raw::connect(rig.address()).await;
        client.send("POST /upload HTTP/1.1\r\nhost: r\r\ncontent-length: 100\r\n\r\nhalf").await;
        eventually("it arrived", || engine.requests().len() == 4).await;
        drop(client);
        rig.settled().await;
        eventually("the engine has no request left", || {
            engine.requests().len() == 4 && rig.fleet.total() == 0
        })
        .await;
    }
}

#[tokio::test]
async fn an_error_keeps_its_kind_its_bytes_and_its_headers() {
    let error = br#"{ "object":"error", "message":"no such model",  "code":404 }"#;
    let engine = FakeEngine::start(move |_| {
        let answer = answer("404 Nothing Here", "application/json", error);
        let text = String::from_utf8(answer).unwrap();
        let text = text.replace("\r\n\r\n", "\r\nretry-after: 7\r\nx-own: a\r\nx-own: b\r\n\r\n");
        vec![Step::ReadBody, Step::Send(text.into_bytes())]
    })
    .await;
    let rig = Rig::pinned(&engine, "").await;
    let got = Raw::ask(rig.address(), post(CHAT, "", "{\"stream\":true}")).await;
    assert_eq!((got.status, &got.body[..]), (404, &error[..]));
    assert_eq!(got.header("content-type"), Some("application/json"));
    assert_eq!(got.header("retry-after"), Some("7"));
    assert!(got.header("cache-control").is_none());
    assert_eq!(got.head.matches("x-own: ").count(), 2);
    rig.settled().await;
}

#[tokio::test]
async fn bodies_are_never_read_so_anything_passes_both_ways() {
    let engine = FakeEngine::start(|seen| {
        let echo = format!("{{\"usage\":{{}}, \"path\":\"{}\"}}", seen.path());
        vec![Step::ReadBody, Step::Send(ok("application/json", echo.as_bytes()))]
    })
    .await;
    let rig = Rig::pinned(&engine, "").await;
    for body in [
        "{\"model\":\"m\", \"stream_options\":{\"include_usage\":false}, \"zz\" : 1e3 }",
        "{\"broken\": ",
        "\u{feff}\u{0}binary",
        "",
    ] {
        let got = Raw::ask(rig.address(), post(CHAT, "", body)).await;
        assert_eq!(got.status, 200);
        assert_eq!(engine.requests().last().unwrap().body, body.as_bytes());
    }
    rig.settled().await;
}

#[tokio::test]
async fn silence_is_measured_from_the_last_byte() {
    let drip = || {
        let mut steps = vec![Step::ReadBody, Step::Send(stream_head())];
        for _ in 0..8 {
            steps.push(Step::Wait(Duration::from_millis(300)));
            steps.push(Step::Send(chunk(b"data: x\n\n")));
        }
        steps
    };
    let engine = FakeEngine::start(move |seen| {
        let mut steps = drip();
        let is_whole = seen.path() == "/whole";
        steps.push(if is_whole { Step::Send(chunk(b"")) } else { Step::Stall });
        steps
    })
    .await;
    let rig = Rig::pinned(&engine, "").await;
    let mut config = rig.fleet.live().config.clone();
    config.timeouts.idle = Some(Duration::from_millis(1500));
    rig.fleet.reload(config);
    // Takes longer than the limit altogether, but is never silent for that long.
    let got = Raw::ask(rig.address(), post("/whole", "", "{}")).await;
    assert!(got.complete);
    let got = Raw::ask(rig.address(), post("/stall", "", "{}")).await;
    assert!(!got.complete);
    assert_eq!(got.body.len(), 8 * "data: x\n\n".len());
    rig.settled().await;
    assert_eq!(rig.metric("outcomes_total{endpoint=\"s\",outcome=\"idle_timeout\"}"), 1.0);
    eventually("the engine is let go", || engine.left() == 1).await;
}
