use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use socket2::{Domain, Socket as Listener, Type};
use std::net::TcpStream as Plain;

use super::*;
use crate::config::Tls;

fn listen(backlog: i32) -> (Listener, SocketAddr) {
    let listener = Listener::new(Domain::IPV4, Type::STREAM, None).unwrap();
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    listener.listen(backlog).unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap();
    (listener, address)
}

/// The first address takes no more connections, the second takes one and never speaks TLS.
#[tokio::test(start_paused = true)]
async fn one_limit_holds_for_all_addresses_and_tls() {
    let (_full, full) = listen(0);
    let connect = || Plain::connect_timeout(&full, Duration::from_millis(50));
    let clogging: Vec<_> = std::iter::repeat_with(connect).map_while(Result::ok).take(64).collect();
    assert!(clogging.len() < 64, "it takes whatever comes");
    let (_mute, mute) = listen(8);
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let target =
        Target { host: "two".to_owned(), port: 1, tls: Some(Tls(Arc::new(config))), http2: false };
    let tcp = Tcp::new(Duration::from_secs(3600));
    let began = clock::now();
    let addresses = Arc::from([full, mute]);
    let two = Resolved { addresses, at: began, turn: usize::MAX };
    tcp.resolved().insert(("two".to_owned(), 1), two);
    let error = tcp.connect(&target, Duration::from_secs(8)).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    // By the paused clock, which only these limits move.
    let took = clock::now() - began;
    assert!(took < Duration::from_secs(9), "{took:?}");
}
