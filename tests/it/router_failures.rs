//! When endpoints fail: who is tried next, what is never sent twice, who rests, what a client sees.

use std::time::Duration;

use tests::fake_engine::{FakeEngine, Step, answer, chunk, ok, stream_head};
use tokio::net::TcpListener;

use super::router_rig::{CHAT, Raw, Rig, config, eventually, pair, post};

pub(super) async fn fine() -> FakeEngine {
    FakeEngine::start(|_| vec![Step::ReadBody, Step::Send(ok("text/plain", b"ok"))]).await
}

pub(super) const SWITCH: &str = "[policy]\nhigh = 4\nlow = 3\n";

/// Slow probes: what is learnt is learnt from requests.
pub(super) const BLIND: &str = "[health]\ninterval_ms = 3600000\n[queue]\nwait_ms_max = 300\n";

pub(super) async fn blind(engines: &[&FakeEngine]) -> Rig {
    Rig::start_with(config(&format!("{BLIND}{SWITCH}{}", pair(engines))), 1).await
}

#[tokio::test]
async fn a_refused_connection_means_the_other_endpoint() {
    let (mut s, t) = (fine().await, fine().await);
    let rig = blind(&[&s, &t]).await;
    s.stop().await;
    for (count, reason) in [(1, "failover"), (2, "failover")] {
        let got = Raw::ask(rig.address(), post(CHAT, "", "{}")).await;
        assert_eq!((got.status, got.header("x-crossover-endpoint")), (200, Some("t")));
        assert_eq!(got.header("x-crossover-reason"), Some(reason));
        assert_eq!(t.requests().len(), count);
    }
    // After the first nobody tried the one that refuses.
    assert_eq!(rig.metric("retries_total{endpoint=\"s\",why=\"unreachable\"}"), 1.0);
    rig.settled().await;
}

#[tokio::test]
async fn what_was_sent_is_never_sent_again() {
    let s = FakeEngine::start(|seen| {
        let end = if seen.path() == "/close" { Step::Close } else { Step::Reset };
        if seen.path() == "/unread" { vec![end] } else { vec![Step::ReadBody, end] }
    })
    .await;
    let t = fine().await;
    let rig = blind(&[&s, &t]).await;
    for (count, path) in ["/reset", "/close", "/unread"].into_iter().enumerate() {
        let got = Raw::ask(rig.address(), post(path, "", "{}")).await;
        assert_eq!((got.status, got.code()), (502, "upstream_closed".to_owned()));
        assert_eq!((s.requests().len(), t.requests().len()), (count + 1, 0), "{path}");
        assert!(!got.text().contains("127.0.0.1"));
    }
    rig.settled().await;
}

/// An engine closes what has been idle for `closes` after an answer, the router keeps connections
/// for `keeps`; requests come in rounds, `pauses` and a little more apart.
async fn check_kept(closes: u64, keeps: u64, pauses: u64) {
    let s = FakeEngine::start(move |_| {
        let answer = Step::Send(ok("text/plain", b"ok"));
        vec![Step::ReadBody, answer, Step::CloseIfIdle(Duration::from_millis(closes))]
    })
    .await;
    let rig = blind(&[&s]).await;
    let mut config = rig.fleet.live().config.clone();
    config.timeouts.pool_idle = Duration::from_millis(keeps);
    rig.fleet.reload(config);
    let mut clients = Vec::new();
    for _ in 0..20 {
        clients.push(Raw::connect(rig.address()).await);
    }
    for turn in 0..8 {
        for client in &mut clients {
            client.send(post(CHAT, "", "{}")).await;
        }
        for client in &mut clients {
            assert_eq!(client.answer().await.status, 200);
        }
        tokio::time::sleep(Duration::from_millis(pauses + turn * 13)).await;
    }
    rig.settled().await;
}

#[tokio::test]
async fn kept_connections_are_given_up_before_the_engine_gives_them_up() {
    check_kept(400, 100, 350).await;
}

#[tokio::test]
async fn kept_connections_that_were_closed_are_not_used() {
    check_kept(80, 3000, 250).await;
}

#[tokio::test]
async fn kept_connections_are_closed_before_servers_close_them() {
    let s = fine().await;
    let rig = blind(&[&s]).await;
    assert_eq!(Raw::ask(rig.address(), post(CHAT, "", "{}")).await.status, 200);
    let mut config = rig.fleet.live().config.clone();
    config.timeouts.pool_idle = Duration::from_millis(50);
    rig.fleet.reload(config);
    eventually("nothing is kept", || s.open() == 0).await;
}

