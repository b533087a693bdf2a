//! The same requests over HTTP/2 and TLS, in and out, with trailers.

use std::convert::Infallible;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use router::answer::Problem;
use router::tls;
use rustls::pki_types::ServerName;
use tests::fake_engine::{FakeEngine, Step, chunk, ok, stream_head};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::fleet_sim::router;
use super::router_rig::{CHAT, Raw, Rig, config, echo, eventually, pair, post};

/// Writes a certificate for 127.0.0.1 and localhost, which is its own authority.
fn certificate(folder: &Path) {
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    std::fs::write(folder.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
}

type Sender = http2::SendRequest<Full<Bytes>>;

async fn http2_over(
    io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    tasks: &mut JoinSet<()>,
) -> Sender {
    let (sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(io)).await.unwrap();
    tasks.spawn(async move { drop(connection.await) });
    sender
}

async fn ask(sender: &mut Sender, path: &str, body: &str) -> Response<Incoming> {
    let request = Request::post(format!("http://r{path}"))
        .header("te", "trailers")
        .body(Full::new(Bytes::from(body.to_owned())))
        .unwrap();
    sender.send_request(request).await.unwrap()
}

const PIN: &str = "[policy]\nkind = \"pin\"\nrole = \"speculative\"\n";

#[tokio::test]
async fn http2_without_tls_in_front_of_http1() {
    let engine = FakeEngine::start(|seen| match seen.path() {
        "/stream" => {
            let head = String::from_utf8(stream_head()).unwrap();
            let head =
                head.replace("\r\n\r\n", "\r\nconnection: keep-alive\r\ntrailer: x-sum\r\n\r\n");
            let end = b"0\r\nx-sum: 7\r\n\r\n".to_vec();
            vec![
                Step::ReadBody,
                Step::Send(head.into()),
                Step::Send(chunk(b"data: 1\n\n")),
                Step::Send(end),
            ]
        }
        "/cut" => {
            let head = Step::Send(stream_head());
            let piece = Step::Send(chunk(b"data: 1\n\n"));
            vec![Step::ReadBody, head, piece, Step::Wait(Duration::from_millis(20)), Step::Reset]
        }
        "/silent" => vec![Step::ReadBody, Step::Stall],
        "/long" => {
            let piece = || Step::Send(chunk(b"data: 1\n\n"));
            let pause = || Step::Wait(Duration::from_millis(400));
            let end = Step::Send(chunk(b""));
            vec![Step::ReadBody, Step::Send(stream_head()), piece(), pause(), piece(), pause(), end]
        }
        _ => vec![Step::ReadBody, Step::Send(ok("text/plain", b"ok"))],
    })
    .await;
    let rig = Rig::start(&format!("{PIN}{}", pair(&[&engine]))).await;
    // Limits on heads and idle connections do not touch requests that run.
    let mut config = rig.fleet.live().config.clone();
    config.timeouts.client_header = Duration::from_millis(200);
    config.timeouts.client_idle = Duration::from_millis(200);
    rig.fleet.reload(config);
    let mut tasks = JoinSet::new();
    let stream = TcpStream::connect(rig.address()).await.unwrap();
    let mut sender = http2_over(stream, &mut tasks).await;
    let answer = ask(&mut sender, "/plain", "{}").await;
    assert_eq!(answer.headers()["x-crossover-reason"], "pinned");
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
    let seen = engine.requests().pop().unwrap();
    assert_eq!((seen.header("te"), &seen.body[..]), (Some("trailers"), &b"{}"[..]));
    assert_eq!(seen.header("host"), Some(&*engine.address.to_string()));
    let answer = ask(&mut sender, "/stream", "{}").await;
    assert!(!answer.headers().contains_key("connection"));
    let body = answer.into_body().collect().await.unwrap();
    assert_eq!(body.trailers().unwrap()["x-sum"], "7");
    assert_eq!(body.to_bytes(), "data: 1\n\n");
    // A stream that breaks off is reset; its neighbours go on.
    let cut = ask(&mut sender, "/cut", "{}").await;
    assert!(cut.into_body().collect().await.is_err());
    // One that is given up is given up at the engine.
    let silent = tokio::time::timeout(Duration::from_millis(100), ask(&mut sender, "/silent", ""));
    assert!(silent.await.is_err());
    eventually("the engine is let go", || engine.left() == 1).await;
    let long = ask(&mut sender, "/long", "{}").await;
    assert_eq!(long.into_body().collect().await.unwrap().to_bytes().len(), 18);
    assert_eq!(ask(&mut sender, "/plain", "{}").await.status(), StatusCode::OK);
    rig.settled().await;
}

/// Over HTTP/2 a client that takes nothing more of one answer may go on with others.
#[tokio::test]
async fn an_answer_over_http2_that_nobody_takes_is_cut() {
    let engine = FakeEngine::start(|seen| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 1 << 30);
        match seen.path() {
            "/flood" => {
                vec![Step::ReadBody, Step::Send(head.into_bytes()), Step::Flood(1 << 30)]
            }
            _ => vec![Step::ReadBody, Step::Send(ok("text/plain", b"ok"))],
        }
    })
    .await;
    let rig = Rig::pinned(&engine, "").await;
    let mut config = rig.fleet.live().config.clone();
    let (short, long) = (Duration::from_millis(200), Duration::from_secs(3600));
    for (count, (send_stall, total, outcome)) in [
        (Some(short), None, "client_stalled"),
        (Some(short), Some(long), "client_stalled"),
        (Some(long), Some(short), "total_timeout"),
        (None, Some(short), "total_timeout"),
    ]
    .into_iter()
    .enumerate()
    {
        config.timeouts.send_stall = send_stall;
        config.timeouts.total = total;
        rig.fleet.reload(config.clone());
        let mut tasks = JoinSet::new();
        let stream = TcpStream::connect(rig.address()).await.unwrap();
        let mut sender = http2_over(stream, &mut tasks).await;
        let answer = ask(&mut sender, "/flood", "{}").await;
        assert_eq!(answer.status(), StatusCode::OK);
        rig.settled().await;
        eventually("the engine noticed", || engine.left() == count + 1).await;
        let series = format!("outcomes_total{{endpoint=\"s\",outcome=\"{outcome}\"}}");
        assert_eq!(rig.metric(&series), f64::from(u8::try_from(count % 2 + 1).unwrap()));
        assert!(answer.into_body().collect().await.is_err(), "it is no whole answer");
        let next = ask(&mut sender, "/next", "{}").await;
        assert_eq!(next.into_body().collect().await.unwrap().to_bytes(), "ok");
    }
}

