//! An engine of the tests' own, and the router as a child process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_crossover-router");
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// An engine whose streams end when they are told to.
pub(crate) struct Engine {
    pub(crate) address: String,
    gate: Arc<(Mutex<bool>, Condvar)>,
}

impl Engine {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let shared = Arc::clone(&gate);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let gate = Arc::clone(&shared);
                thread::spawn(move || serve(stream.unwrap(), &gate));
            }
        });
        Self { address, gate }
    }

    pub(crate) fn open_gate(&self) {
        *self.gate.0.lock().unwrap() = true;
        self.gate.1.notify_all();
    }
}

pub(crate) fn serve(stream: TcpStream, gate: &(Mutex<bool>, Condvar)) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    loop {
        let (mut path, mut len) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if path.is_empty() {
                path = line.split(' ').nth(1)?.to_owned();
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                len = value.trim().parse().ok()?;
            }
            if line == "\r\n" {
                break;
            }
        }
        reader.read_exact(&mut vec![0; len]).ok()?;
        if path == "/stream" {
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n";
            writer.write_all(head.as_bytes()).ok()?;
            let closed = gate.0.lock().unwrap();
            drop(gate.1.wait_timeout_while(closed, SOON, |open| !*open).unwrap());
            writer.write_all(b"4\r\nlast\r\n0\r\n\r\n").ok()?;
        } else {
            let body = match path.as_str() {
                "/v1/models" => r#"{"data":[{"id":"m"}]}"#,
                "/server_info" => r#"{"model":"m","quantisation":"q4_1","device":"cpu:2"}"#,
                _ => "ok",
            };
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            writer.write_all(format!("{head}{body}").as_bytes()).ok()?;
        }
    }
}

/// A collector of spans; gives the bodies it was sent.
pub(crate) fn collector() -> (String, Receiver<serde_json::Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (sender, stream) = (sender.clone(), stream.unwrap());
            thread::spawn(move || collect(stream, &sender));
        }
    });
    (address, receiver)
}

fn collect(stream: TcpStream, sender: &Sender<serde_json::Value>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        assert!(head.starts_with("POST /v1/traces "), "{head}");
        let head = head.to_lowercase();
        let len = head.split("content-length: ").nth(1)?.split('\r').next()?.parse().ok()?;
        let mut body = vec![0; len];
        reader.read_exact(&mut body).ok()?;
        sender.send(serde_json::from_slice(&body).unwrap()).ok()?;
        writer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").ok()?;
    }
}

pub(crate) struct Router {
    pub(crate) child: Child,
    pub(crate) listen: String,
    pub(crate) admin: String,
    pub(crate) folder: TempDir,
}

impl Drop for Router {
    fn drop(&mut self) {
        // Gone already in most tests.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub(crate) fn file(engine: &Engine, extra: &str) -> String {
    format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nthreads = 2\n{extra}\n\
         [shutdown]\nsettle_ms = 300\n[health]\ninterval_ms = 20\n\
         [[endpoint]]\nname = \"s\"\nrole = \"speculative\"\nurl = \"http://{}\"\n",
        engine.address
    )
}

pub(crate) fn write(folder: &TempDir, text: &str) -> PathBuf {
    let path = folder.path().join("router.toml");
    std::fs::write(&path, text).unwrap();
    path
}

pub(crate) fn once(text: &str, flags: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, text);
    Command::new(BINARY).arg("--config").arg(path).args(flags).output().unwrap()
}

impl Router {
    pub(crate) fn start(text: &str) -> Self {
        Self::start_as(text, |path| {
            let mut command = Command::new(BINARY);
            command.arg("--config").arg(path);
            command
        })
    }

    pub(crate) fn start_as(text: &str, command: impl FnOnce(&PathBuf) -> Command) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = write(&folder, text);
        let mut child = command(&path).env("NO_COLOR", "1").stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.find(|it| it.as_ref().unwrap().contains("starting")).unwrap().unwrap();
        thread::spawn(move || lines.for_each(drop));
        let address = |name: &str| {
            let rest = first.split(&format!("{name}=")).nth(1).unwrap();
            rest.split_whitespace().next().unwrap().to_owned()
        };
        let router = Self { listen: address("listen"), admin: address("admin"), child, folder };
        router.until(|it| it.admin("/readyz").contains("200 OK"));
        router
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    pub(crate) fn until(&self, is_so: impl Fn(&Self) -> bool) {
        let steps = SOON.as_millis() / 10;
        for _ in 0..steps {
            if is_so(self) {
                return;
            }
            pause(10);
        }
        panic!("it never came to be");
    }

    pub(crate) fn admin(&self, path: &str) -> String {
        exchange(&self.admin, &format!("GET {path} HTTP/1.0\r\n\r\n")).unwrap_or_default()
    }

    pub(crate) fn metric(&self, line: &str) -> bool {
        self.admin("/metrics").lines().any(|it| it == format!("crossover_router_{line}"))
    }

    /// Opens a stream and reads the beginning of its answer.
    pub(crate) fn stream(&self) -> TcpStream {
        let mut stream = TcpStream::connect(&self.listen).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let request = "POST /stream HTTP/1.1\r\nhost: r\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = Vec::new();
        while !text.ends_with(b"first\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            text.push(byte[0]);
        }
        stream
    }

    pub(crate) fn wait(&mut self) -> Option<i32> {
        for _ in 0..SOON.as_millis() / 10 {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            pause(10);
        }
        panic!("it does not end");
    }
}

pub(crate) fn pause(millis: u64) {
    // The tests' own waiting, with no runtime around.
    let never = Condvar::new();
    let closed = Mutex::new(());
    drop(never.wait_timeout(closed.lock().unwrap(), Duration::from_millis(millis)).unwrap());
}

pub(crate) fn exchange(address: &str, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(SOON))?;
    stream.write_all(request.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Reads a stream to its end; true if it ended well.
pub(crate) fn ends_well(mut stream: TcpStream) -> bool {
    let mut rest = Vec::new();
    while !rest.ends_with(b"last\r\n0\r\n\r\n") {
        let mut piece = [0; 1024];
        match stream.read(&mut piece) {
            Ok(count @ 1..) => rest.extend_from_slice(&piece[..count]),
            Ok(0) | Err(_) => return false,
        }
    }
    true
}