#[tokio::test]
async fn refusals_say_nothing_about_an_endpoint() {
    for status in ["400 Bad Request", "404 Not Found", "429 Too Many", "503 Busy"] {
        let s = FakeEngine::start(move |_| {
            vec![Step::ReadBody, Step::Send(answer(status, "application/json", b"{}"))]
        })
        .await;
        let t = fine().await;
        let rig = blind(&[&s, &t]).await;
        for _ in 0..100 {
            let got = Raw::ask(rig.address(), post(CHAT, "", "{}")).await;
            assert_eq!(got.status, status[..3].parse::<u16>().unwrap());
        }
        assert_eq!((s.requests().len(), t.requests().len()), (100, 0), "{status}");
        rig.settled().await;
    }
}

#[tokio::test]
async fn an_endpoint_that_keeps_failing_rests_and_is_tried_once() {
    let s = FakeEngine::start(|seen| {
        let status = if seen.path() == "/well" { "200 OK" } else { "500 Oh" };
        vec![Step::ReadBody, Step::Send(answer(status, "text/plain", b"x"))]
    })
    .await;
    let t = fine().await;
    let text =
        format!("{BLIND}{SWITCH}[breaker]\nfailures_max = 3\nrest_ms = 200\n{}", pair(&[&s, &t]));
    let rig = Rig::start_with(config(&text), 1).await;
    let served = |path: &'static str| {
        let address = rig.address();
        async move {
            let got = Raw::ask(address, post(path, "", "{}")).await;
            got.header("x-crossover-endpoint").unwrap().to_owned()
        }
    };
    for _ in 0..3 {
        assert_eq!(served("/fail").await, "s");
    }
    assert_eq!(served("/fail").await, "t");
    assert_eq!(rig.metric("endpoint_resting{endpoint=\"s\"}"), 1.0);
    // The trial serves: it is back.
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert_eq!(served("/well").await, "s");
    assert_eq!(served("/fail").await, "s");
    assert_eq!(rig.metric("endpoint_resting{endpoint=\"s\"}"), 0.0);
    rig.settled().await;
}

#[tokio::test]
async fn a_few_poisonous_requests_do_not_take_the_service_down() {
    let poison = || {
        FakeEngine::start(|seen| {
            let status = if seen.path() == "/poison" { "500 Oh" } else { "200 OK" };
            vec![Step::ReadBody, Step::Send(answer(status, "text/plain", b"x"))]
        })
    };
    let (s, t) = (poison().await, poison().await);
    let rig = blind(&[&s, &t]).await;
    for _ in 0..40 {
        assert_eq!(Raw::ask(rig.address(), post("/poison", "", "{}")).await.status, 500);
    }
    for _ in 0..10 {
        assert_eq!(Raw::ask(rig.address(), post(CHAT, "", "{}")).await.status, 200);
    }
    rig.settled().await;
}

/// A busy engine does not find time for probes. As long as tokens flow, it is well.
#[tokio::test]
async fn an_engine_that_streams_but_does_not_answer_probes_stays_up() {
    let s = FakeEngine::start(|seen| {
        if seen.path() == "/health" {
            return vec![Step::Aside, Step::Stall];
        }
        let mut steps = vec![Step::ReadBody, Step::Send(stream_head())];
        for _ in 0..200 {
            steps.push(Step::Send(chunk(b"data: x\n\n")));
            steps.push(Step::Wait(Duration::from_millis(20)));
        }
        steps.push(Step::Send(chunk(b"")));
        steps
    })
    .await;
    let health = "[health]\ninterval_ms = 10\ntimeout_ms = 300\nfall = 2\n";
    let mut config = config(&format!("{health}{SWITCH}{}", pair(&[&s])));
    config.endpoints[0].kind = router::config::Kind::OpenAi;
    let rig = Rig::start_with(config.clone(), 1).await;
    config.endpoints[0].kind = router::config::Kind::Vllm;
    let mut client = Raw::connect(rig.address()).await;
    client.send(post(CHAT, "", "{}")).await;
    client.head().await;
    rig.fleet.reload(config);
    let silent = "probes_total{endpoint=\"s\",result=\"silent\"}";
    eventually("five probes found silence", || {
        assert_eq!(rig.metric("endpoint_up{endpoint=\"s\"}"), 1.0);
        5.0 <= rig.metric(silent)
    })
    .await;
    client.until(b"0\r\n\r\n").await.unwrap();
    // Now it is silent altogether.
    eventually("it is down", || rig.metric("endpoint_up{endpoint=\"s\"}") == 0.0).await;
    rig.settled().await;
}

