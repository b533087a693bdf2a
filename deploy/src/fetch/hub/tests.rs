use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::thread;

use tempfile::TempDir;

use super::super::{Cache, FetchError, digest};
use super::{Hub, Repository, fetch};

const WEIGHTS: &[u8] = b"weights";

/// A hub of one repository; connection by connection, until it has served `serves` of them.
/// The first transfer of the weights breaks after three bytes.
struct FakeHub {
    hub: Hub,
    cache: TempDir,
    thread: Option<thread::JoinHandle<Vec<String>>>,
}

impl FakeHub {
    fn new(names: &[&str], sha256: &str, serves: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}/", listener.local_addr().unwrap());
        let siblings: Vec<_> = names
            .iter()
            .map(|name| match name.ends_with(".gguf") || name.ends_with(".safetensors") {
                true => serde_json::json!({
                    "rfilename": name, "size": WEIGHTS.len(), "lfs": { "sha256": sha256 }
                }),
                false => serde_json::json!({ "rfilename": name, "size": 2 }),
            })
            .collect();
        let listing = serde_json::json!({ "sha": "abc123", "siblings": siblings }).to_string();
        let thread = thread::spawn(move || {
            let serve = |_| serve(&listener.accept().unwrap().0, &listing);
            (0..serves).map(serve).collect()
        });
        let hub = Hub { endpoint: endpoint.trim_end_matches('/').to_owned(), token: None };
        Self { hub, cache: tempfile::tempdir().unwrap(), thread: Some(thread) }
    }

    fn fetch(&self, text: &str) -> Result<PathBuf, FetchError> {
        let repository = Repository::parse(text).unwrap();
        fetch(&repository, &self.hub, &Cache::at(self.cache.path()), &mut |_| ())
    }

    fn asked(&mut self) -> Vec<String> {
        self.thread.take().unwrap().join().unwrap()
    }
}

/// Answers one request and closes; returns its first line and range.
fn serve(stream: &TcpStream, listing: &str) -> String {
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let asked = lines.next().unwrap();
    let heads: Vec<_> = lines.take_while(|it| !it.is_empty()).collect();
    let range = heads.iter().find_map(|it| it.strip_prefix("range: bytes=")).map(str::to_owned);
    let is_weights = asked.contains("/resolve/") && !asked.contains(".json");
    let (status, body, len) = match (&range, is_weights) {
        (None, true) => ("200 OK", &WEIGHTS[..3], WEIGHTS.len()),
        (Some(_), true) => ("206 Partial Content", &WEIGHTS[3..], WEIGHTS.len() - 3),
        _ if asked.contains("/resolve/") => ("200 OK", &b"{}"[..], 2),
        _ if asked.contains("/missing/") => ("404 Not Found", &b""[..], 0),
        _ => ("200 OK", listing.as_bytes(), listing.len()),
    };
    let mut stream = stream;
    write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {len}\r\nconnection: close\r\n\r\n")
        .unwrap();
    stream.write_all(body).unwrap();
    format!("{asked} {}", range.unwrap_or_default())
}

fn weights_sha256() -> String {
    digest::copy(&mut &WEIGHTS[..], &mut std::io::sink(), &mut |_| ()).unwrap()
}

#[test]
fn a_broken_transfer_is_resumed_and_checked() {
    let mut rig = FakeHub::new(&["README.md", "m.gguf"], &weights_sha256(), 3);
    let model = rig.fetch("o/n").unwrap();
    assert!(model.ends_with("hub--o--n--abc123/m.gguf"), "{model:?}");
    assert_eq!(fs::read(&model).unwrap(), WEIGHTS);
    let asked = rig.asked();
    assert!(asked[0].starts_with("GET /api/models/o/n/revision/main"), "{asked:?}");
    assert!(asked[2].starts_with("GET /o/n/resolve/abc123/m.gguf") && asked[2].ends_with(" 3-"));
    // The hub is gone now, and what is here is enough.
    assert_eq!(rig.fetch("o/n").unwrap(), model);
}

