//! The user's cache of models: who may write to an entry, and how a file gets its name.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{Access, access};

use super::{FetchError, Progress};
use crate::clock;
use crate::config::raw::Environment;

/// How long to wait for another process that fetches the same thing.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(30 * 60);
const LOCK_LOOK_EVERY: Duration = Duration::from_millis(200);

/// `<root>/<entry>/<file>` are whole files; `<root>/.<entry>.lock` and `<root>/.<entry>.work/`
/// belong to whoever fetches right now.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// The right to write to one entry, with an empty scratch directory on the same file system.
/// Another process gets it when this one drops it or dies.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) work: PathBuf,
    entry: PathBuf,
    leftovers: Leftovers,
    _lock: File,
}

/// What becomes of unfinished files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leftovers {
    Clear,
    /// Kept for the next claim, which goes on from there.
    Resume,
}

impl Cache {
    /// `XDG_CACHE_HOME/crossover/models`, or the same under `~/.cache`.
    ///
    /// # Errors
    /// `NoHome` when the environment names neither.
    pub fn of_user(environment: &Environment) -> Result<Self, FetchError> {
        let caches = match (&environment.cache_home, &environment.home) {
            (Some(caches), _) => caches.clone(),
            (None, Some(home)) => home.join(".cache"),
            (None, None) => return Err(FetchError::NoHome),
        };
        Ok(Self::at(&caches.join("crossover").join("models")))
    }

    /// A cache in a directory of choice, which need not exist yet.
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The directory of one entry.
    pub fn entry(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Waits until nobody else fetches `name`, at most half an hour; checks that `needed` bytes
    /// would fit.
    pub(super) fn claim(
        &self,
        name: &str,
        needed: u64,
        leftovers: Leftovers,
        tell: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Claim, FetchError> {
        let entry = self.entry(name);
        fs::create_dir_all(&entry).map_err(|it| FetchError::write(&entry, it))?;
        let path = self.root.join(format!(".{name}.lock"));
        let lock = File::create(&path).map_err(|it| FetchError::write(&path, it))?;
        self.wait_for(&lock, &path, tell)?;
        let work = self.root.join(format!(".{name}.work"));
        if leftovers == Leftovers::Clear {
            clear(&work)?;
        }
        fs::create_dir_all(&work).map_err(|it| FetchError::write(&work, it))?;
        let claim = Claim { work, entry, leftovers, _lock: lock };
        room_for(&self.root, needed, free(&self.root))?;
        Ok(claim)
    }

    /// Whether a claim on `needed` bytes could be had, without making anything.
    pub(super) fn foresee(&self, needed: u64) -> Result<(), FetchError> {
        let absolute = std::path::absolute(&self.root).unwrap_or_else(|_| self.root.clone());
        let there = absolute.ancestors().find(|it| it.exists()).unwrap_or(Path::new("/"));
        access(there, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|it| FetchError::write(there, it.into()))?;
        room_for(there, needed, free(there))
    }

    fn wait_for(
        &self,
        lock: &File,
        path: &Path,
        tell: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), FetchError> {
        let until = clock::now() + LOCK_WAIT_MAX;
        let mut told = false;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(()),
                Err(TryLockError::Error(it)) => return Err(FetchError::write(path, it)),
                Err(TryLockError::WouldBlock) if until <= clock::now() => {
                    return Err(FetchError::Busy { lock: path.to_owned() });
                }
                Err(TryLockError::WouldBlock) => {
                    if !told {
                        tell(Progress::Note("another process is fetching the model; waiting"));
                    }
                    told = true;
                    thread::park_timeout(LOCK_LOOK_EVERY);
                }
            }
        }
    }
}

impl Claim {
    /// Gives a finished file of the scratch directory its name in the entry: whole or not at all.
    pub(super) fn keep(&self, made: &Path, file: &str) -> Result<PathBuf, FetchError> {
        let place = self.entry.join(file);
        let bytes = File::open(made).and_then(|it| it.sync_all());
        bytes
            .and_then(|()| fs::rename(made, &place))
            .map_err(|it| FetchError::write(&place, it))?;
        Ok(place)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // What cannot be removed is met by the next claim.
        drop(match self.leftovers {
            Leftovers::Clear => fs::remove_dir_all(&self.work),
            Leftovers::Resume => fs::remove_dir(&self.work),
        });
    }
}

fn clear(work: &Path) -> Result<(), FetchError> {
    match fs::remove_dir_all(work) {
        Err(it) if it.kind() != std::io::ErrorKind::NotFound => Err(FetchError::write(work, it)),
        _ => Ok(()),
    }
}

/// Bytes free for this user at `path`, where the system tells.
fn free(path: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(path).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

pub(super) fn room_for(at: &Path, needed: u64, free: Option<u64>) -> Result<(), FetchError> {
    match free {
        Some(bytes) if bytes < needed => {
            Err(FetchError::NoSpace { at: at.to_owned(), needed, free })
        }
        _ => Ok(()),
    }
}