#[tokio::test]
async fn an_engine_that_comes_back_is_used_again() {
    let (mut s, t) = (fine().await, fine().await);
    let rig = Rig::start(&format!("{SWITCH}{}", pair(&[&s, &t]))).await;
    s.stop().await;
    eventually("it is down", || rig.metric("endpoint_up{endpoint=\"s\"}") == 0.0).await;
    assert_eq!(
        Raw::ask(rig.address(), post(CHAT, "", "{}")).await.header("x-crossover-endpoint"),
        Some("t")
    );
    s.restart().await;
    eventually("it is up", || rig.metric("endpoint_up{endpoint=\"s\"}") == 1.0).await;
    assert_eq!(
        Raw::ask(rig.address(), post(CHAT, "", "{}")).await.header("x-crossover-endpoint"),
        Some("s")
    );
    rig.settled().await;
}

#[tokio::test]
async fn with_nobody_up_requests_wait_a_while_and_then_hear_so() {
    let mut s = fine().await;
    let rig = Rig::start(&format!("{SWITCH}{}", pair(&[&s]))).await;
    s.stop().await;
    eventually("it is down", || rig.metric("endpoint_up{endpoint=\"s\"}") == 0.0).await;
    let got = Raw::ask(rig.address(), post(CHAT, "", "{}")).await;
    assert_eq!((got.status, got.code()), (503, "no_instance_available".to_owned()));
    assert_eq!(got.header("retry-after"), Some("1"));
    for path in ["/health", "/readyz"] {
        let ready =
            Raw::ask(rig.address(), format!("GET {path} HTTP/1.1\r\nhost: r\r\n\r\n")).await;
        assert_eq!(ready.status, 503);
    }
    let mut config = rig.fleet.live().config.clone();
    config.queue.wait_max = super::router_rig::SOON;
    rig.fleet.reload(config);
    let mut client = Raw::connect(rig.address()).await;
    client.send(post(CHAT, "", "{}")).await;
    eventually("it waits", || rig.fleet.waiting() == 1).await;
    s.restart().await;
    assert_eq!(client.answer().await.status, 200);
    rig.settled().await;
}

#[tokio::test]
async fn a_full_fleet_queues_by_priority_and_then_sheds() {
    let gate = std::sync::Arc::new(tokio::sync::Notify::new());
    let script = std::sync::Arc::clone(&gate);
    let s = FakeEngine::start(move |_| {
        let answer = Step::Send(ok("text/plain", b"ok"));
        vec![Step::ReadBody, Step::Gate(std::sync::Arc::clone(&script)), answer]
    })
    .await;
    let queue = "[queue]\nwaiting_max = 2\nwait_ms_max = 20000\nretry_after_s = 7\n";
    let text = format!("{queue}{SWITCH}{}in_flight_max = 1\n", pair(&[&s]));
    let rig = Rig::start_with(config(&text), 1).await;
    let mut clients = Vec::new();
    for (count, (path, priority)) in
        [("/first", "normal"), ("/low", "low"), ("/high", "high")].into_iter().enumerate()
    {
        let mut client = Raw::connect(rig.address()).await;
        client.send(post(path, &format!("x-crossover-priority: {priority}\r\n"), "{}")).await;
        eventually("it is in", || rig.fleet.waiting() + 1 == count + 1 && rig.fleet.total() == 1)
            .await;
        clients.push(client);
    }
    eventually("the engine has the first", || s.requests().len() == 1).await;
    let got = Raw::ask(rig.address(), post("/shed", "x-crossover-priority: low\r\n", "{}")).await;
    assert_eq!((got.status, got.code()), (503, "server_is_overloaded".to_owned()));
    assert_eq!(got.header("retry-after"), Some("7"));
    for count in 1..=3 {
        gate.notify_one();
        if count < 3 {
            eventually("the next is let in", || s.requests().len() == count + 1).await;
        }
    }
    for client in &mut clients {
        assert_eq!(client.answer().await.status, 200);
    }
    let order: Vec<_> = s.requests().iter().map(|it| it.path().to_owned()).collect();
    assert_eq!(order, ["/first", "/high", "/low"]);
    rig.settled().await;
}

