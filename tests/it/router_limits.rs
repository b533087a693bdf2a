//! Limits of time between a client and an endpoint: each is told by its own answer.

use std::io;
use std::time::Duration;

use router::config::Target;
use router::upstream::Connect;
use tests::fake_engine::{FakeEngine, Step};
use tokio::net::TcpStream;

use super::router_failures::{BLIND, SWITCH, blind, fine};
use super::router_rig::{CHAT, Raw, Rig, config, eventually, pair, post};

#[tokio::test]
async fn each_limit_has_its_own_answer() {
    let s = FakeEngine::start(|_| vec![Step::ReadBody, Step::Stall]).await;
    let rig = blind(&[&s]).await;
    let mut config = rig.fleet.live().config.clone();
    config.timeouts.first_byte = Some(Duration::from_millis(200));
    config.timeouts.idle = Some(Duration::from_millis(400));
    rig.fleet.reload(config.clone());
    let got = Raw::ask(rig.address(), post(CHAT, "", "{}")).await;
    assert_eq!((got.status, got.code()), (504, "upstream_timeout".to_owned()));
    let part = "POST / HTTP/1.1\r\nhost: r\r\ncontent-length: 100\r\n\r\npart";
    let got = Raw::ask(rig.address(), part).await;
    assert_eq!((got.status, got.code()), (408, "request_body_timeout".to_owned()));
    config.timeouts.first_byte = None;
    config.timeouts.total = Some(Duration::from_millis(200));
    rig.fleet.reload(config);
    let got = Raw::ask(rig.address(), post(CHAT, "", "{}")).await;
    assert_eq!((got.status, got.code()), (504, "request_timeout".to_owned()));
    rig.settled().await;
    eventually("the engine is let go", || s.open() == 0).await;
}

/// A network in which nobody ever takes a connection.
#[derive(Debug)]
struct Hole;

impl Connect for Hole {
    type Io = TcpStream;

    async fn connect(&self, _: &Target, limit: Duration) -> io::Result<TcpStream> {
        tokio::time::sleep(limit).await;
        Err(io::ErrorKind::TimedOut.into())
    }
}

#[tokio::test]
async fn the_limit_on_the_whole_holds_while_connecting_too() {
    let (s, t) = (fine().await, fine().await);
    let limits = "[timeouts]\ntotal_ms = 200\nconnect_ms = 3600000\n";
    let text = format!("{BLIND}{SWITCH}{limits}{}", pair(&[&s, &t]));
    let rig = Rig::start_over(config(&text), 1, || Hole).await;
    let got = Raw::ask(rig.address(), post(CHAT, "", "{}")).await;
    assert_eq!((got.status, got.code()), (504, "request_timeout".to_owned()));
    rig.settled().await;
    // It says nothing about the endpoint, and no other one was tried in no time.
    assert_eq!(rig.metric("outcomes_total{endpoint=\"s\",outcome=\"total_timeout\"}"), 1.0);
    assert_eq!(rig.metric("outcomes_total{endpoint=\"t\",outcome=\"total_timeout\"}"), 0.0);
}