/// Over HTTP/2 a slow client is no standing one: what counts is what it takes, not whole pieces as
/// they came from the engine.
#[test]
fn a_slow_reader_over_http2_is_not_cut() {
    const SIZE: usize = 512 << 10;
    // So 64 KiB take twice as long as the limit, and 16 KiB half as long.
    const BYTES_A_MS: usize = 16;
    let mut sim = turmoil::Builder::new()
        .rng_seed(1)
        .max_message_latency(Duration::from_millis(2))
        .simulation_duration(Duration::from_secs(600))
        .tcp_capacity(4096)
        .build();
    sim.host("s", || async {
        let listener = turmoil::net::TcpListener::bind("0.0.0.0:80").await?;
        loop {
            let (stream, _) = listener.accept().await?;
            let service = service_fn(|_| async {
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(vec![b'x'; SIZE]))))
            });
            let builder = hyper::server::conn::http1::Builder::new();
            tokio::task::spawn_local(builder.serve_connection(TokioIo::new(stream), service));
        }
    });
    let config = config(&format!(
        "{PIN}[timeouts]\nsend_stall_ms = 2000\n\
         [[endpoint]]\nname = \"s\"\nrole = \"speculative\"\nurl = \"http://s\"\n"
    ));
    sim.host("router", move || router(config.clone(), Rc::default()));
    sim.client("client", async {
        // The first probe finds the engine.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let stream = turmoil::net::TcpStream::connect(("router", 80)).await?;
        let (mut sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(4 << 10)
            .handshake(TokioIo::new(stream))
            .await?;
        let mut tasks = JoinSet::new();
        tasks.spawn_local(async move { drop(connection.await) });
        let mut body = ask(&mut sender, "/long", "{}").await.into_body();
        let mut len = 0;
        while let Some(frame) = body.frame().await {
            let data = frame?.into_data().unwrap();
            len += data.len();
            let pause_ms = u64::try_from(data.len() / BYTES_A_MS).unwrap();
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        }
        assert_eq!(len, SIZE);
        Ok(())
    });
    sim.run().unwrap();
}

