//! Where a message ends and what belongs to one hop: lengths, codings, limits, smuggling.

use std::time::Duration;

use tests::fake_engine::{FakeEngine, Step, chunk, stream_head};

use super::router_rig::{CHAT, Raw, Rig, echo, post};

#[tokio::test]
async fn headers_of_one_hop_end_here_in_both_directions() {
    let engine = FakeEngine::start(|_| {
        let head = "HTTP/1.1 200 OK\r\nConnection: keep-alive, x-foo\r\nKeep-Alive: timeout=5\r\n\
                    X-Foo: 1\r\nX-Bar: 2\r\nProxy-Connection: a\r\ncontent-length: 2\r\n\r\nok";
        vec![Step::ReadBody, Step::Send(head.into())]
    })
    .await;
    let rig = Rig::pinned(&engine, "").await;
    let own = "Connection: keep-alive, X-Foo\r\nKeep-Alive: 5\r\nX-Foo: 1\r\nX-Bar: 2\r\n\
               Upgrade: websocket\r\nTE: deflate\r\nProxy-Authorization: x\r\n";
    let got = Raw::ask(rig.address(), post(CHAT, own, "{}")).await;
    let seen = engine.requests().pop().unwrap();
    for name in
        ["connection", "keep-alive", "x-foo", "upgrade", "te", "proxy-authorization", "expect"]
    {
        assert_eq!(seen.header(name), None, "{name} went to the engine");
    }
    for name in ["connection", "keep-alive", "x-foo", "proxy-connection"] {
        assert_eq!(got.header(name), None, "{name} came back");
    }
    assert_eq!((seen.header("x-bar"), got.header("x-bar")), (Some("2"), Some("2")));
    assert_eq!(seen.header("host"), Some(&*engine.address.to_string()));
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
    assert!(seen.header("traceparent").unwrap().starts_with("00-"));
    assert_eq!(seen.header("x-request-id"), got.header("x-request-id"));
    rig.settled().await;
}

#[tokio::test]
async fn chunks_are_framed_anew_for_every_version() {
    let engine = FakeEngine::start(|seen| {
        let mut head = stream_head();
        if seen.path() == "/both" {
            let text = String::from_utf8(head).unwrap();
            head = text.replace("\r\n\r\n", "\r\ncontent-length: 3\r\n\r\n").into_bytes();
        }
        vec![
            Step::ReadBody,
            Step::Send(head),
            Step::Send(chunk(b"data: 1\n\n")),
            Step::Send(chunk(b"")),
        ]
    })
    .await;
    let rig = Rig::pinned(&engine, "").await;
    for path in ["/", "/both"] {
        let got = Raw::ask(rig.address(), post(path, "", "{}")).await;
        assert!(got.complete);
        assert_eq!(got.body, b"data: 1\n\n");
        assert_eq!(got.header("content-length"), None);
        let old = format!("POST {path} HTTP/1.0\r\ncontent-length: 2\r\n\r\n{{}}");
        let got = Raw::ask(rig.address(), old).await;
        assert_eq!(got.body, b"data: 1\n\n");
        assert_eq!(got.header("transfer-encoding"), None);
    }
    rig.settled().await;
}

#[tokio::test]
async fn bodies_in_chunks_pass() {
    let engine = echo().await;
    let rig = Rig::pinned(&engine, "").await;
    let request = "POST /c HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n\r\n\
                   3\r\nabc\r\n4;ext=1\r\ndefg\r\n0\r\n\r\n";
    assert_eq!(Raw::ask(rig.address(), request).await.status, 200);
    let seen = engine.requests().pop().unwrap();
    assert_eq!((&seen.body[..], seen.header("content-length")), (&b"abcdefg"[..], None));
    rig.settled().await;
}

#[tokio::test]
async fn answers_without_a_body_have_none() {
    let engine = FakeEngine::start(|seen| {
        let head = match seen.path() {
            "/head" => "HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n\r\n",
            "/empty" => "HTTP/1.1 204 No Content\r\n\r\n",
            _ => "HTTP/1.1 304 Not Modified\r\netag: x\r\n\r\n",
        };
        vec![Step::ReadBody, Step::Send(head.into())]
    })
    .await;
    let rig = Rig::pinned(&engine, "").await;
    let mut client = Raw::connect(rig.address()).await;
    for (request, status) in [
        ("HEAD /head", "200"),
        ("GET /empty", "204"),
        ("GET /same", "304"),
        ("OPTIONS /empty", "204"),
    ] {
        client.send(format!("{request} HTTP/1.1\r\nhost: r\r\n\r\n")).await;
        let head = client.head().await;
        assert!(head.contains(status), "{head}");
        assert_eq!(head.contains("content-length: 1234"), request == "HEAD /head");
    }
    assert!(client.buffer.is_empty());
    rig.settled().await;
}