#[tokio::test]
async fn nobody_at_the_address_is_not_somebody_who_is_slow() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let s = fine().await;
    let rig = blind(&[&s]).await;
    let mut next = rig.fleet.live().config.clone();
    let mut target = (*next.endpoints[0].target).clone();
    target.port = closed.port();
    next.endpoints[0].target = target.into();
    rig.fleet.reload(next);
    let got = Raw::ask(rig.address(), post(CHAT, "", "{}")).await;
    assert_eq!((got.status, got.code()), (502, "upstream_unreachable".to_owned()));
    assert!(!got.text().contains(&closed.port().to_string()));
    assert_eq!(rig.metric("endpoint_up{endpoint=\"s\"}"), 0.0);
    rig.settled().await;
}

/// The name has an IPv6 address too on most machines, and nobody listens there.
#[tokio::test]
async fn a_name_with_several_addresses_is_reached_at_the_one_that_answers() {
    let s = fine().await;
    let port = s.address.port();
    let endpoints = pair(&[&s]).replace(&s.address.to_string(), &format!("localhost:{port}"));
    let text = format!("{BLIND}{SWITCH}[timeouts]\npool_idle_ms = 0\n{endpoints}");
    let rig = Rig::start_with(config(&text), 1).await;
    for _ in 0..6 {
        let got = Raw::ask(rig.address(), post(CHAT, "", "{}")).await;
        assert_eq!(got.status, 200);
    }
    assert_eq!(s.requests()[0].header("host"), Some(&*format!("localhost:{port}")));
    rig.settled().await;
}

#[tokio::test]
async fn a_request_may_name_its_role() {
    let (s, t) = (fine().await, fine().await);
    let rig = blind(&[&s, &t]).await;
    for (target, endpoint, reason) in
        [("auto", "s", "below"), ("throughput", "t", "override"), ("speculative", "s", "override")]
    {
        let own = format!("x-crossover-target: {target}\r\n");
        let got = Raw::ask(rig.address(), post(CHAT, &own, "{}")).await;
        assert_eq!(got.header("x-crossover-endpoint"), Some(endpoint));
        assert_eq!(got.header("x-crossover-reason"), Some(reason));
    }
    for (name, code) in [("target", "invalid_target"), ("priority", "invalid_priority")] {
        let got =
            Raw::ask(rig.address(), post(CHAT, &format!("x-crossover-{name}: x\r\n"), "{}")).await;
        assert_eq!((got.status, got.code()), (400, code.to_owned()));
    }
    assert_eq!((s.requests().len(), t.requests().len()), (2, 1));
}

#[tokio::test]
async fn an_endpoint_that_is_not_what_it_should_be_is_named() {
    let of = |mode: &'static str, model: &'static str| {
        FakeEngine::start(move |seen| {
            let text = match seen.path() {
                "/load" => format!("{{\"server_load\":0,\"mode\":\"{mode}\"}}"),
                "/v1/models" => format!("{{\"data\":[{{\"id\":\"{model}\"}}]}}"),
                _ => "{}".to_owned(),
            };
            vec![Step::Aside, Step::Send(ok("application/json", text.as_bytes()))]
        })
    };
    for (s, t, differs) in [
        (("eagle3", "m"), ("baseline", "m"), [0.0, 0.0]),
        (("baseline", "m"), ("baseline", "m"), [1.0, 0.0]),
        (("eagle3", "m"), ("ngram", "m"), [0.0, 1.0]),
    ] {
        let (s, t) = (of(s.0, s.1).await, of(t.0, t.1).await);
        let rig = Rig::start(&format!("{SWITCH}{}", pair(&[&s, &t]))).await;
        for (name, differs) in ["s", "t"].into_iter().zip(differs) {
            let series = format!("endpoint_mismatch{{endpoint=\"{name}\"}}");
            let text = || rig.fleet.metrics.text(&rig.fleet, router::clock::now());
            eventually("it was asked", || text().contains(&series)).await;
            assert_eq!(rig.metric(&series), differs);
        }
    }
    let (s, t) = (of("eagle3", "one").await, of("baseline", "other").await);
    let rig = Rig::start(&format!("{SWITCH}{}", pair(&[&s, &t]))).await;
    let series = |name: &str| rig.metric(&format!("endpoint_mismatch{{endpoint=\"{name}\"}}"));
    eventually("different models are seen", || 1.0 <= series("s") + series("t")).await;
}
