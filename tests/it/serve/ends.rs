//! How things end: clients that leave, aborts, deadlines, drains, failures.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::mpsc;
use std::time::Duration;

use engine::config::Serve;
use engine::serve::{ServeError, Stop};
use http_body_util::Full;
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::serve::asking::with;
use crate::serve::fixture::{Answer, Service, Setup, send};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A text that lasts for thousands of steps.
fn request(stream: bool) -> Value {
    json!({
        "prompt": ">abcdefgh", "temperature": 0, "stream": stream, "max_tokens": 4000,
        "ignore_eos": true,
    })
}

fn paced() -> Setup {
    Setup { is_paced: true, lanes: 2, context_max: 4096, ..Setup::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_in_mid_stream_frees_its_pages() {
    let service = Service::start(paced()).await;
    let mut stream = service.open(COMPLETIONS, &request(true)).await;
    service.step(2);
    assert_eq!(stream.event().await.unwrap()["choices"][0]["text"], "a");
    drop(stream);
    service.until_idle().await;
    assert_eq!(counted(&service, GONE, "").await, 1.0);
    assert_eq!(counted(&service, ENDED, "abort").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_before_the_first_token_frees_its_pages() {
    for stream in [true, false] {
        let service = Service::start(paced()).await;
        let body = Full::new(Bytes::from(request(stream).to_string()));
        let ask = Request::post(COMPLETIONS).body(body).unwrap();
        if stream {
            drop(send(service.address, ask).await);
        } else {
            let answer = send(service.address, ask);
            let waited = tokio::time::timeout(Duration::from_millis(300), answer).await;
            assert!(waited.is_err(), "nothing was computed yet");
        }
        service.until_idle().await;
    }
}

/// Whoever does not read has what was written kept for it up to a bound, and holds up nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_holds_up_nobody() {
    let service = Service::start(Setup { lanes: 2, context_max: 4096, ..Setup::default() }).await;
    let body = request(true).to_string();
    let head = format!("POST {COMPLETIONS} HTTP/1.1\r\ncontent-length: {}\r\n\r\n", body.len());
    let mut deaf = TcpStream::connect(service.address).await.unwrap();
    deaf.write_all((head + &body).as_bytes()).await.unwrap();
    for _ in 0..3 {
        let answer = service.post(COMPLETIONS, &request(false)).await;
        assert_eq!(answer.json()["usage"]["completion_tokens"], 4000);
    }
    drop(deaf);
    service.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_the_queue_makes_room() {
    let service = Service::start(Setup { lanes: 1, waiting_max: 1, ..paced() }).await;
    let first = service.open(COMPLETIONS, &request(true)).await;
    service.step(1);
    service.until("/load", |it| it.json()["running"] == 1).await;
    let second = service.open_paced(COMPLETIONS, &request(true)).await;
    assert_eq!(service.open_paced(COMPLETIONS, &request(true)).await.status, 503);
    drop(second);
    service
        .until("/load", |it| {
            service.step(1);
            it.json()["waiting"] == 0
        })
        .await;
    let third = service.open_paced(COMPLETIONS, &request(true)).await;
    assert_eq!(third.status, 200);
    drop((first, third));
    service.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn free_lanes_are_places_for_all_texts_of_a_request() {
    let service = Service::start(Setup { waiting_max: 0, lanes: 4, ..paced() }).await;
    let four = with(request(true), json!({ "n": 4 }));
    let five = with(request(true), json!({ "n": 5 }));
    assert_eq!(service.open_paced(COMPLETIONS, &five).await.status, 503);
    let running = service.open_paced(COMPLETIONS, &four).await;
    assert_eq!(running.status, 200);
    assert_eq!(service.open_paced(COMPLETIONS, &request(true)).await.status, 503);
    drop(running);
    service.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lower_priority_numbers_leave_the_queue_first() {
    let service = Service::start(Setup { lanes: 1, ..paced() }).await;
    let first = service.open(COMPLETIONS, &request(true)).await;
    service.step(1);
    service.until("/load", |it| it.json()["running"] == 1).await;
    let wants = |priority: i32| with(request(true), json!({ "priority": priority }));
    let mut later = service.open_paced(COMPLETIONS, &wants(5)).await;
    let mut sooner = service.open_paced(COMPLETIONS, &wants(-5)).await;
    drop(first);
    let event = loop {
        tokio::select! {
            _ = later.event() => panic!("it overtook"),
            event = sooner.event() => break event,
            () = tokio::time::sleep(Duration::from_millis(5)) => service.step(1),
        }
    };
    assert!(event.is_some());
    drop((sooner, later));
    service.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_can_be_aborted_by_either_name() {
    let service = Service::start(paced()).await;
    for name in ["mine", "cmpl-mine"] {
        let body = Full::new(Bytes::from(request(true).to_string()));
        let ask = Request::post(COMPLETIONS).header("x-request-id", "mine").body(body).unwrap();
        let mut stream = send(service.address, ask).await;
        assert_eq!(stream.headers["x-request-id"], "mine");
        service.step(2);
        assert_eq!(stream.event().await.unwrap()["id"], "cmpl-mine");
        let other = service.open_paced(COMPLETIONS, &request(true)).await;
        let abort = json!({ "rid": name });
        let aborted = service.open_paced("/abort_request", &abort).await.whole().await;
        assert_eq!(aborted.json()["aborted"], 1);
        let rest = stream.whole().await;
        assert!(rest.body.contains("\"finish_reason\":\"abort\""), "{rest:?}");
        assert!(rest.body.ends_with("data: [DONE]\n\n"));
        let nobody = service.open_paced("/abort_request", &abort).await.whole().await;
        assert_eq!(nobody.json()["aborted"], 0);
        drop(other);
        service.until_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_has_a_deadline() {
    let serve = Serve { request_max: Duration::from_millis(300), ..Setup::default().serve };
    let service = Service::start(Setup { serve, ..paced() }).await;
    let answer = service.post(COMPLETIONS, &request(false)).await;
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (504, &json!("deadline_exceeded"))
    );
    service.until_idle().await;
    let answer = service.post(COMPLETIONS, &request(true)).await;
    assert!(answer.body.contains("deadline_exceeded") && !answer.is_whole, "{answer:?}");
    service.until_idle().await;
    // A request may want less, never more.
    let service = Service::start(paced()).await;
    let mut hurried = request(false);
    hurried["timeout"] = json!(0.2);
    let error = service.post(COMPLETIONS, &hurried).await.json()["error"].clone();
    assert_eq!(error["code"], "deadline_exceeded");
    service.until_idle().await;
}

/// The sum of a counter over its series that have `label`.
async fn counted(service: &Service, name: &str, label: &str) -> f64 {
    let page = service.get("/metrics").await.body;
    let is_own = |it: &&str| it.starts_with(&format!("{name}{{")) && it.contains(label);
    page.lines()
        .filter(is_own)
        .map(|it| it.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap())
        .sum()
}

/// How many clients left, as a page of metrics writes it.
fn gone(page: &Answer) -> Option<&str> {
    let gone = page.body.lines().find(|it| it.starts_with(GONE));
    gone.and_then(|it| it.rsplit_once(' ')).map(|(_, count)| count)
}

const GONE: &str = "crossover_engine_clients_gone_total";
const ENDED: &str = "vllm:request_success_total";

/// The loop computes a step meanwhile, and takes in nobody.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_leave_before_their_texts_are_taken_in_count() {
    let service = Service::start(paced()).await;
    let first = service.open(COMPLETIONS, &request(true)).await;
    service.step(1);
    service.until("/load", |it| it.json()["running"] == 1).await;
    let two = with(request(false), json!({ "n": 2 }));
    let waited = Duration::from_millis(300);
    let second = tokio::time::timeout(waited, service.open(COMPLETIONS, &two)).await;
    assert!(second.is_err(), "nothing was computed");
    drop(first);
    service.until_idle().await;
    service.until("/metrics", |it| gone(it) == Some("3")).await;
    assert_eq!(counted(&service, ENDED, "abort").await, 3.0);
}

/// A client that takes one byte of its answer and keeps the stream open, which HTTP/2 allows it.
#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_binds_a_text_that_nobody_reads() {
    for is_paced in [true, false] {
        let (request_max, drain_max) = (Duration::from_millis(500), Duration::from_secs(600));
        let serve = Serve { request_max, drain_max, ..Setup::default().serve };
        let service = Service::start(Setup { serve, is_paced, ..paced() }).await;
        let body = Full::new(Bytes::from(request(true).to_string()));
        let deaf = deaf(service.address, 1, Request::post(COMPLETIONS).body(body).unwrap()).await;
        service.until_idle().await;
        service.until("/metrics", |it| gone(it) == Some("1")).await;
        assert_eq!(counted(&service, ENDED, "abort").await, 1.0);
        drains(service).await;
        drop(deaf);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_nobody_reads_does_not_hold_up_the_end() {
    for window in [0, 1] {
        let drain_max = Duration::from_secs(600);
        let serve = Serve { drain_max, ..Setup::default().serve };
        let service = Service::start(Setup { serve, ..Setup::default() }).await;
        let page = Request::get("/metrics").body(Full::default()).unwrap();
        let deaf = deaf(service.address, window, page).await;
        drains(service).await;
        drop(deaf);
    }
}

/// Sends a request over HTTP/2 and leaves all but the first `window` bytes of its answer lying.
async fn deaf(address: SocketAddr, window: u32, request: Request<Full<Bytes>>) -> impl Sized {
    let stream = TcpStream::connect(address).await.unwrap();
    let mut http = http2::Builder::new(TokioExecutor::new());
    let http = http.initial_stream_window_size(window).handshake(TokioIo::new(stream));
    let (mut sender, connection) = http.await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let _ended = connection.await;
    });
    let (mut head, body) = request.into_parts();
    head.uri = format!("http://{address}{}", head.uri).parse().unwrap();
    let answer = sender.send_request(Request::from_parts(head, body)).await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    (answer, sender, tasks)
}

/// The service ends well before its drain would be cut, or a piece that nobody takes given up.
async fn drains(service: Service) {
    service.stop.send_replace(Stop::Drain);
    let ended = tokio::time::timeout(Duration::from_secs(30), service.end()).await;
    ended.expect("somebody holds up the drain").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_a_string_ended_is_no_client_that_left() {
    let service = Service::start(paced()).await;
    let ask = with(request(false), json!({ "stop": "c", "n": 2 }));
    assert_eq!(service.open_paced(COMPLETIONS, &ask).await.status, 200);
    service.until_idle().await;
    assert_eq!(counted(&service, ENDED, "stop").await, 2.0);
    assert_eq!(counted(&service, ENDED, "").await, 2.0);
    assert_eq!(counted(&service, GONE, "").await, 0.0);
}

/// An answer that is larger than what sockets hold, to a client that reads it late.
#[tokio::test(flavor = "multi_thread")]
async fn draining_waits_for_whole_answers_to_be_sent() {
    let serve = Serve { drain_max: Duration::from_secs(60), ..Setup::default().serve };
    let setup = Setup { serve, lanes: 8, context_max: 4096, ..Setup::default() };
    let service = Service::start(setup).await;
    let body = with(request(false), json!({ "logprobs": 20, "n": 8 })).to_string();
    let head = format!("POST {COMPLETIONS} HTTP/1.1\r\ncontent-length: {}\r\n\r\n", body.len());
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut late = socket.connect(service.address).await.unwrap();
    late.write_all((head + &body).as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let begun = late.read(&mut answer).await.unwrap();
    service.stop.send_replace(Stop::Drain);
    let mut ending = pin!(service.end());
    let early = tokio::time::timeout(Duration::from_millis(2500), &mut ending).await;
    assert!(early.is_err(), "it did not wait");
    answer.truncate(begun);
    let (read, ended) = tokio::join!(late.read_to_end(&mut answer), ending);
    assert!(read.is_ok() && ended.is_ok());
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
    assert!(serde_json::from_str::<Value>(body).is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_ends_what_runs_and_refuses_what_comes() {
    let mut service = Service::start(paced()).await;
    let mut stream = service.open(COMPLETIONS, &request(true)).await;
    service.step(2);
    stream.event().await.unwrap();
    service.stop.send_replace(Stop::Drain);
    service.until("/health", |it| it.status == 503).await;
    let refused = service.post(CHAT, &json!({ "messages": [] })).await;
    assert_eq!((refused.status, refused.headers.contains_key("retry-after")), (503, true));
    assert_eq!(refused.json()["error"]["code"], "server_is_draining");
    let load = service.get("/load").await.json();
    assert_eq!((&load["draining"], &load["running"]), (&json!(true), &json!(1)));
    assert_eq!(service.get("/livez").await.status, 200);
    service.run_free();
    let rest = stream.whole().await;
    assert!(rest.body.ends_with("data: [DONE]\n\n") && rest.is_whole);
    service.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_and_the_drain_deadline_cut() {
    for by_signal in [true, false] {
        let drain_max = Duration::from_millis(if by_signal { 60_000 } else { 200 });
        let serve = Serve { drain_max, ..Setup::default().serve };
        let mut service = Service::start(Setup { serve, ..paced() }).await;
        let stream = service.open(COMPLETIONS, &request(true)).await;
        service.stop.send_replace(Stop::Drain);
        service.until("/health", |it| it.status == 503).await;
        if by_signal {
            service.stop.send_replace(Stop::Now);
        }
        assert!(!stream.whole().await.is_whole);
        service.run_free();
        service.end().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_do_not_hold_up_the_end() {
    let service = Service::start(Setup::default()).await;
    let idle = TcpStream::connect(service.address).await.unwrap();
    service.get("/health").await;
    service.stop.send_replace(Stop::Drain);
    service.end().await.unwrap();
    drop(idle);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_never_begin_shut_nobody_out() {
    let head_max = Duration::from_millis(200);
    let serve = Serve { connections_max: 1, head_max, ..Setup::default().serve };
    let service = Service::start(Setup { serve, ..Setup::default() }).await;
    for begun in ["", "P", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r", "PRI * HTTP/1.1\r\n", "GET /li"] {
        let mut silent = TcpStream::connect(service.address).await.unwrap();
        silent.write_all(begun.as_bytes()).await.unwrap();
        let asked = tokio::time::timeout(Duration::from_secs(20), service.get("/livez"));
        assert_eq!(asked.await.expect(begun).status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_fails_fails_everyone_and_ends_the_service() {
    let mut service = Service::start(Setup { steps_max: Some(3), ..paced() }).await;
    let mut stream = service.open(COMPLETIONS, &request(true)).await;
    service.step(2);
    stream.event().await.unwrap();
    service.run_free();
    let rest = stream.whole().await;
    assert!(rest.body.contains("\"code\":\"engine_failed\"") && !rest.is_whole, "{rest:?}");
    match service.end().await {
        Err(ServeError::Engine(detail)) => assert_eq!(detail, "backend failed: the parrot is dead"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_fails_while_draining_is_told_of() {
    let mut service = Service::start(Setup { steps_max: Some(3), ..paced() }).await;
    let mut stream = service.open(COMPLETIONS, &request(true)).await;
    service.step(2);
    stream.event().await.unwrap();
    service.stop.send_replace(Stop::Drain);
    service.run_free();
    assert!(!stream.whole().await.is_whole);
    assert!(matches!(service.end().await, Err(ServeError::Engine(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_door_is_open_while_the_model_loads() {
    let (load, loads_after) = mpsc::channel();
    let setup = Setup { loads_after: Some(loads_after), context_max: 4096, ..Setup::default() };
    let service = Service::start_unready(setup).await;
    let health = service.get("/health").await;
    assert_eq!((health.status, &health.json()["error"]["code"]), (503, &json!("model_loading")));
    assert_eq!(service.get("/livez").await.status, 200);
    assert_eq!(service.get("/metrics").await.status, 200);
    assert_eq!(service.post(COMPLETIONS, &request(false)).await.status, 503);
    load.send(()).unwrap();
    service.until("/health", |it| it.status == 200).await;
    assert_eq!(service.post(COMPLETIONS, &request(false)).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_cannot_be_loaded_ends_the_service() {
    let start_error = Some("model.gguf: no such file".to_owned());
    let service = Service::start_unready(Setup { start_error, ..Setup::default() }).await;
    match service.end().await {
        Err(ServeError::Start(detail)) => assert_eq!(detail, "model.gguf: no such file"),
        other => panic!("{other:?}"),
    }
}
