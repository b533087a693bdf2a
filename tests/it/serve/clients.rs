//! Clients that leave, wait, abort or do not read; and the time that a request has.

use std::net::SocketAddr;
use std::time::Duration;

use engine::config::Serve;
use engine::serve::Stop;
use http_body_util::Full;
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::serve::asking::{COMPLETIONS, long_text, paced, with};
use crate::serve::fixture::{Answer, Service, Setup, send};

/// What a browser is told of a page of this origin: the status of its preflight, and who may read a
/// text and a refusal.
async fn told(allowed: &[&str], origin: &str) -> (u16, [Option<String>; 2]) {
    let allowed_origins = allowed.iter().map(|it| (*it).to_owned()).collect();
    let serve = Serve { allowed_origins, ..Setup::default().serve };
    let service = Service::start(Setup { serve, ..Setup::default() }).await;
    let of_page = |method, body: &'static str| {
        let asked = Request::builder().method(method).uri(COMPLETIONS).header("origin", origin);
        let asked = asked
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "authorization,content-type");
        asked.body(Full::new(Bytes::from(body))).unwrap()
    };
    let preflight = send(service.address, of_page("OPTIONS", "")).await;
    if preflight.status == 204 {
        let headers = &preflight.headers["access-control-allow-headers"];
        assert_eq!(headers, "authorization,content-type");
        assert_eq!(preflight.headers["access-control-allow-methods"], "GET, HEAD, POST");
    }
    let mut readers = [None, None];
    let bodies = [(r#"{"prompt": "a", "max_tokens": 1}"#, 200), (r#"{"prompt": 1.5}"#, 400)];
    for (reader, (body, status)) in readers.iter_mut().zip(bodies) {
        let answer = send(service.address, of_page("POST", body)).await;
        assert_eq!(answer.status, status);
        let found = answer.headers.get("access-control-allow-origin");
        *reader = found.map(|it| it.to_str().unwrap().to_owned());
        let varies = answer.headers.get("vary").is_some_and(|it| it == "origin");
        assert_eq!(varies, !allowed.is_empty() && allowed != ["*"]);
    }
    (preflight.status, readers)
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_allowed_origins_may_ask_and_read() {
    let page = "https://chat.example";
    let both = |it: &str| [Some(it.to_owned()), Some(it.to_owned())];
    assert_eq!(told(&[], page).await, (405, [None, None]));
    assert_eq!(told(&["*"], page).await, (204, both("*")));
    assert_eq!(told(&["http://a", page], page).await, (204, both(page)));
    assert_eq!(told(&[page], "https://chat.example.evil").await, (405, [None, None]));
    assert_eq!(told(&[page], "null").await, (405, [None, None]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_in_mid_stream_frees_its_pages() {
    let service = Service::start(paced()).await;
    let mut stream = service.open(COMPLETIONS, &long_text(true)).await;
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
        let body = Full::new(Bytes::from(long_text(stream).to_string()));
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
    let body = long_text(true).to_string();
    let head = format!("POST {COMPLETIONS} HTTP/1.1\r\ncontent-length: {}\r\n\r\n", body.len());
    let mut deaf = TcpStream::connect(service.address).await.unwrap();
    deaf.write_all((head + &body).as_bytes()).await.unwrap();
    for _ in 0..3 {
        let answer = service.post(COMPLETIONS, &long_text(false)).await;
        assert_eq!(answer.json()["usage"]["completion_tokens"], 4000);
    }
    drop(deaf);
    service.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_the_queue_makes_room() {
    let service = Service::start(Setup { lanes: 1, waiting_max: 1, ..paced() }).await;
    let first = service.open(COMPLETIONS, &long_text(true)).await;
    service.step(1);
    service.until("/load", |it| it.json()["running"] == 1).await;
    let second = service.open_paced(COMPLETIONS, &long_text(true)).await;
    assert_eq!(service.open_paced(COMPLETIONS, &long_text(true)).await.status, 503);
    drop(second);
    service
        .until("/load", |it| {
            service.step(1);
            it.json()["waiting"] == 0
        })
        .await;
    let third = service.open_paced(COMPLETIONS, &long_text(true)).await;
    assert_eq!(third.status, 200);
    drop((first, third));
    service.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn free_lanes_are_places_for_all_texts_of_a_request() {
    let service = Service::start(Setup { waiting_max: 0, lanes: 4, ..paced() }).await;
    let four = with(long_text(true), json!({ "n": 4 }));
    let five = with(long_text(true), json!({ "n": 5 }));
    assert_eq!(service.open_paced(COMPLETIONS, &five).await.status, 400, "never room for it");
    let running = service.open_paced(COMPLETIONS, &four).await;
    assert_eq!(running.status, 200);
    assert_eq!(service.open_paced(COMPLETIONS, &long_text(true)).await.status, 503);
    drop(running);
    service.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lower_priority_numbers_leave_the_queue_first() {
    let service = Service::start(Setup { lanes: 1, ..paced() }).await;
    let first = service.open(COMPLETIONS, &long_text(true)).await;
    service.step(1);
    service.until("/load", |it| it.json()["running"] == 1).await;
    let wants = |priority: i32| with(long_text(true), json!({ "priority": priority }));
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
        let body = Full::new(Bytes::from(long_text(true).to_string()));
        let ask = Request::post(COMPLETIONS).header("x-request-id", "mine").body(body).unwrap();
        let mut stream = send(service.address, ask).await;
        assert_eq!(stream.headers["x-request-id"], "mine");
        service.step(2);
        assert_eq!(stream.event().await.unwrap()["id"], "cmpl-mine");
        let other = service.open_paced(COMPLETIONS, &long_text(true)).await;
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
    let answer = service.post(COMPLETIONS, &long_text(false)).await;
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (504, &json!("deadline_exceeded"))
    );
    service.until_idle().await;
    let answer = service.post(COMPLETIONS, &long_text(true)).await;
    assert!(answer.body.contains("deadline_exceeded") && !answer.is_whole, "{answer:?}");
    service.until_idle().await;
    // A request may want less, never more.
    let service = Service::start(paced()).await;
    let mut hurried = long_text(false);
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
    let first = service.open(COMPLETIONS, &long_text(true)).await;
    service.step(1);
    service.until("/load", |it| it.json()["running"] == 1).await;
    let two = with(long_text(false), json!({ "n": 2 }));
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
        let body = Full::new(Bytes::from(long_text(true).to_string()));
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
    let ask = with(long_text(false), json!({ "stop": "c", "n": 2 }));
    assert_eq!(service.open_paced(COMPLETIONS, &ask).await.status, 200);
    service.until_idle().await;
    assert_eq!(counted(&service, ENDED, "stop").await, 2.0);
    assert_eq!(counted(&service, ENDED, "").await, 2.0);
    assert_eq!(counted(&service, GONE, "").await, 0.0);
}
