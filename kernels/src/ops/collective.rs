//! What several GPUs (ranks) have parts of, brought together over memory that each of them reaches:
//! `stream[r, n] += part of rank 0 + part of rank 1 + ...`, and slices of rows of logits.
//!
//! Sums are added in the order of ranks, so that every rank has the same bits, and a row's do not
//! depend on how many rows there are. Every rank has to queue the same calls in the same order.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::matmul::Captured;
use super::{block_values, whole};
use crate::cuda::{Arg, Buffer, Device, DeviceError, Grid, Shared};

/// Ranks at most.
pub const RANKS_MAX: usize = 8;
/// Blocks of the kernel for sums of many rows, at most, and threads of all that sum.
const BLOCKS: usize = 128;
const THREADS: u32 = 256;
/// Values that a block of the kernel for few rows takes.
const BLOCK_VALUES: usize = 512;
/// Values that it sends to all other ranks, at most: sent with its mark a value takes 8 bytes.
const FEW_VALUES: usize = 1 << 18;
/// Blocks of it, at most.
const FEW_BLOCKS: usize = FEW_VALUES / BLOCK_VALUES;
/// Blocks of it beside which the next kernel's find room.
const EARLY_BLOCKS_MAX: usize = 64;
/// What a rank tells of its slice of a row: a value, a place, and a mark with each.
const FOUND_BYTES: usize = 16;
/// Where a part of the memory may begin.
const ALIGN: usize = 256;

/// What is brought together at most.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveSizes {
    /// Rows and columns of a sum; columns are a multiple of 4.
    pub rows: usize,
    pub columns: usize,
    /// Rows of which each rank has a slice, and values of its slices of all of them.
    pub choosers: usize,
    pub slice: usize,
}

/// Where what lies in a rank's memory: bytes from its start. The marks come first.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Layout {
    inboxes: [usize; 2],
    parts: [usize; 2],
    sums: usize,
    slice: usize,
    found: usize,
    bytes: usize,
}

impl Layout {
    fn new(sizes: CollectiveSizes, ranks: usize) -> Self {
        let mut bytes = 0;
        let mut lay = |size: usize| {
            let at = bytes;
            bytes += size.next_multiple_of(ALIGN);
            at
        };
        lay(BLOCKS * RANKS_MAX * size_of::<u32>());
        let values = part_values(sizes) * size_of::<f32>();
        let inbox = ranks * FEW_VALUES * size_of::<u64>();
        Self {
            inboxes: [lay(inbox), lay(inbox)],
            parts: [lay(values), lay(values)],
            sums: lay(values),
            slice: lay(sizes.slice * size_of::<f32>()),
            found: lay(sizes.choosers * 2 * ranks * FOUND_BYTES),
            bytes,
        }
    }
}

/// The kernel for few rows reads whole blocks.
fn part_values(sizes: CollectiveSizes) -> usize {
    (sizes.rows * sizes.columns).next_multiple_of(BLOCK_VALUES)
}

/// One rank's way to the others.
///
/// There are two places for parts of sums, used in turn, and one for slices. A place may be written
/// again when another exchange lies between: by then nobody reads it any longer.
#[derive(Debug)]
pub struct Collective {
    device: Arc<Device>,
    rank: usize,
    /// Of each rank.
    memory: Vec<Arc<Shared>>,
    layout: Layout,
    counts: Buffer<u32>,
    parts: [Buffer<f32>; 2],
    slice: Buffer<f32>,
    choosers_max: usize,
    turn: usize,
}

/// Rows of logits of which every rank has a slice.
#[derive(Debug)]
pub struct Slices<'a> {
    pub ranks: &'a mut Collective,
    /// The first token of each rank's slice, and the end.
    pub starts: Vec<usize>,
}

/// What sums are added to: (rows, columns); rounded in blocks.
#[derive(Debug)]
pub struct Stream<'a> {
    pub stream: &'a mut Buffer<f32>,
    pub rounded: &'a mut Buffer<bf16>,
    pub captured: Option<Captured<'a>>,
}

/// The twin of `Collective` in `cu/collective.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(super) struct Args {
    memory: [u64; RANKS_MAX],
    counts: u64,
    stream: u64,
    rounded: u64,
    captured: u64,
    inbox: u64,
    part: u64,
    sums: u64,
    slice: u64,
    found: u64,
    starts: [u32; RANKS_MAX + 1],
    inbox_values: u32,
    ranks: u32,
    rank: u32,
    rows: u32,
    columns: u32,
    captured_at: u32,
    early: u32,
}

