//! A real pair, scraped by a real Prometheus: every expression that is shipped returns data.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::programs::program;

/// Ended with the test, however that ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status());
        drop(self.0.wait());
    }
}

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("deploy").join(path)
}

fn ports<const N: usize>() -> [u16; N] {
    let held = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    held.map(|it| it.local_addr().unwrap().port())
}

/// One request on a connection of its own; the whole answer, head and all.
fn ask(port: u16, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let len = body.len();
    write!(stream, "{head}\r\nhost: x\r\nconnection: close\r\ncontent-length: {len}\r\n\r\n{body}")
        .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn chat(port: u16, extra: &str) -> String {
    let head =
        format!("POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json{extra}");
    let body = r#"{"messages": [{"role": "user", "content": "Count from one to twenty, in words."}],
        "max_tokens": 24, "stream": true, "temperature": 0}"#;
    ask(port, &head, body)
}

/// Begins an answer and leaves.
fn leave(port: u16) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let body = r#"{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 500,
        "stream": true, "ignore_eos": true}"#;
    let len = body.len();
    write!(
        stream,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len}\r\n\r\n"
    )
    .unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut byte = [0];
    stream.read_exact(&mut byte).unwrap();
}

fn start_pair([listen, admin, speculative, throughput]: [u16; 4]) -> Running {
    let mut command = Command::new(program("crossover"));
    command.args(["up", "--high", "2", "--low", "1"]);
    for (flag, port) in [
        ("--listen", listen),
        ("--admin", admin),
        ("--speculative", speculative),
        ("--throughput", throughput),
    ] {
        command.arg(flag).arg(format!("127.0.0.1:{port}"));
    }
    // They are built already.
    command.env_remove("CARGO").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = Running(command.spawn().unwrap());
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let is_up = lines.any(|it| it.is_ok_and(|it| it.contains("Ctrl-C stops everything")));
    assert!(is_up, "it ended before it was up");
    // What it says from now on must not fill the pipe.
    thread::spawn(move || lines.for_each(drop));
    child
}

fn start_prometheus(dir: &TempDir, port: u16, [admin, one, other]: [u16; 3]) -> Running {
    for name in ["recording.yml", "alerts.yml"] {
        fs::copy(deploy("prometheus").join(name), dir.path().join(name)).unwrap();
    }
    let config = fs::read_to_string(deploy("prometheus/prometheus.yml")).unwrap();
    let config = config
        .replace(":8001", &format!(":{admin}"))
        .replace(":8101", &format!(":{one}"))
        .replace(":8102", &format!(":{other}"))
        .replace(": 5s", ": 1s");
    fs::write(dir.path().join("prometheus.yml"), config).unwrap();
    let child = Command::new("prometheus")
        .current_dir(dir.path())
        .args(["--config.file=prometheus.yml", "--storage.tsdb.path=tsdb"])
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Running(child)
}

/// Every expression of dashboard, console and rules.
fn expressions() -> Vec<String> {
    let dashboard = fs::read_to_string(deploy("grafana/crossover.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|it| it["targets"].as_array().unwrap());
    let mut found: Vec<_> = targets.map(|it| it["expr"].as_str().unwrap().to_owned()).collect();
    let console = fs::read_to_string(deploy("prometheus/consoles/crossover.html")).unwrap();
    let parts = console.split("data-expr=\"").skip(1);
    let unescaped = |it: &str| it.replace("&quot;", "\"");
    found.extend(parts.map(|it| unescaped(it.split('"').next().unwrap())));
    let rules = fs::read_to_string(deploy("prometheus/recording.yml")).unwrap();
    let recorded = rules.lines().filter_map(|it| it.trim().strip_prefix("- record: "));
    found.extend(recorded.map(str::to_owned));
    found
}

/// How many series an expression has now.
fn series(prometheus: u16, expression: &str) -> usize {
    let plain = |it: &u8| it.is_ascii_alphanumeric();
    let query: String = expression
        .bytes()
        .map(|it| if plain(&it) { char::from(it).to_string() } else { format!("%{it:02X}") })
        .collect();
    let answer = ask(prometheus, &format!("GET /api/v1/query?query={query} HTTP/1.0"), "");
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    let body: Value = serde_json::from_str(body).unwrap_or_else(|it| panic!("{it}: {answer}"));
    assert_eq!(body["status"], "success", "{expression}: {body}");
    body["data"]["result"].as_array().unwrap().len()
}

#[test]
fn every_expression_returns_data() {
    if Command::new("prometheus").arg("--version").output().is_err() {
        println!("skipped: prometheus is not installed (deploy/check installs it)");
        return;
    }
    let all = ports::<5>();
    let [listen, admin, speculative, throughput, prometheus] = all;
    let _pair = start_pair([listen, admin, speculative, throughput]);
    let dir = tempfile::tempdir().unwrap();
    let _prometheus = start_prometheus(&dir, prometheus, [admin, speculative, throughput]);
    let mut missing = expressions();
    assert!(40 < missing.len());
    // Rates need a first sample of each series, then work, then another sample.
    for _ in 0..60 {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert!(chat(listen, "").contains("[DONE]")));
            }
            let refused = chat(listen, "\r\nx-crossover-target: nowhere");
            assert!(refused.starts_with("HTTP/1.1 400"), "{refused}");
            leave(listen);
        });
        thread::park_timeout(Duration::from_secs(1));
        missing.retain(|it| series(prometheus, it) == 0);
        if missing.is_empty() {
            return;
        }
    }
    panic!("without data: {missing:#?}");
}
