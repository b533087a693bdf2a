//! How the service ends: drains, signals, failures; and how it begins.

use std::pin::pin;
use std::sync::mpsc;
use std::time::Duration;

use engine::config::Serve;
use engine::serve::{ServeError, Stop};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::serve::asking::{CHAT, COMPLETIONS, long_text, paced, with};
use crate::serve::fixture::{Service, Setup};

/// An answer that is larger than what sockets hold, to a client that reads it late.
#[tokio::test(flavor = "multi_thread")]
async fn draining_waits_for_whole_answers_to_be_sent() {
    let serve = Serve { drain_max: Duration::from_secs(60), ..Setup::default().serve };
    let setup = Setup { serve, lanes: 8, context_max: 4096, ..Setup::default() };
    let service = Service::start(setup).await;
    let body = with(long_text(false), json!({ "logprobs": 20, "n": 8 })).to_string();
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
    let mut stream = service.open(COMPLETIONS, &long_text(true)).await;
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
        let stream = service.open(COMPLETIONS, &long_text(true)).await;
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
    let mut stream = service.open(COMPLETIONS, &long_text(true)).await;
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
    let mut stream = service.open(COMPLETIONS, &long_text(true)).await;
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
    assert_eq!(service.post(COMPLETIONS, &long_text(false)).await.status, 503);
    load.send(()).unwrap();
    service.until("/health", |it| it.status == 200).await;
    assert_eq!(service.post(COMPLETIONS, &long_text(false)).await.status, 200);
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
