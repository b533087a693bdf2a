//! `crossover up` with stand-ins for the engine and the router: start, death, stop, no orphans.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::programs::program;

/// A server that answers every GET, notes its process id, and does what a file beside it says:
/// `die` before it listens, `mute` answers 503, `stubborn` ignores SIGTERM.
const STAND_IN: &str = r#"#!/usr/bin/env python3
import http.server, os, pathlib, signal, sys
here = pathlib.Path(__file__).parent
if sys.argv[1] == "--config":
    name, text = "router", pathlib.Path(sys.argv[2]).read_text()
    address = text.split('admin = "')[1].split('"')[0]
else:
    name = "speculative" if "--draft" in sys.argv or "ngram" in sys.argv else "throughput"
    address = sys.argv[sys.argv.index("--listen") + 1]
(here / f"{name}.args").write_text("\n".join(sys.argv[1:]))
(here / f"{name}.pid").write_text(str(os.getpid()))
said = here / f"{name}.told"
told = said.read_text() if said.exists() else ""
print(name, "begins", file=sys.stderr, flush=True)
if told == "die":
    sys.exit("no such tensor")
if told == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if told == "mute" else 200)
        body = b"" if told == "mute" else b"crossover_router_endpoint_up 2\n"
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
host, port = address.rsplit(":", 1)
http.server.ThreadingHTTPServer((host, int(port)), Answer).serve_forever()
"#;

/// A directory with `crossover` and the stand-ins, and four ports.
struct Rig {
    dir: TempDir,
    ports: [u16; 4],
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::copy(program("crossover"), dir.path().join("crossover")).unwrap();
        for name in ["crossover-engine", "crossover-router"] {
            let path = dir.path().join(name);
            fs::write(&path, STAND_IN).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(dir.path().join("m.gguf"), "weights").unwrap();
        let held = [(); 4].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        Self { ports: held.map(|it| it.local_addr().unwrap().port()), dir }
    }

    fn tell(&self, name: &str, word: &str) {
        fs::write(self.path(&format!("{name}.told")), word).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.path("crossover"));
        command.arg("up").arg("--model").arg(self.path("m.gguf")).arg("--ngram");
        for (flag, port) in ["listen", "admin", "speculative", "throughput"].iter().zip(self.ports)
        {
            command.arg(format!("--{flag}")).arg(format!("127.0.0.1:{port}"));
        }
        command.args(words).arg("--run-dir").arg(self.path("run"));
        // Under cargo it would build the real programs.
        command.env_remove("CARGO").stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(&self) -> Running {
        Self::started(self.command(&[]))
    }

    fn started(mut command: Command) -> Running {
        let mut child = command.spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        let mut said = String::new();
        while !said.contains("Ctrl-C stops everything") {
            let mut bytes = [0; 4096];
            let len = out.read(&mut bytes).unwrap();
            assert!(0 < len, "it ended: {said}");
            said += str::from_utf8(&bytes[..len]).unwrap();
        }
        Running { child, said }
    }

    /// Of those that came as far as to write theirs down: speculative, throughput, router.
    fn ids(&self) -> Vec<u32> {
        let id = |name| fs::read_to_string(self.path(&format!("{name}.pid"))).ok()?.parse().ok();
        ["speculative", "throughput", "router"].into_iter().filter_map(id).collect()
    }

    /// Waits, at most ten seconds, until no child is there.
    fn all_gone(&self) -> bool {
        let is_there = |id: &u32| {
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        for _ in 0..200 {
            if !self.ids().iter().any(is_there) {
                return true;
            }
            pause();
        }
        false
    }
}

struct Running {
    child: Child,
    said: String,
}

impl Running {
    fn signal(&self, name: &str) {
        signal(name, self.child.id());
    }

    fn end(mut self) -> (ExitStatus, String) {
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap(), said)
    }
}

fn signal(name: &str, id: u32) {
    let done = Command::new("kill").args([name, &id.to_string()]).status().unwrap();
    assert!(done.success());
}