/// What is no request: settings, and pings between requests. The limit on heads is not for them,
/// and they keep no idle connection open.
#[tokio::test]
async fn pings_between_requests_over_http2_neither_cut_nor_keep() {
    let engine = echo().await;
    let rig = Rig::pinned(&engine, "").await;
    let mut config = rig.fleet.live().config.clone();
    config.timeouts.client_header = Duration::from_millis(200);
    rig.fleet.reload(config.clone());
    let mut tasks = JoinSet::new();
    let mut pinging = http2::Builder::new(TokioExecutor::new());
    pinging.timer(TokioTimer::new()).keep_alive_while_idle(true);
    pinging.keep_alive_interval(Duration::from_millis(50));
    for idle in [Duration::from_secs(3600), Duration::from_millis(300)] {
        config.timeouts.client_idle = idle;
        rig.fleet.reload(config.clone());
        let stream = TcpStream::connect(rig.address()).await.unwrap();
        let (mut sender, connection) = pinging.handshake(TokioIo::new(stream)).await.unwrap();
        tasks.spawn(async move { drop(connection.await) });
        let answer = ask(&mut sender, "/first", "{}").await;
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "/first 0");
        if idle < Duration::from_secs(1) {
            eventually("it is closed", || sender.is_closed()).await;
        } else {
            tokio::time::sleep(Duration::from_millis(600)).await;
            let answer = ask(&mut sender, "/second", "{}").await;
            assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "/second 0");
        }
    }
}

/// The router's own answers: a path of its own, and a refusal.
#[tokio::test]
async fn own_answers_to_head_have_no_body_over_http2_either() {
    let engine = echo().await;
    let rig = Rig::pinned(&engine, "").await;
    let mut tasks = JoinSet::new();
    let stream = TcpStream::connect(rig.address()).await.unwrap();
    let mut sender: Sender = http2_over(stream, &mut tasks).await;
    let refusal = Problem::BadTarget;
    for (path, target, status, len) in [
        ("/health", "auto", StatusCode::OK, 3),
        ("/v1/models", "nobody", refusal.status(), refusal.body().len()),
    ] {
        let request = Request::head(format!("http://r{path}")).header("x-crossover-target", target);
        let request = request.body(Full::default()).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status(), status);
        assert_eq!(answer.headers()["content-length"], len.to_string());
        assert!(answer.into_body().collect().await.unwrap().to_bytes().is_empty());
    }
    // Over HTTP/1 the next answer begins where it should.
    let mut client = Raw::connect(rig.address()).await;
    for _ in 0..2 {
        client.send("HEAD /health HTTP/1.1\r\nhost: r\r\n\r\n").await;
        assert!(client.head().await.contains("content-length: 3\r\n"));
    }
}

#[tokio::test]
async fn trailers_pass_over_http1() {
    let engine = FakeEngine::start(|_| {
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n";
        let rest = b"2\r\nok\r\n0\r\nx-sum: 7\r\n\r\n".to_vec();
        vec![Step::ReadBody, Step::Send(head.into()), Step::Send(rest)]
    })
    .await;
    let rig = Rig::start(&format!("{PIN}{}", pair(&[&engine]))).await;
    let mut client = Raw::connect(rig.address()).await;
    client.send(post(CHAT, "te: trailers\r\n", "{}")).await;
    client.head().await;
    client.until(b"0\r\nx-sum: 7\r\n\r\n").await.unwrap();
    rig.settled().await;
}