/// Each of these must reach the engine as at most one request, and as what it says.
#[tokio::test]
async fn smuggled_requests_do_not_get_through() {
    let engine = echo().await;
    let rig = Rig::pinned(&engine, "").await;
    let inner = "GET /smuggled HTTP/1.1\r\nhost: r\r\n\r\n";
    let head = "POST /outer HTTP/1.1\r\nhost: r\r\n";
    let long = format!("0\r\n\r\n{inner}");
    for (name, request) in [
        (
            "cl then te",
            format!(
                "{head}content-length: {}\r\ntransfer-encoding: chunked\r\n\r\n{long}",
                long.len()
            ),
        ),
        (
            "te then cl",
            format!(
                "{head}transfer-encoding: chunked\r\ncontent-length: {}\r\n\r\n{long}",
                long.len()
            ),
        ),
        (
            "two lengths",
            format!("{head}content-length: 0\r\ncontent-length: {}\r\n\r\n{inner}", inner.len()),
        ),
        ("signed length", format!("{head}content-length: +{}\r\n\r\n{inner}", inner.len())),
        ("list of lengths", format!("{head}content-length: 0, {}\r\n\r\n{inner}", inner.len())),
        ("odd coding", format!("{head}transfer-encoding: xchunked\r\n\r\n{long}")),
        ("chunked not last", format!("{head}transfer-encoding: chunked, gzip\r\n\r\n{long}")),
        (
            "coding in a 1.0 request",
            format!("POST /outer HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n{long}"),
        ),
        (
            "huge chunk",
            format!("{head}transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n{inner}"),
        ),
        ("space before colon", format!("{head}content-length : 0\r\n\r\n{inner}")),
        ("folded header", format!("{head}x-a: b\r\n content-length: 3\r\n\r\n{inner}")),
        (
            "upgrade before 101",
            format!(
                "{head}connection: upgrade\r\nupgrade: h\r\ncontent-length: {}\r\n\r\n{inner}",
                inner.len()
            ),
        ),
        ("null in a header", format!("{head}x-a: b\0c\r\n\r\n{inner}")),
        ("bad target", format!("GET no-slash HTTP/1.1\r\nhost: r\r\n\r\n{inner}")),
    ] {
        let before = engine.requests().len();
        let mut client = Raw::connect(rig.address()).await;
        client.send(request).await;
        assert!(client.until(b"\r\n\r\n").await.is_some(), "{name}: no answer");
        // Whatever else it meant to send, the connection is over, or the rest is a body.
        let mut all = Vec::new();
        let reading = async {
            while let Ok(count @ 1..) =
                tokio::io::AsyncReadExt::read_buf(&mut client.stream, &mut all).await
            {
                assert!(count < 1 << 20);
            }
        };
        drop(tokio::time::timeout(Duration::from_millis(100), reading).await);
        let seen = engine.requests();
        assert!(seen.len() <= before + 1, "{name}: {:?}", &seen[before..]);
        assert!(seen.iter().all(|it| it.path() != "/smuggled"), "{name}");
    }
    rig.settled().await;
}

/// Also on a connection that has served before; and sent ahead, it is the last one there.
#[tokio::test]
async fn a_length_and_a_coding_at_once_are_refused_wherever_they_come() {
    let engine = echo().await;
    let rig = Rig::pinned(&engine, "").await;
    let chunks = "2\r\nok\r\n0\r\n\r\n";
    let fine = format!("POST /f HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n\r\n{chunks}");
    let first = fine.replace("host: r", "content-length: 2");
    let last = fine.replace("chunked\r\n", "chunked\r\ncontent-length: 2\r\n");
    for before in [post(CHAT, "", "{}"), fine.clone()] {
        for both in [&first, &last] {
            let mut client = Raw::connect(rig.address()).await;
            client.send(&before).await;
            assert_eq!(client.answer().await.status, 200);
            // What is sent behind it is not read.
            client.send(format!("{both}{fine}")).await;
            let got = client.answer().await;
            assert_eq!((got.status, got.code()), (400, "ambiguous_framing".to_owned()));
            assert!(client.ended().await);
        }
    }
    let seen = engine.requests().len();
    assert_eq!(seen, 4);
    let mut client = Raw::connect(rig.address()).await;
    client.send(format!("{fine}{first}{fine}")).await;
    assert_eq!(client.answer().await.status, 200);
    client.answer().await;
    assert!(client.ended().await);
    let ahead = &engine.requests()[seen..];
    assert!(ahead.len() <= 2 && ahead.iter().all(|it| it.header("content-length").is_none()));
    rig.settled().await;
}

