use std::sync::Arc;

use super::*;
use crate::config::{Kind, Target};

fn map(text: &str) -> HeaderMap {
    let lines = text.lines().map(str::trim).filter(|it| !it.is_empty());
    lines
        .map(|line| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap())
        })
        .collect()
}

fn text(headers: &HeaderMap) -> String {
    let mut lines: Vec<_> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    lines.sort();
    lines.join("\n")
}

fn check(given: &str, change: impl Fn(&mut HeaderMap), expected: &str) {
    let mut headers = map(given);
    change(&mut headers);
    assert_eq!(text(&headers), text(&map(expected)), "from\n{given}");
}

fn to_upstream(headers: &mut HeaderMap) {
    super::to_upstream(headers, &HeaderValue::from_static("10.0.0.7"), false);
}

const ADDED: &str = "x-forwarded-for: 10.0.0.7\nx-forwarded-proto: http\n";

#[test]
fn requests_lose_what_was_for_this_hop() {
    for (given, left) in [
        ("accept: */*\ncontent-length: 3", "accept: */*\ncontent-length: 3"),
        ("connection: keep-alive, x-foo\nkeep-alive: timeout=5\nx-foo: 1\nx-bar: 2", "x-bar: 2"),
        ("connection: close\nconnection: X-Foo ,,\nx-foo: 1", ""),
        ("connection: content-length, host\ncontent-length: 3", "content-length: 3"),
        ("transfer-encoding: chunked\nupgrade: websocket\nproxy-connection: close", ""),
        ("transfer-encoding: chunked\ncontent-length: 3", ""),
        ("expect: 100-continue\nproxy-authorization: Basic x", ""),
        ("te: trailers, deflate", "te: trailers"),
        ("te: deflate", ""),
        ("x-crossover-target: auto\nx-crossover-priority: low", ""),
        ("authorization: Bearer k\ncookie: a=b", "authorization: Bearer k\ncookie: a=b"),
        ("traceparent: 00-1-2-01\ntracestate: a=b", "traceparent: 00-1-2-01\ntracestate: a=b"),
    ] {
        check(given, to_upstream, &format!("{left}\n{ADDED}"));
    }
}

#[test]
fn the_chain_of_addresses_grows() {
    check(
        "x-forwarded-for: 1.2.3.4\nx-forwarded-proto: https",
        to_upstream,
        "x-forwarded-for: 1.2.3.4, 10.0.0.7\nx-forwarded-proto: https",
    );
    // Somebody made the first line up; the second is what the proxy in front of us saw.
    check(
        "x-forwarded-for: 6.6.6.6\nx-forwarded-for: 203.0.113.9",
        to_upstream,
        "x-forwarded-for: 6.6.6.6, 203.0.113.9, 10.0.0.7\nx-forwarded-proto: http",
    );
}

#[test]
fn answers_lose_what_was_for_this_hop() {
    for (given, left) in [
        ("content-type: application/json\ndate: x", "content-type: application/json\ndate: x"),
        ("connection: keep-alive, x-foo\nkeep-alive: timeout=5\nx-foo: 1", ""),
        ("transfer-encoding: chunked\ntrailer: x-sum", "trailer: x-sum"),
        (
            "retry-after: 3\nset-cookie: a\nset-cookie: b",
            "retry-after: 3\nset-cookie: a\nset-cookie: b",
        ),
    ] {
        check(given, to_client, left);
    }
}

#[test]
fn only_event_streams_are_told_to_flow() {
    let stream = "content-type: text/event-stream; charset=utf-8";
    check(
        stream,
        to_client,
        &format!("{stream}\ncache-control: no-cache, no-transform\nx-accel-buffering: no"),
    );
    let own = format!("{stream}\ncache-control: no-store\nx-accel-buffering: yes");
    check(&own, to_client, &own);
    let json = "content-type: application/json";
    check(json, to_client, json);
}