/// An HTTP/2 engine, with TLS if there is an acceptor; it tells what it got.
async fn http2_engine(acceptor: Option<TlsAcceptor>) -> (std::net::SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            connections.spawn(async move {
                match acceptor {
                    Some(acceptor) => {
                        if let Ok(stream) = acceptor.accept(stream).await {
                            speak_http2(stream).await;
                        }
                    }
                    None => speak_http2(stream).await,
                }
            });
        }
    });
    (address, tasks)
}

async fn speak_http2(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
    let service = service_fn(|request: Request<Incoming>| async {
        let words = format!("{:?} {}", request.version(), request.uri().path());
        let body = request.into_body().collect().await.map(|it| it.to_bytes().len());
        let mut trailers = HeaderMap::new();
        trailers.insert("x-len", body.unwrap_or(0).into());
        let whole = Full::new(Bytes::from(words)).with_trailers(async { Some(Ok(trailers)) });
        Ok::<_, Infallible>(Response::new(whole))
    });
    let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    drop(builder.serve_connection(TokioIo::new(stream), service).await);
}

#[tokio::test]
async fn an_engine_that_speaks_http2() {
    let (address, _tasks) = http2_engine(None).await;
    let text = format!(
        "{PIN}[health]\ninterval_ms = 50\n[[endpoint]]\nname = \"s\"\nrole = \"speculative\"\n\
         url = \"http://{address}\"\nhttp = \"2\"\n"
    );
    let rig = Rig::start_with(config(&text), 1).await;
    let mut clients = JoinSet::new();
    for turn in 0..20 {
        let address = rig.address();
        clients.spawn(async move {
            let got = Raw::ask(address, post(&format!("/{turn}"), "", "body")).await;
            assert_eq!(got.text(), format!("HTTP/2.0 /{turn}"));
        });
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    rig.settled().await;
}

#[tokio::test]
async fn tls_on_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    certificate(folder.path());
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let acceptor = TlsAcceptor::from(tls::server(&cert, &key).unwrap());
    let (address, _tasks) = http2_engine(Some(acceptor)).await;
    let text = format!(
        "{PIN}[tls]\ncertificate = {cert:?}\nkey = {key:?}\n[health]\ninterval_ms = 50\n\
         [[endpoint]]\nname = \"s\"\nrole = \"speculative\"\nurl = \"https://localhost:{}\"\n\
         http = \"2\"\nca_file = {cert:?}\n",
        address.port()
    );
    let rig = Rig::start_with(config(&text), 1).await;
    let mut tasks = JoinSet::new();
    for http2 in [true, false] {
        let connector = TlsConnector::from(tls::client(Some(&cert), http2).unwrap());
        let stream = TcpStream::connect(rig.address()).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = connector.connect(name, stream).await.unwrap();
        if http2 {
            let mut sender = http2_over(stream, &mut tasks).await;
            let answer = ask(&mut sender, "/a", "{}").await;
            let body = answer.into_body().collect().await.unwrap();
            assert_eq!(body.trailers().unwrap()["x-len"], "2");
            assert_eq!(body.to_bytes(), "HTTP/2.0 /a");
        } else {
            let request = post("/b", "connection: close\r\n", "{}");
            tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
            let mut text = String::new();
            tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut text).await.unwrap();
            assert!(text.contains("HTTP/2.0 /b"), "{text}");
        }
    }
    // Somebody who does not speak TLS gets nothing, and hurts nobody.
    let mut plain = Raw::connect(rig.address()).await;
    plain.send(post(CHAT, "", "{}")).await;
    while !plain.ended().await {}
    rig.settled().await;
    // An engine whose certificate nobody vouches for is not talked to.
    let other = tempfile::tempdir().unwrap();
    certificate(other.path());
    let mut next = rig.fleet.live().config.clone();
    let mut target = (*next.endpoints[0].target).clone();
    let trusts = tls::client(Some(&other.path().join("cert.pem")), true).unwrap();
    target.tls = Some(router::config::Tls(trusts));
    next.endpoints[0].target = Arc::new(target);
    rig.fleet.reload(next);
    eventually("it is down", || rig.metric("endpoint_up{endpoint=\"s\"}") == 0.0).await;
}