fn pause() {
    std::thread::park_timeout(Duration::from_millis(50));
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

#[test]
fn it_starts_three_says_where_and_stops_all_on_a_signal() {
    for name in ["-INT", "-TERM"] {
        let rig = Rig::new();
        let running = rig.start();
        let url = format!("http://127.0.0.1:{}/v1/chat/completions", rig.ports[0]);
        assert!(running.said.contains(&url), "{}", running.said);
        assert!(running.said.contains("the router is ready"), "{}", running.said);
        let args = fs::read_to_string(rig.path("throughput.args")).unwrap();
        assert!(args.contains("--mode\nbaseline"), "{args}");
        running.signal(name);
        let (status, errors) = running.end();
        assert!(status.success(), "{status}: {errors}");
        assert!(rig.all_gone());
    }
}

#[test]
fn a_closed_terminal_that_was_ignored_when_it_began_stays_ignored() {
    let rig = Rig::new();
    let plain = rig.command(&[]);
    let mut command = Command::new("nohup");
    command.arg(plain.get_program()).args(plain.get_args()).env_remove("CARGO");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = Rig::started(command);
    running.signal("-HUP");
    let status = Command::new("cat").arg(format!("/proc/{}/status", running.child.id())).output();
    let status = said(&status.unwrap());
    let caught = status.lines().find_map(|it| it.strip_prefix("SigCgt:")).unwrap().trim();
    let caught = u64::from_str_radix(caught, 16).unwrap();
    assert_eq!((caught & 1, caught >> 14 & 1), (0, 1), "SIGHUP is not caught, SIGTERM is");
    assert!(!is_free(rig.ports[3]), "it still serves");
    running.signal("-TERM");
    let (status, errors) = running.end();
    assert!(status.success(), "{status}: {errors}");
    assert!(rig.all_gone());
}

#[test]
fn a_child_that_dies_at_start_is_shown_with_its_last_lines() {
    let rig = Rig::new();
    rig.tell("speculative", "die");
    let output = rig.command(&[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    assert!(said.contains("the speculative engine ended by itself"), "{said}");
    assert!(said.contains("no such tensor"), "{said}");
    assert!(rig.ports.into_iter().all(is_free), "something still listens");
}

#[test]
fn a_child_that_dies_later_ends_the_others() {
    let rig = Rig::new();
    let running = rig.start();
    signal("-KILL", rig.ids()[1]);
    let (status, errors) = running.end();
    assert_eq!(status.code(), Some(1));
    assert!(errors.contains("the throughput engine ended by itself"), "{errors}");
    assert!(rig.all_gone());
}

#[test]
fn nobody_is_left_behind_when_it_is_killed() {
    let rig = Rig::new();
    rig.tell("throughput", "stubborn");
    let running = rig.start();
    running.signal("-KILL");
    running.end();
    assert!(rig.all_gone());
}

#[test]
fn a_second_wish_ends_a_stubborn_child_at_once() {
    let rig = Rig::new();
    rig.tell("router", "stubborn");
    let running = rig.start();
    running.signal("-TERM");
    pause();
    running.signal("-TERM");
    let (status, errors) = running.end();
    assert!(status.success(), "{status}: {errors}");
    assert!(rig.all_gone());
}

#[test]
fn an_engine_that_never_becomes_ready_is_named() {
    let rig = Rig::new();
    rig.tell("throughput", "mute");
    let output = rig.command(&["--wait-max", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    assert!(said.contains("not ready after 1 s (--wait-max): "), "{said}");
    assert!(said.contains("throughput engine"), "{said}");
    assert!(rig.all_gone());
}

#[test]
fn what_cannot_be_run_is_refused_before_anything_starts() {
    let rig = Rig::new();
    let held = TcpListener::bind(("127.0.0.1", rig.ports[2])).unwrap();
    let output = rig.command(&[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let wanted = format!("port {} is in use", rig.ports[2]);
    assert!(said(&output).contains(&wanted) && said(&output).contains("--speculative"));
    drop(held);
    for words in [
        &["--high", "2", "--low", "3"][..],
        &["--no-such-flag"],
        &["--draft-max", "99"],
        &["--wait-max", "18446744073709551615"],
    ] {
        let output = rig.command(words).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{words:?}: {}", said(&output));
    }
    fs::remove_file(rig.path("crossover-router")).unwrap();
    let output = rig.command(&[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("crossover-router is missing"), "{}", said(&output));
    assert!(!rig.path("router.pid").exists() && !Path::exists(&rig.path("speculative.pid")));
}