fn spec(host_preserved: bool, authorization: Option<&str>) -> EndpointSpec {
    let target = Target { host: "engine".to_owned(), port: 8101, tls: None, http2: false };
    EndpointSpec {
        name: "a".into(),
        role: Role::Speculative,
        kind: Kind::Vllm,
        authority: target.authority().parse().unwrap(),
        target: Arc::new(target),
        in_flight_max: 1,
        weight_milli: 1000,
        host_preserved,
        authorization: authorization.map(|it| it.parse().unwrap()),
    }
}

#[test]
fn another_attempt_does_not_take_the_key_of_the_first_along() {
    let given = map("host: public.example\nauthorization: Bearer client");
    let own = Own::of(&given, &Uri::from_static("/"));
    let mut headers = given;
    aim(&mut headers, &spec(false, Some("Bearer engine-a")), &own);
    assert_eq!(text(&headers), "authorization: Bearer engine-a\nhost: engine:8101");
    aim(&mut headers, &spec(true, None), &own);
    assert_eq!(text(&headers), "authorization: Bearer client\nhost: public.example");
    aim(&mut headers, &spec(false, None), &own.without_key());
    assert_eq!(text(&headers), "host: engine:8101");
}

#[test]
fn the_host_may_stand_in_the_target() {
    let own = Own::of(&HeaderMap::new(), &Uri::from_static("http://public.example:81/v1"));
    let mut headers = HeaderMap::new();
    aim(&mut headers, &spec(true, None), &own);
    assert_eq!(text(&headers), "host: public.example:81");
}

#[test]
fn wishes_are_known_words_or_refused() {
    let none = Wishes { target: None, priority: Priority::Normal };
    for (given, expected) in [
        ("", Ok(none)),
        ("x-crossover-target: auto", Ok(none)),
        ("x-crossover-target: throughput", Ok(Wishes { target: Some(Role::Throughput), ..none })),
        ("x-crossover-priority: high", Ok(Wishes { priority: Priority::High, ..none })),
        ("x-crossover-target: fast", Err(BadWish::Target)),
        ("x-crossover-target: Auto", Err(BadWish::Target)),
        ("x-crossover-priority: 9", Err(BadWish::Priority)),
    ] {
        assert_eq!(wishes(&map(given)), expected, "{given}");
    }
}

#[test]
fn request_ids_are_passed_on_when_they_can_be() {
    for (given, kept) in [("abc-123", true), ("a b", false), (&"x".repeat(129), false)] {
        let headers = map(&format!("x-request-id: {given}"));
        assert_eq!(request_id(&headers).is_some(), kept, "{given}");
    }
}

proptest::proptest! {
    /// Whatever the headers are, nothing of one hop reaches the next, and nothing panics.
    #[test]
    fn nothing_of_one_hop_passes(
        pairs in proptest::collection::vec(
            (proptest::sample::select(&[
                "connection", "keep-alive", "te", "transfer-encoding", "upgrade", "x-foo",
                "proxy-connection", "content-length", "host", "x-forwarded-for",
            ][..]), "[ -~]{0,20}"),
            0..12,
        ),
    ) {
        let mut headers = HeaderMap::new();
        for (name, value) in &pairs {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.append(*name, value);
            }
        }
        to_upstream(&mut headers);
        for name in OF_ONE_HOP {
            proptest::prop_assert!(!headers.contains_key(*name));
        }
        to_client(&mut headers);
    }
}

/// The README lists the router's own headers, and no other.
#[test]
fn the_readme_lists_every_header() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let part = readme.split("\n## Headers\n").nth(1).unwrap();
    let rows = part.lines().skip_while(|it| !it.starts_with('|')).skip(2);
    let rows = rows.take_while(|it| it.starts_with('|'));
    let cells = rows.map(|it| it.split(" |").next().unwrap());
    let mut listed: Vec<_> = cells.flat_map(|it| it.split('`').skip(1).step_by(2)).collect();
    let error = HeaderName::from_static("x-crossover-error");
    let known = [
        TARGET,
        PRIORITY,
        ENDPOINT,
        REASON,
        error,
        REQUEST_ID,
        TRACE,
        FORWARDED_FOR,
        FORWARDED_PROTO,
    ];
    let mut known: Vec<_> = known.iter().map(HeaderName::as_str).collect();
    listed.sort_unstable();
    known.sort_unstable();
    assert_eq!(listed, known);
}