/// A hub whose last answer has no end, after `answers` whole ones; what fetching from it comes to.
fn from_an_endless_hub(answers: &'static [&'static str]) -> FetchError {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let hub = Hub { endpoint: format!("http://{}", listener.local_addr().unwrap()), token: None };
    let thread = thread::spawn(move || {
        for answer in answers {
            serve(&listener.accept().unwrap().0, answer);
        }
        let mut stream = listener.accept().unwrap().0;
        let mut lines = BufReader::new(&stream).lines().map(Result::unwrap);
        lines.find(|it| it.is_empty()).unwrap();
        write!(stream, "HTTP/1.1 200 OK\r\n\r\n").unwrap();
        // Until the other side has had enough.
        while stream.write_all(&[b' '; 4096]).is_ok() {}
    });
    let cache = tempfile::tempdir().unwrap();
    let repository = Repository::parse("o/n").unwrap();
    let error = fetch(&repository, &hub, &Cache::at(cache.path()), &mut |_| ()).unwrap_err();
    thread.join().unwrap();
    error
}

#[test]
fn an_answer_without_end_is_not_read_to_it() {
    const LISTING: &str = r#"{"sha": "abc123", "siblings": [{"rfilename": "m.gguf", "size": 7}]}"#;
    let error = from_an_endless_hub(&[LISTING]);
    assert!(matches!(error, FetchError::Damaged { .. }), "{error}");
    let error = from_an_endless_hub(&[]);
    assert!(error.to_string().contains("more than 16 MiB"), "{error}");
}

#[test]
fn what_is_here_is_enough_where_nothing_can_be_written() {
    let mut rig = FakeHub::new(&["m.gguf"], &weights_sha256(), 4);
    let model = rig.fetch("o/n").unwrap();
    // A directory in the listing's place stands for a cache that cannot be written.
    let known = rig.cache.path().join("hub--o--n--main.json");
    fs::remove_file(&known).unwrap();
    fs::create_dir(&known).unwrap();
    assert_eq!(rig.fetch("o/n").unwrap(), model);
    rig.asked();
}

#[test]
fn a_directory_takes_configuration_tokenizer_and_all_shards() {
    let names = [
        "config.json",
        "tokenizer.json",
        "model-1.safetensors",
        "model.safetensors.index.json",
        "onnx/model.safetensors",
        "pytorch_model.bin",
    ];
    let mut rig = FakeHub::new(&names, &weights_sha256(), 6);
    let model = rig.fetch("o/n").unwrap();
    rig.asked();
    let mut held: Vec<_> = fs::read_dir(model)
        .unwrap()
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    held.sort();
    let wanted =
        ["config.json", "model-1.safetensors", "model.safetensors.index.json", "tokenizer.json"];
    assert_eq!(held, wanted);
}

#[test]
fn altered_bytes_are_not_kept() {
    let rig = FakeHub::new(&["m.gguf"], "00", 3);
    let error = rig.fetch("o/n").unwrap_err();
    assert!(matches!(error, FetchError::Damaged { .. }), "{error}");
    assert!(!rig.cache.path().join("hub--o--n--abc123/m.gguf").exists());
}

#[test]
fn several_packed_files_have_to_be_named() {
    let rig = FakeHub::new(&["a.gguf", "b.gguf"], "00", 1);
    let error = rig.fetch("o/n").unwrap_err();
    assert!(error.to_string().contains("a.gguf, b.gguf"), "{error}");
}

#[test]
fn a_listing_names_no_file_outside_the_cache() {
    let rig = FakeHub::new(&["../../m.gguf", "/tmp/m.gguf", ".hidden.gguf", "a/m.gguf"], "00", 1);
    let error = rig.fetch("o/n").unwrap_err();
    assert!(matches!(error, FetchError::NotFound { .. }), "{error}");
}

#[test]
fn a_repository_that_is_not_there_is_named() {
    let rig = FakeHub::new(&[], "00", 1);
    let error = rig.fetch("missing/n").unwrap_err();
    assert!(matches!(error, FetchError::NotFound { .. }), "{error}");
}

#[test]
fn a_hub_that_cannot_be_reached_is_offline() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let hub = Hub { endpoint: format!("http://{closed}"), token: None };
    let cache = tempfile::tempdir().unwrap();
    let repository = Repository::parse("o/n").unwrap();
    let error = fetch(&repository, &hub, &Cache::at(cache.path()), &mut |_| ()).unwrap_err();
    assert!(matches!(error, FetchError::Offline { .. }), "{error}");
}
