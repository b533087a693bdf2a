//! How engines of one user find each other's weights: a folder with a socket for each that offers
//! some. Nothing here needs a GPU.

use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kernels::cuda::{receive_descriptor, send_descriptor};

use super::Contents;

/// Another engine has this long to lay out its weights before this one goes on alone.
const TURN_MAX: Duration = Duration::from_secs(600);
/// One message of an exchange.
const MESSAGE_MAX: Duration = Duration::from_secs(10);
const KEY_BYTES_MAX: u64 = 256;
const CONTENTS_BYTES_MAX: u64 = 16 << 20;

/// Held by the one engine that looks for weights or lays them out.
#[derive(Debug)]
pub(super) struct Turn {
    _lock: File,
}

/// Waits for a turn.
pub(super) fn turn(dir: &Path) -> io::Result<Turn> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let file = File::create(dir.join("lock"))?;
    let (done, locked) = sync_channel(1);
    // The system has no lock with a deadline; a thread that waits too long is left behind.
    thread::Builder::new().name("weights-turn".to_owned()).spawn(move || {
        let outcome = file.lock().map(|()| Turn { _lock: file });
        drop(done.send(outcome));
    })?;
    let late = || io::Error::new(io::ErrorKind::TimedOut, "another engine takes too long");
    locked.recv_timeout(TURN_MAX).map_err(|_| late())?
}

/// What an engine offers under `key`, if one does. A socket that nobody answers is removed.
pub(super) fn ask(dir: &Path, key: &str) -> io::Result<Option<(Contents, Vec<OwnedFd>)>> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_none_or(|it| it != "sock") {
            continue;
        }
        match UnixStream::connect(&path).and_then(|it| ask_one(&it, key)) {
            Ok(Some(found)) => return Ok(Some(found)),
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                drop(fs::remove_file(&path));
            }
            Err(error) => tracing::warn!("weights at {}: {error}", path.display()),
        }
    }
    Ok(None)
}

fn ask_one(mut stream: &UnixStream, key: &str) -> io::Result<Option<(Contents, Vec<OwnedFd>)>> {
    stream.set_read_timeout(Some(MESSAGE_MAX))?;
    stream.set_write_timeout(Some(MESSAGE_MAX))?;
    stream.write_all(format!("{key}\n").as_bytes())?;
    let mut len = [0; 8];
    stream.read_exact(&mut len)?;
    let len = u64::from_le_bytes(len);
    let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    if len == 0 {
        return Ok(None);
    }
    if CONTENTS_BYTES_MAX < len {
        return Err(wrong("its list is too long"));
    }
    let mut text = vec![0; usize::try_from(len).expect("bounded")];
    stream.read_exact(&mut text)?;
    let contents: Contents = serde_json::from_slice(&text)?;
    contents.check(key).map_err(wrong)?;
    let fds: io::Result<Vec<OwnedFd>> =
        contents.pieces.iter().map(|_| receive_descriptor(stream)).collect();
    Ok(Some((contents, fds?)))
}

impl Contents {
    /// That it is under this key and that every matrix lies in its piece.
    fn check(&self, key: &str) -> Result<(), &'static str> {
        if self.key != key {
            return Err("it answers for other weights");
        }
        let lies_within = |it: &super::Place| {
            let bytes = it.words.checked_mul(size_of::<u32>());
            let end = bytes.and_then(|bytes| it.at.checked_add(bytes));
            let piece = self.pieces.get(it.piece);
            it.at.is_multiple_of(super::ALIGN)
                && end.zip(piece).is_some_and(|(end, piece)| end <= *piece)
        };
        if self.matrices.iter().all(lies_within) { Ok(()) } else { Err("a matrix lies outside") }
    }
}

/// Stands until it is dropped.
#[derive(Debug)]
pub(in crate::backend::cuda) struct Offer {
    path: PathBuf,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Hands `contents` and the descriptors of its pieces to everyone who asks with its key.
pub(super) fn offer(dir: &Path, contents: &Contents, fds: Vec<OwnedFd>) -> io::Result<Offer> {
    let path = dir.join(format!("{}.sock", process::id()));
    drop(fs::remove_file(&path));
    let listener = UnixListener::bind(&path)?;
    let text = serde_json::to_vec(contents)?;
    let (key, ends) = (contents.key.clone(), Arc::new(AtomicBool::new(false)));
    let is_over = Arc::clone(&ends);
    let thread = thread::Builder::new().name("weights".to_owned()).spawn(move || {
        for stream in listener.incoming() {
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            let answered = stream.and_then(|it| answer(&it, &key, &text, &fds));
            if let Err(error) = answered {
                tracing::warn!("an engine that asked for weights: {error}");
            }
        }
    })?;
    Ok(Offer { path, ends, thread: Some(thread) })
}

fn answer(mut stream: &UnixStream, key: &str, text: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
    stream.set_read_timeout(Some(MESSAGE_MAX))?;
    stream.set_write_timeout(Some(MESSAGE_MAX))?;
    let mut asked = String::new();
    BufReader::new(stream.take(KEY_BYTES_MAX)).read_line(&mut asked)?;
    if asked.trim_end() != key {
        return stream.write_all(&0_u64.to_le_bytes());
    }
    stream.write_all(&(text.len() as u64).to_le_bytes())?;
    stream.write_all(text)?;
    fds.iter().try_for_each(|it| send_descriptor(stream, it.as_fd()))
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // Wakes it; where that fails, the thread ends with the process.
        let woken = UnixStream::connect(&self.path);
        drop(fs::remove_file(&self.path));
        if woken.is_ok()
            && let Some(thread) = self.thread.take()
        {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests;
