//! The router as a process: exit codes, signals, reload, sockets and notices of a supervisor.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod rig;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use rig::{BINARY, Engine, Router, SOON, collector, ends_well, exchange, file, once, pause, write};

#[test]
fn mistakes_of_the_operator_are_all_told_and_exit_64() {
    let output = once("listen = \"x\"\n[policy]\nkind = \"y\"\n", &[]);
    assert_eq!(output.status.code(), Some(64));
    let text = String::from_utf8(output.stderr).unwrap();
    for part in ["listen: ", "policy.kind: ", "endpoint: "] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(once("nonsense", &[]).status.code(), Some(64));
    assert_eq!(once("", &["--no-such-flag"]).status.code(), Some(64));
    let missing = Command::new(BINARY).args(["--config", "/nowhere.toml"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(64));
    assert!(String::from_utf8(missing.stderr).unwrap().contains("/nowhere.toml"));
}

#[test]
fn a_good_file_is_printed_and_a_taken_port_is_exit_1() {
    let engine = Engine::start();
    let output = once(&file(&engine, ""), &["--print-config"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8(output.stdout).unwrap().contains("in_flight_max: 256"));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().map(|it| it.to_string());
    let holder = TcpListener::bind(taken.unwrap()).unwrap();
    let address = holder.local_addr().unwrap().to_string();
    let output = once(&file(&engine, ""), &["--listen", &address]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains(&format!("listen: cannot bind {address}")), "{text}");
}

#[test]
fn terminate_lets_streams_finish_and_takes_no_new_ones() {
    let engine = Engine::start();
    let mut router = Router::start(&file(&engine, ""));
    let streams: Vec<_> = (0..20).map(|_| router.stream()).collect();
    router.signal("TERM");
    router.until(|it| it.admin("/readyz").contains("503"));
    // While balancers learn of it, requests are still served.
    let request = "GET /livez HTTP/1.1\r\nhost: r\r\nconnection: close\r\n\r\n";
    assert!(exchange(&router.listen, request).unwrap().contains("200 OK"));
    router.until(|it| TcpStream::connect(&it.listen).is_err());
    assert!(router.child.try_wait().unwrap().is_none());
    engine.open_gate();
    assert!(streams.into_iter().all(ends_well));
    assert_eq!(router.wait(), Some(0));
}

#[test]
fn a_second_signal_cuts() {
    let engine = Engine::start();
    let mut router = Router::start(&file(&engine, ""));
    let stream = router.stream();
    router.signal("TERM");
    router.until(|it| it.admin("/readyz").contains("503"));
    router.signal("TERM");
    assert_eq!(router.wait(), Some(0));
    assert!(!ends_well(stream));
}

#[test]
fn hang_up_reloads_good_files_and_keeps_the_old_one_before_bad_ones() {
    let engine = Engine::start();
    let router = Router::start(&file(&engine, "watch = true"));
    let streams: Vec<_> = (0..100).map(|_| router.stream()).collect();
    assert!(router.admin("/policy").contains("\"high\":8"));
    write(&router.folder, "listen = 7");
    router.signal("HUP");
    router.until(|it| it.metric("config_valid 0"));
    assert!(router.admin("/policy").contains("\"high\":8"));
    write(&router.folder, &file(&engine, "watch = true\npolicy.high = 20"));
    router.signal("HUP");
    router.until(|it| it.metric("config_valid 1"));
    assert!(router.admin("/policy").contains("\"high\":20"));
    assert!(router.metric("total_in_flight 100"));
    // Without a signal as well, since the file is watched.
    write(&router.folder, &file(&engine, "policy.high = 30"));
    router.until(|it| it.admin("/policy").contains("\"high\":30"));
    engine.open_gate();
    assert!(streams.into_iter().all(ends_well));
    router.until(|it| it.metric("total_in_flight 0"));
}

#[test]
fn a_calibration_of_something_else_is_refused_at_start_and_at_reload() {
    let engine = Engine::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("calibration.json");
    let calibrate = |key: &str, high: u32| {
        let rest = format!(r#""curves": {{}}, "threshold": {{"high": {high}}}"#);
        std::fs::write(&path, format!(r#"{{"format": 1, "key": {{{key}}}, {rest}}}"#)).unwrap();
    };
    let policy = format!("policy.high = \"auto\"\npolicy.calibration = {path:?}");
    let ours = format!("{}kind = \"crossover\"\n", file(&engine, &policy));
    let others = file(&engine, &policy);
    let stale = [
        (r#""model": "n""#, r#"policy.calibration: is for model "n", and the endpoint has "m""#),
        (r#""quantisation": "q8_0""#, r#"quantisation "q8_0", and the endpoint has "q4_1""#),
        (r#""device": "cpu:0-1""#, r#"device "cpu:0-1", and the endpoint has "cpu:2""#),
    ];
    for (key, part) in stale {
        calibrate(key, 9);
        let output = once(&ours, &[]);
        assert_eq!(output.status.code(), Some(64), "{key}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(part) && text.contains("calibrate this pair anew"), "{text}");
    }
    calibrate(r#""model": "m", "quantisation": "q4_1", "device": "cpu:0""#, 9);
    let router = Router::start(&ours);
    assert!(router.admin("/policy").contains("\"high\":9"));
    calibrate(r#""model": "n""#, 11);
    router.signal("HUP");
    router.until(|it| it.metric("config_valid 0"));
    assert!(router.admin("/policy").contains("\"high\":9"));
    calibrate(r#""model": "m""#, 12);
    router.signal("HUP");
    router.until(|it| it.metric("config_valid 1"));
    assert!(router.admin("/policy").contains("\"high\":12"));
    // Servers of others tell their models, and are asked for nothing else.
    calibrate(r#""model": "m", "quantisation": "q8_0", "device": "gpu:0""#, 13);
    assert!(Router::start(&others).admin("/policy").contains("\"high\":13"));
}

#[test]
fn operators_see_and_drain() {
    let engine = Engine::start();
    let router = Router::start(&file(&engine, ""));
    let stream = router.stream();
    assert!(router.admin("/").contains("<title>Crossover</title>"));
    assert!(router.admin("/healthz").contains("200 OK"));
    assert!(router.admin("/fleet").contains("\"in_flight\":1"));
    assert!(router.admin("/config").contains("role: Speculative"));
    assert!(router.admin("/nothing").contains("404"));
    router.until(|it| {
        let answer = it.admin("/status");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let status: serde_json::Value = serde_json::from_str(body).unwrap();
        let seen = status["endpoints"][0]["in_flight_history"].as_array().unwrap();
        seen.last() == Some(&1.into())
    });
    let drained = exchange(&router.admin, "POST /drain/s HTTP/1.0\r\n\r\n").unwrap();
    assert!(drained.contains("\"in_flight\":1"), "{drained}");
    assert!(router.admin("/readyz").contains("503"));
    let foreign = "POST /resume/s HTTP/1.0\r\nhost: a\r\norigin: http://b\r\n\r\n";
    assert!(exchange(&router.admin, foreign).unwrap().contains("403"));
    assert!(exchange(&router.admin, "POST /resume/x HTTP/1.0\r\n\r\n").unwrap().contains("404"));
    exchange(&router.admin, "POST /resume/s HTTP/1.0\r\n\r\n").unwrap();
    assert!(router.admin("/readyz").contains("200 OK"));
    engine.open_gate();
    assert!(ends_well(stream));
}

#[test]
fn sockets_and_notices_of_a_supervisor() {
    let engine = Engine::start();
    let folder = tempfile::tempdir().unwrap();
    let notices = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    notices.set_read_timeout(Some(SOON)).unwrap();
    let given = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = given.local_addr().unwrap().to_string();
    let socket = OwnedFd::from(given.try_clone().unwrap());
    let mut router = Router::start_as(&file(&engine, ""), |path| {
        let mut command = Command::new("sh");
        let line = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" --config \"$1\"";
        command.arg("-c").arg(line).arg(BINARY).arg(path).stdin(Stdio::from(socket));
        command.env("NOTIFY_SOCKET", folder.path().join("notify"));
        command.env("WATCHDOG_USEC", "1000000");
        command
    });
    assert_eq!(router.listen, address);
    let mut heard = String::new();
    let mut hear = |wanted: &str| {
        while !heard.contains(wanted) {
            let mut piece = [0; 1024];
            let count = notices.recv(&mut piece).unwrap();
            heard.push_str(std::str::from_utf8(&piece[..count]).unwrap());
            heard.push('\n');
        }
        heard.clear();
    };
    hear("READY=1");
    hear("WATCHDOG=1");
    router.signal("HUP");
    hear("RELOADING=1");
    hear("READY=1");
    router.signal("INT");
    hear("STOPPING=1");
    assert_eq!(router.wait(), Some(0));
    // The socket is the supervisor's: clients wait in it for the next process.
    assert!(TcpStream::connect(address).is_ok());
}

/// Clients that finish, leave at any point, or send nonsense; and then nothing of them is left.
#[test]
fn churn_leaves_no_descriptor_and_no_thread() {
    let engine = Engine::start();
    let router = Router::start(&file(&engine, "timeouts.pool_idle_ms = 100"));
    let held = |it: &Router, what: &str| {
        std::fs::read_dir(format!("/proc/{}/{what}", it.child.id())).unwrap().count()
    };
    let fine = "POST /v1/x HTTP/1.1\r\nhost: r\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    let part = "POST /v1/x HTTP/1.1\r\nhost: r\r\ncontent-length: 100\r\n\r\npart";
    let churn = |rounds: usize| {
        for _ in 0..rounds {
            assert!(exchange(&router.listen, fine).unwrap().contains("200 OK"));
            drop(router.stream());
            for text in ["", "POST /v1/x HT", part, "\0\r\n\r\n"] {
                let mut client = TcpStream::connect(&router.listen).unwrap();
                client.write_all(text.as_bytes()).unwrap();
            }
        }
        router.until(|it| it.metric("connections 0") && it.metric("total_in_flight 0"));
    };
    churn(5);
    // Probes come and go: the fewest of some looks are what stays.
    let fewest = |what: &str| {
        let looks = (0..20).map(|_| {
            pause(10);
            held(&router, what)
        });
        looks.min().unwrap()
    };
    router.until(|_| fewest("fd") < 30);
    let before = [fewest("fd"), fewest("task")];
    churn(60);
    router.until(|_| fewest("fd") <= before[0] && fewest("task") <= before[1]);
    engine.open_gate();
}

#[test]
fn each_request_leaves_one_line() {
    let engine = Engine::start();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let extra = format!("access.log = {log:?}");
    let mut router = Router::start(&file(&engine, &extra));
    let request = "POST /v1/x HTTP/1.1\r\nhost: r\r\nx-request-id: abc\r\ncontent-length: 2\r\n\
                   connection: close\r\n\r\n{}";
    exchange(&router.listen, request).unwrap();
    let bad = "POST /v1/y HTTP/1.1\r\nhost: r\r\nx-crossover-target: up\r\ncontent-length: 0\r\n\
               connection: close\r\n\r\n";
    exchange(&router.listen, bad).unwrap();
    router.signal("INT");
    assert_eq!(router.wait(), Some(0));
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert_eq!((&lines[0]["path"], &lines[0]["request_id"]), (&"/v1/x".into(), &"abc".into()));
    assert_eq!((&lines[0]["outcome"], &lines[0]["endpoint"]), (&"complete".into(), &"s".into()));
    assert_eq!((&lines[0]["status"], &lines[0]["bytes_out"]), (&200.into(), &2.into()));
    assert_eq!(
        (&lines[1]["status"], &lines[1]["outcome"]),
        (&400.into(), &"invalid_target".into())
    );
}

#[test]
fn each_sampled_request_is_a_span() {
    let engine = Engine::start();
    let (address, bodies) = collector();
    let extra = format!("trace.collector = \"http://{address}\"");
    let mut router = Router::start(&file(&engine, &extra));
    let ask = |path: &str, flags: &str| {
        let trace = format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}");
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: r\r\ntraceparent: {trace}\r\ncontent-length: 2\r\n\
             connection: close\r\n\r\n{{}}"
        );
        assert!(exchange(&router.listen, &request).unwrap().contains("200 OK"));
    };
    ask("/unsampled", "00");
    ask("/first", "01");
    let mut spans = spans(&bodies.recv_timeout(SOON).unwrap());
    // What has not been sent yet is sent at the end.
    ask("/last", "01");
    router.signal("INT");
    assert_eq!(router.wait(), Some(0));
    spans.extend(bodies.try_iter().flat_map(|it| self::spans(&it)));
    let paths: Vec<_> = spans.iter().map(|it| attribute(it, "url.path").to_string()).collect();
    assert_eq!(paths, ["{\"stringValue\":\"/first\"}", "{\"stringValue\":\"/last\"}"]);
    for span in &spans {
        assert_eq!(span["traceId"], "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(span["parentSpanId"], "b7ad6b7169203331");
        assert_eq!(attribute(span, "crossover.outcome")["stringValue"], "complete");
        assert_eq!(attribute(span, "crossover.endpoint")["stringValue"], "s");
    }
}

fn spans(body: &serde_json::Value) -> Vec<serde_json::Value> {
    let spans = &body["resourceSpans"][0]["scopeSpans"][0]["spans"];
    spans.as_array().unwrap_or_else(|| panic!("{body}")).clone()
}

fn attribute<'a>(span: &'a serde_json::Value, key: &str) -> &'a serde_json::Value {
    let all = span["attributes"].as_array().unwrap();
    &all.iter().find(|it| it["key"] == key).unwrap_or_else(|| panic!("{key}: {span}"))["value"]
}

#[test]
fn a_collector_that_is_not_there_disturbs_nobody() {
    let engine = Engine::start();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let router = Router::start(&file(&engine, &format!("trace.collector = \"http://{closed}\"")));
    let request =
        "POST /v1/x HTTP/1.1\r\nhost: r\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    assert!(exchange(&router.listen, request).unwrap().contains("200 OK"));
    router.until(|it| it.metric("spans_dropped_total 1"));
}
