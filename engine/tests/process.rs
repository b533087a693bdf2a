//! The binary as a process: exit codes, what it says, its port, its signals.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

fn engine(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crossover-engine"));
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs it to its end: the code, and the last line that it said.
fn end(words: &[&str]) -> (Option<i32>, String) {
    last_line(&engine(words).output().unwrap())
}

fn last_line(output: &Output) -> (Option<i32>, String) {
    let said = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    (output.status.code(), said.lines().last().unwrap_or_default().to_owned())
}

/// A file of this test, gone with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, content: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("{}-{name}", std::process::id()));
        std::fs::write(&path, content).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

#[test]
fn wrong_words_end_with_64_and_all_of_them_are_named() {
    let words = ["--mode", "eagle3", "--listen", "x", "--memory", "0"];
    let output = engine(&words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64));
    for flag in ["model", "draft", "listen", "memory"] {
        assert!(said.contains(&format!("--{flag}: ")), "{flag} is missing in\n{said}");
    }
    assert_eq!(end(&["--no-such-flag"]).0, Some(64));
    assert_eq!(end(&["--model", "m", "--config", "/no/such/file"]).0, Some(64));
    let file = Scratch::new("bad.toml", b"model = [1]\n");
    let (code, line) = end(&["--config", file.path()]);
    assert_eq!(code, Some(64), "{line}");
    assert_eq!(end(&["--model", "m", "--log", "=["]).0, Some(64));
}

#[test]
fn questions_are_answered_with_0() {
    assert_eq!(end(&["--help"]).0, Some(0));
    assert_eq!(end(&["--version"]).0, Some(0));
    let output = engine(&["--model", "m", "--print-config"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("model = \"m\"\n"));
}

#[test]
fn a_model_that_cannot_be_read_ends_with_1_and_one_line() {
    let corrupt = Scratch::new("corrupt.gguf", b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff");
    for path in ["/no/such/model.gguf", corrupt.path()] {
        let (code, line) = end(&["--model", path, "--listen", "127.0.0.1:0"]);
        assert_eq!(code, Some(1), "{line}");
        assert!(line.starts_with("crossover-engine: ") && line.contains(path), "{line}");
        let (code, line) = end(&["inspect", path]);
        assert_eq!(code, Some(1), "{line}");
        assert!(line.contains(path), "{line}");
    }
}

#[test]
fn a_port_that_is_taken_ends_with_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, line) = end(&["--model", "m", "--listen", &address]);
    assert_eq!(code, Some(1));
    assert!(line.starts_with(&format!("crossover-engine: cannot listen on {address}: ")), "{line}");
}

/// Loading from a pipe that nobody fills takes for ever: time to look at the door.
#[cfg(target_os = "linux")]
#[test]
fn the_door_is_open_while_the_model_loads_and_a_signal_ends_it() {
    let pipe = std::env::temp_dir().join(format!("{}-pipe.gguf", std::process::id()));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let listen = address.to_string();
    let mut child = engine(&["--model", pipe.to_str().unwrap(), "--listen", &listen]);
    let socket = std::env::temp_dir().join(format!("{}-notify", std::process::id()));
    let systemd = UnixDatagram::bind(&socket).unwrap();
    let child = child.env("NOTIFY_SOCKET", &socket).spawn().unwrap();
    assert_eq!(status(address, "/health"), "HTTP/1.1 503");
    assert_eq!(status(address, "/livez"), "HTTP/1.1 200");
    terminate(&child);
    let output = child.wait_with_output().unwrap();
    std::fs::remove_file(pipe).unwrap();
    std::fs::remove_file(socket).unwrap();
    assert_eq!(last_line(&output).0, Some(0), "{output:?}");
    // It was never ready, and said that it stops.
    let mut heard = [0; 64];
    let len = systemd.recv(&mut heard).unwrap();
    assert_eq!(String::from_utf8_lossy(&heard[..len]).trim_end(), "STOPPING=1");
}

fn terminate(child: &Child) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
}

/// The start of the answer, once there is one.
fn status(address: SocketAddr, path: &str) -> String {
    let connect = || TcpStream::connect(address).ok();
    let mut stream = std::iter::repeat_with(connect).take(1_000_000).flatten().next().unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer[..12].to_owned()
}
