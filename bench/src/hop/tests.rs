//! The measurements against the mock itself.

use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::timeout;

use super::{Target, measure, mock, parse};

async fn target() -> Target {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let text = format!("direct={free}@{}", std::process::id());
    drop(std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(mock::serve(free)).unwrap();
    }));
    while tokio::net::TcpStream::connect(free).await.is_err() {
        tokio::task::yield_now().await;
    }
    parse(&text).unwrap()
}

#[tokio::test]
async fn every_request_is_answered_and_timed() {
    let target = target().await;
    let times = measure::latency(&[target.clone(), target.clone()], 200.0, 0.1, 4096).await;
    let counts: Vec<usize> = times.unwrap().iter().map(Vec::len).collect();
    assert_eq!(counts, [10, 10]);
    let (rate, _) = measure::saturate(&target, 2, 0.05).await.unwrap();
    assert!(0.0 < rate);
}

#[tokio::test]
async fn every_piece_of_every_stream_is_seen() {
    let shape = measure::Streams { count: 3, pieces: 4, every: 5, ramp: Duration::from_millis(10) };
    let seen = measure::stream(&target().await, &shape).await.unwrap();
    assert!(0.0 < seen.piece.0 && seen.piece.0 <= seen.piece.1, "{seen:?}");
    assert!(0.0 < seen.idle_kib, "{seen:?}");
}

#[test]
fn targets_are_on_this_machine() {
    for text in ["direct", "a=127.0.0.1:1", "a=10.0.0.1:1@1", "a=127.0.0.1:1@x"] {
        assert!(parse(text).is_err(), "{text}");
    }
    let target = parse("a=127.0.0.1:1@12+13").unwrap();
    assert_eq!((target.name.as_str(), target.pids.len()), ("a", 2));
}

#[tokio::test(start_paused = true)]
async fn a_target_that_never_answers_ends_the_measurement() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = parse(&format!("a={}@1", silent.local_addr().unwrap())).unwrap();
    let ended = timeout(Duration::from_secs(200), measure::saturate(&target, 1, 1.0)).await;
    assert!(ended.unwrap().unwrap_err().starts_with("a: "));
}

#[tokio::test]
async fn a_program_that_is_not_there_has_no_figures() {
    let mut target = target().await;
    target.pids.push(u32::MAX.to_string());
    assert!(measure::saturate(&target, 1, 0.01).await.unwrap().1.is_nan());
}