impl Collective {
    /// One for each device, in the order of ranks. Fails if one of them cannot reach another.
    pub fn connect(
        devices: &[Arc<Device>],
        sizes: CollectiveSizes,
    ) -> Result<Vec<Self>, DeviceError> {
        let ranks = devices.len();
        assert!((2..=RANKS_MAX).contains(&ranks), "the kernels have a place for each rank");
        assert!(sizes.columns.is_multiple_of(4), "values are read four at a time");
        assert!(u32::try_from(sizes.rows * sizes.columns).is_ok(), "and counted in 32 bits");
        let layout = Layout::new(sizes, ranks);
        let memory: Vec<Arc<Shared>> = devices
            .iter()
            .map(|it| Ok(Arc::new(it.share_with(layout.bytes, devices)?)))
            .collect::<Result<_, DeviceError>>()?;
        let place = |(rank, device): (usize, &Arc<Device>)| {
            let within = |at, len| device.within::<f32>(&memory[rank], at, len);
            device.clear(&mut within(0, layout.bytes / size_of::<f32>()))?;
            Ok(Self {
                device: Arc::clone(device),
                rank,
                memory: memory.clone(),
                layout,
                counts: device.zeros(BLOCKS + FEW_BLOCKS + sizes.choosers)?,
                parts: layout.parts.map(|at| within(at, part_values(sizes))),
                slice: within(layout.slice, sizes.slice),
                choosers_max: sizes.choosers,
                turn: 0,
            })
        };
        let all = devices.iter().enumerate().map(place).collect();
        devices.iter().try_for_each(|it| it.synchronize())?;
        all
    }

    /// Ranks that are connected.
    pub fn count(&self) -> usize {
        self.memory.len()
    }

    /// Where the own part of the next sum has to stand: (rows, columns).
    pub fn part(&mut self) -> &mut Buffer<f32> {
        &mut self.parts[self.turn]
    }

    /// Where the own slice of the next rows has to stand: (rows, its columns).
    pub fn slice(&mut self) -> &mut Buffer<f32> {
        &mut self.slice
    }

    /// Adds the parts of all ranks to `to`, then rounds.
    pub fn add(&mut self, rows: usize, columns: usize, to: Stream<'_>) -> Result<(), DeviceError> {
        let values = rows * columns;
        assert!(columns.is_multiple_of(4), "values are read four at a time");
        assert!(values <= self.part().len(), "a place for each value");
        assert!(values <= to.stream.len(), "a place for each sum");
        assert!(block_values(rows, columns) <= to.rounded.len(), "and rounded");
        let mut args = self.args(rows, columns);
        args.stream = to.stream.write();
        args.rounded = to.rounded.write();
        if let Some(mut captured) = to.captured {
            args.captured = captured.address(rows, columns);
            args.captured_at = whole(captured.at);
        }
        self.turn = 1 - self.turn;
        if is_few(values, self.memory.len()) {
            let blocks = values.div_ceil(BLOCK_VALUES);
            args.early = u32::from(blocks <= EARLY_BLOCKS_MAX);
            return self.device.launch(
                "reduce_few",
                Grid::new(whole(blocks), THREADS),
                &[Arg::value(&args)],
            );
        }
        self.device.launch("reduce_many", meeting(values / 4), &[Arg::value(&args)])
    }

    fn args(&mut self, rows: usize, columns: usize) -> Args {
        let mut args = Args::zeroed();
        for (to, memory) in args.memory.iter_mut().zip(&self.memory) {
            *to = memory.address();
        }
        args.counts = self.counts.write();
        args.inbox = self.layout.inboxes[self.turn] as u64;
        args.part = self.layout.parts[self.turn] as u64;
        args.sums = self.layout.sums as u64;
        args.slice = self.layout.slice as u64;
        args.found = self.layout.found as u64;
        args.inbox_values = whole(FEW_VALUES);
        args.ranks = whole(self.memory.len());
        args.rank = whole(self.rank);
        args.rows = whole(rows);
        args.columns = whole(columns);
        args
    }
}

impl Slices<'_> {
    /// What a kernel that chooses from `rows` rows of `columns` takes.
    pub(super) fn args(&mut self, rows: usize, columns: usize) -> Args {
        let Self { ranks, starts } = self;
        assert_eq!(starts.len(), ranks.count() + 1, "a slice for each rank");
        assert!(starts.is_sorted() && starts[0] == 0, "slices follow each other");
        assert_eq!(starts.last(), Some(&columns), "to the end");
        let widest = starts.windows(2).map(|two| two[1] - two[0]).max().unwrap_or(0);
        assert!(rows * widest <= ranks.slice.len(), "a place for each slice");
        assert!(rows <= ranks.choosers_max, "a place for what is found in each row");
        let mut args = ranks.args(rows, columns);
        for (to, &start) in args.starts.iter_mut().zip(starts.iter()) {
            *to = whole(start);
        }
        args
    }
}

impl Drop for Collective {
    /// Other ranks' memory stays until nothing that is queued here reads it.
    fn drop(&mut self) {
        // An error has nobody to go to here; whoever waits next gets it.
        drop(self.device.synchronize());
    }
}

/// Whether values are sent, each with its mark, rather than fetched.
fn is_few(values: usize, ranks: usize) -> bool {
    values * (ranks - 1) <= FEW_VALUES
}

/// A thread takes a few of what is fetched; the same grid on every rank.
fn meeting(items: usize) -> Grid {
    let blocks = items.div_ceil(THREADS as usize).clamp(1, BLOCKS);
    Grid::new(whole(blocks), THREADS)
}

/// What [`Collective::add`] gives: `stream + (part 0 + part 1 + ...)`.
pub fn cpu_add(stream: &[f32], parts: &[Vec<f32>]) -> Vec<f32> {
    let sum = |at: usize| parts[1..].iter().fold(parts[0][at], |sum, it| sum + it[at]);
    stream.iter().enumerate().map(|(at, before)| before + sum(at)).collect()
}

#[cfg(test)]
mod tests;
