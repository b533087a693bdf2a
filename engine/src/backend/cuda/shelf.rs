//! Where the target's matrices are put: memory that engines of the same model on the same card
//! share. Who comes first lays them out, who comes later maps them; each offers them to the next.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernels::cuda::{Buffer, Device, DeviceError, Shared};
use kernels::ops::matmul::Format;

pub(super) use self::exchange::Offer;
use self::exchange::Turn;
use super::sizes::positions;
use super::target::Target;
use super::weights::Source;
use super::{CudaOptions, TensorMap};
use crate::backend::BackendError;
use crate::model::ModelConfig;

mod exchange;

/// A matrix of at least this size has memory of its own; smaller ones share a piece of it.
const PIECE_BYTES: usize = 32 << 20;
/// Where a matrix may begin.
const ALIGN: usize = 256;

/// What an engine holds: as one tells it to another.
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize, serde::Serialize)]
struct Contents {
    /// Model, layout and card; equal contents only for equal keys.
    key: String,
    /// Bytes of each piece of memory.
    pieces: Vec<usize>,
    /// In the order in which they are laid out.
    matrices: Vec<Place>,
}

/// Where one matrix lies.
#[derive(Clone, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
struct Place {
    name: String,
    words: usize,
    piece: usize,
    /// Bytes from the start of the piece.
    at: usize,
}

/// Shared memory, and the descriptor with which others map it.
type Piece = (Arc<Shared>, OwnedFd);

/// The matrices of one model on one card.
#[derive(Debug)]
pub(super) struct Shelf {
    device: Arc<Device>,
    dir: PathBuf,
    contents: Contents,
    pieces: Vec<Piece>,
    /// How many of the matrices were taken; `None` while they are laid out here.
    taken: Option<usize>,
    /// Bytes that are used of the piece that takes small matrices.
    used: usize,
    /// That piece.
    open: usize,
    /// No other engine looks for weights, or lays them out, until these are offered.
    _turn: Turn,
}

/// Reads the target, its matrices onto the shelf that the options ask for.
pub(super) fn target(
    source: Source<'_>,
    device: &Arc<Device>,
    model: &ModelConfig,
    options: &CudaOptions,
) -> Result<(Target, Option<Shelf>), BackendError> {
    let shelf = of(device, model, source.tensors, options).map(RefCell::new);
    let source = Source { shelf: shelf.as_ref(), ..source };
    let target = Target::read(source, model, positions(options))?;
    Ok((target, shelf.map(RefCell::into_inner)))
}

/// The shelf that the options ask for. Where it cannot be had, the log says why, and the weights
/// are this process's alone.
fn of(
    device: &Arc<Device>,
    model: &ModelConfig,
    tensors: Option<&TensorMap>,
    options: &CudaOptions,
) -> Option<Shelf> {
    let dir = options.share.as_deref()?;
    let key = key(device, model, tensors, options.weights).map_err(|error| error.to_string());
    let shelf = key.and_then(|key| Shelf::open(device, dir, key));
    shelf.inspect_err(|why| tracing::warn!("weights are not shared: {why}")).ok()
}

impl Shelf {
    /// Takes what an engine that is found through the folder `dir` holds under `key`, or begins to
    /// lay out anew.
    fn open(device: &Arc<Device>, dir: &Path, key: String) -> Result<Self, String> {
        let said = |error: std::io::Error| format!("{}: {error}", dir.display());
        let turn = exchange::turn(dir).map_err(said)?;
        let mut shelf = Self {
            device: Arc::clone(device),
            dir: dir.to_owned(),
            contents: Contents { key, ..Contents::default() },
            pieces: Vec::new(),
            taken: None,
            used: 0,
            open: 0,
            _turn: turn,
        };
        if let Some((contents, fds)) = exchange::ask(dir, &shelf.contents.key).map_err(said)? {
            let map = |(fd, bytes): (OwnedFd, &usize)| {
                let memory = device.open_shared(fd.as_fd(), *bytes)?;
                Ok((Arc::new(memory), fd))
            };
            let pieces: Result<_, BackendError> =
                fds.into_iter().zip(&contents.pieces).map(map).collect();
            shelf.pieces = pieces.map_err(|error| error.detail)?;
            shelf.contents = contents;
            shelf.taken = Some(0);
        } else {
            // Also tells whether the driver can share memory at all.
            shelf.begin_piece(PIECE_BYTES).map_err(|error| error.to_string())?;
        }
        Ok(shelf)
    }

