//! Requests as proxies send them.

use std::time::Duration;

use super::{request_end, stream_of};
use crate::hop::wire;

#[test]
fn a_request_ends_where_its_length_says() {
    let request = wire::request("pieces=50 every=100;", 64, true);
    assert_eq!(request_end(&request), Some(request.len()));
    assert_eq!(request_end(&request[..request.len() - 1]), None);
    let two = [request.clone(), request.clone()].concat();
    assert_eq!(request_end(&two), Some(request.len()));
    assert_eq!(stream_of(&request), Some((50, Duration::from_millis(100))));
    assert_eq!(stream_of(&wire::request("hello", 64, false)), None);
}

#[test]
fn chunks_and_nothing_are_bodies_too() {
    let probe = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    assert_eq!(request_end(probe), Some(probe.len()));
    let chunks = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    assert_eq!(request_end(chunks), Some(chunks.len()));
    assert_eq!(request_end(&chunks[..chunks.len() - 1]), None);
}