#[tokio::test]
async fn continue_is_said_once_and_only_for_a_body_that_is_wanted() {
    let engine = echo().await;
    let rig = Rig::pinned(&engine, "[limits]\nbody_bytes_max = 1000\n").await;
    let mut client = Raw::connect(rig.address()).await;
    let expect = |len: usize| {
        format!(
            "POST /e HTTP/1.1\r\nhost: r\r\nexpect: 100-continue\r\ncontent-length: {len}\r\n\r\n"
        )
    };
    client.send(expect(5)).await;
    assert!(client.head().await.starts_with("HTTP/1.1 100 "));
    client.send("12345").await;
    let got = client.answer().await;
    assert_eq!((got.status, got.text()), (200, "/e 0".to_owned()));
    assert_eq!(engine.requests()[0].header("expect"), None);
    client.send(expect(600_000_000)).await;
    let got = client.answer().await;
    assert_eq!((got.status, got.code()), (413, "request_too_large".to_owned()));
    assert!(client.ended().await);
    assert_eq!(engine.requests().len(), 1);
    rig.settled().await;
}

#[tokio::test]
async fn bodies_up_to_the_limit_pass_and_not_one_byte_more() {
    let engine = echo().await;
    let rig = Rig::pinned(&engine, "[limits]\nbody_bytes_max = 3000000\n").await;
    let body = "x".repeat(3_000_000);
    assert_eq!(Raw::ask(rig.address(), post("/big", "", &body)).await.status, 200);
    assert_eq!(engine.requests()[0].body.len(), 3_000_000);
    let got = Raw::ask(rig.address(), post("/big", "", &format!("{body}y"))).await;
    assert_eq!((got.status, got.code()), (413, "request_too_large".to_owned()));
    assert_eq!(got.header("content-length").unwrap(), got.body.len().to_string());
    // In chunks the length is only known when it is too late to have asked for less.
    let mut client = Raw::connect(rig.address()).await;
    client.send("POST /big HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n\r\n").await;
    client.send(format!("{:x}\r\n{body}\r\n1\r\ny\r\n0\r\n\r\n", body.len())).await;
    let got = client.answer().await;
    assert_eq!((got.status, got.code()), (413, "request_too_large".to_owned()));
    rig.settled().await;
}

#[tokio::test]
async fn large_heads_pass_up_to_the_limit() {
    let engine = FakeEngine::start(|_| {
        let head = format!(
            "HTTP/1.1 200 OK\r\nx-big: {}\r\ncontent-length: 0\r\n\r\n",
            "b".repeat(30_000)
        );
        vec![Step::ReadBody, Step::Send(head.into_bytes())]
    })
    .await;
    let rig = Rig::pinned(&engine, "").await;
    let own = format!("x-big: {}\r\n", "a".repeat(30_000));
    let got = Raw::ask(rig.address(), post(CHAT, &own, "{}")).await;
    assert_eq!(got.header("x-big").unwrap().len(), 30_000);
    assert_eq!(engine.requests()[0].header("x-big").unwrap().len(), 30_000);
    let own = format!("x-big: {}\r\n", "a".repeat(200_000));
    let mut client = Raw::connect(rig.address()).await;
    client.send(post(CHAT, &own, "{}")).await;
    assert_eq!(client.answer().await.status, 431);
    let own: String = (0..200).map(|it| format!("x-{it}: a\r\n")).collect();
    assert_eq!(Raw::ask(rig.address(), post(CHAT, &own, "{}")).await.status, 431);
    assert_eq!(engine.requests().len(), 1);
    rig.settled().await;
}