    /// Memory for the next matrix, and whether it stands there already.
    pub(super) fn place(
        &mut self,
        name: &str,
        words: usize,
    ) -> Result<(Buffer<u32>, bool), BackendError> {
        let Some(next) = self.taken else {
            let place = self.lay(name, words)?;
            let buffer = self.device.within(&self.pieces[place.piece].0, place.at, words);
            self.contents.matrices.push(place);
            return Ok((buffer, false));
        };
        let place = self.contents.matrices.get(next).filter(|it| it.name == name);
        let place = place.filter(|it| it.words == words).ok_or_else(|| BackendError {
            detail: format!("the weights that another engine shares have no {name} next"),
        })?;
        self.taken = Some(next + 1);
        Ok((self.device.within(&self.pieces[place.piece].0, place.at, words), true))
    }

    fn lay(&mut self, name: &str, words: usize) -> Result<Place, BackendError> {
        let bytes = words * size_of::<u32>();
        let place = |piece, at| Place { name: name.to_owned(), words, piece, at };
        if PIECE_BYTES <= bytes {
            return Ok(place(self.begin_piece(bytes)?, 0));
        }
        if self.pieces[self.open].0.bytes() < self.used + bytes {
            (self.open, self.used) = (self.begin_piece(PIECE_BYTES)?, 0);
        }
        let at = self.used;
        self.used = (at + bytes).next_multiple_of(ALIGN);
        Ok(place(self.open, at))
    }

    fn begin_piece(&mut self, bytes: usize) -> Result<usize, DeviceError> {
        let (memory, fd) = self.device.share(bytes)?;
        self.contents.pieces.push(memory.bytes());
        self.pieces.push((Arc::new(memory), fd));
        Ok(self.pieces.len() - 1)
    }

    /// Offers everything to engines that come later. They get it as long as the offer stands; what
    /// they have got is theirs, whatever becomes of this process.
    pub(super) fn offer(self) -> Option<(Offer, Told)> {
        let told = Told {
            is_taken: self.taken.is_some(),
            bytes: self.contents.pieces.iter().map(|it| *it as u64).sum(),
        };
        let fds = self.pieces.into_iter().map(|it| it.1).collect();
        let offer = exchange::offer(&self.dir, &self.contents, fds);
        let at = self.dir.display();
        let offer = offer.inspect_err(|why| tracing::warn!("weights are not offered: {at}: {why}"));
        Some((offer.ok()?, told))
    }
}

/// What came of it, for the log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Told {
    /// Whether another engine had laid them out.
    pub is_taken: bool,
    pub bytes: u64,
}

/// Equal for engines whose matrices have the same bits in the same places.
fn key(
    device: &Device,
    model: &ModelConfig,
    tensors: Option<&TensorMap>,
    format: Format,
) -> Result<String, BackendError> {
    let mut hasher = DefaultHasher::new();
    for (name, tensor) in tensors.into_iter().flatten() {
        hasher.write(name.as_bytes());
        hasher.write(format!("{:?} {} {}", tensor.dtype, tensor.rows, tensor.cols).as_bytes());
        hasher.write(&tensor.bytes);
    }
    let mut shape = DefaultHasher::new();
    shape.write(format!("{:?}", ModelConfig { name: String::new(), ..model.clone() }).as_bytes());
    let mut key = format!("{} {}", kernels::cuda::version(), device.identifier()?);
    let from = if tensors.is_some() { "read" } else { "random" };
    write!(key, " {from} {format:?} {:016x} {:016x}", shape.finish(), hasher.finish())
        .expect("a string takes all");
    Ok(key)
}
