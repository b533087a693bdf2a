//! Attention of rows over the pages of their sequences: causal, grouped heads.
//!
//! Four kernels for a few rows of each sequence, two for many of one; the result for a row has the
//! same bits from all, and however the work is cut.

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::rope::{self, Pages, Places, Rotation};
use super::rows::{PAGE_TOKENS, Step};
use super::{block_values, whole};
use crate::cuda::{Arg, Buffer, Device, DeviceError, Grid};

mod table;

pub use table::{Crowd, Table};

/// Keys that are softmaxed in one go, and after which work can be cut.
pub const CHUNK: usize = 256;
/// Keys of a tile.
const KEYS: usize = 64;
/// The twin of `STAGES` in `cu/attend_wide.cu`.
const STAGES_WIDE: usize = 3;
/// Rows (row, query head) that a block of the kernel for many rows takes.
const PACKED: usize = 128;
/// And of the kernel for few, at most.
const PACKED_FEW: usize = 64;
/// Rows of one sequence that it takes.
pub const ROWS_FEW: usize = 8;
/// Packed rows of a sequence that the kernels with bulk copies take: one tile of the tensor cores.
const PACKED_BULK: usize = 16;
/// Blocks of `attend_bulk` on a multiprocessor, and the twin of `SLOTS` in its source.
const BLOCKS_BULK: usize = 2;
const SLOTS_BULK: usize = 6;
/// Warps of a block of `attend_ring` at most, whose registers they all take; and the twin of
/// `SLOTS` in its source.
const WARPS_RING: usize = 8;
const SLOTS_RING: usize = 3;

/// Which kernel takes a few rows of each sequence. The result is the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FewBy {
    /// One tile of keys after the other: blocks share a multiprocessor.
    Tile,
    /// A whole chunk in one go: the shortest wait where blocks are few.
    Chunk,
    /// The same where two blocks share a multiprocessor: see [`is_for_bulk`].
    Bulk,
    /// A warp for each sequence and kv head, on blocks that stay: for many sequences, on Hopper. It
    /// needs a table.
    Ring,
}

/// Which kernel takes many rows of one sequence. The result is the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ManyBy {
    /// On any card.
    Plain,
    /// With the tensor-core instructions of Hopper.
    Wide,
}

/// Scratch of the kernels for few rows, shared by all layers, which run one after the other.
#[derive(Debug)]
pub struct Scratch {
    parts: Buffer<f32>,
    arrivals: Buffer<u32>,
}

impl Scratch {
    /// For `blocks` blocks (sequences x kv heads) that may each be cut along contexts of up to
    /// `positions` keys, with up to `packed` rows each.
    pub fn new(
        device: &Device,
        blocks: usize,
        positions: usize,
        packed: usize,
        head_dim: usize,
    ) -> Result<Self, DeviceError> {
        let tiles = tiles(packed) * 16;
        let parts = blocks * positions.div_ceil(CHUNK) * tiles * (head_dim + 2);
        Ok(Self { parts: device.zeros(parts)?, arrivals: device.zeros(blocks)? })
    }
}

/// Tiles of 16 packed rows that a block takes: 1, 2 or 4.
pub(super) fn tiles(packed: usize) -> usize {
    assert!(packed <= PACKED_FEW, "a few rows");
    packed.div_ceil(16).next_power_of_two()
}

/// Shared memory of `attend_few`: `Shared` in its source.
fn tile_bytes(dim: usize, tiles: usize) -> usize {
    let stages = if dim == 128 { 2 } else { 3 };
    shared_bytes(stages * KEYS, KEYS, 4, dim, tiles)
}

/// And of `attend_chunk`.
pub(super) fn chunk_bytes(dim: usize, tiles: usize) -> usize {
    shared_bytes(CHUNK, CHUNK, 8, dim, tiles)
}

/// And of `attend_bulk`: `Rooms` in its source.
fn bulk_bytes(dim: usize) -> usize {
    let tile = KEYS * dim * size_of::<bf16>() + size_of::<u64>();
    shared_bytes(0, CHUNK, 8, dim, 1) + SLOTS_BULK * tile
}

/// Keys and values, queries, own keys and values, weights; a largest score for each warp.
fn shared_bytes(keys: usize, weights: usize, warps: usize, dim: usize, tiles: usize) -> usize {
    let rows = tiles * 16;
    let values = 2 * keys * dim + rows * dim + 2 * ROWS_FEW * dim + rows * weights;
    values * size_of::<bf16>() + warps * rows * size_of::<f32>()
}

/// And of each warp of `attend_ring`: `Room` in its source.
fn ring_bytes(dim: usize, rows_max: usize) -> usize {
    (SLOTS_RING * KEYS + PACKED_BULK + 2 * rows_max) * dim * size_of::<bf16>() + 128
}

/// The twin of `Attend` in `cu/attend.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(super) struct Args {
    rope: rope::Args,
    spans: u64,
    out: u64,
    parts: u64,
    arrivals: u64,
    block_rows: u32,
    group: u32,
    chunks_max: u32,
    scale_log2: f32,
}

/// The twin of `Ring` in `cu/attend_ring.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct RingArgs {
    attend: Args,
    records: u64,
    sequences: u32,
    rows_max: u32,
}

/// One layer's attention.
#[derive(Debug)]
pub struct Attention<'a> {
    pub rotation: Rotation<'a>,
    pub places: Places<'a>,
    pub pages: &'a mut Pages,
    pub layer: usize,
    /// First row and number of rows of each sequence, or of each block of one.
    pub spans: &'a Buffer<[u32; 2]>,
    pub spans_len: usize,
    /// Laid for these spans, where there are so many that it is worth it.
    pub table: Option<&'a Table>,
    /// (rows, heads head_dim) in blocks.
    pub out: &'a mut Buffer<bf16>,
}

impl Attention<'_> {
    fn args(&mut self, step: &Step) -> Args {
        let dim = self.pages.head_dim;
        let heads = self.rotation.heads;
        assert!(block_values(self.places.rows, heads * dim) <= self.out.len(), "a place for each");
        assert!(self.spans_len <= self.spans.len(), "the spans are there");
        assert!(heads.is_multiple_of(self.pages.kv_heads), "groups are whole");
        Args {
            rope: self.rotation.args(step, self.places, self.pages, self.layer),
            spans: self.spans.read(),
            out: self.out.write(),
            parts: 0,
            arrivals: 0,
            block_rows: whole(self.places.rows.div_ceil(8)),
            group: whole(self.group()),
            chunks_max: whole((step.sizes.pages_max * PAGE_TOKENS).div_ceil(CHUNK)),
            scale_log2: std::f32::consts::LOG2_E / (dim as f32).sqrt(),
        }
    }

    /// Arguments where up to `blocks` blocks share a sequence of so many tiles of packed rows.
    pub(super) fn cut_args(
        &mut self,
        scratch: &mut Scratch,
        step: &Step,
        tiles: usize,
        blocks: usize,
    ) -> Args {
        let mut args = self.args(step);
        if 1 < blocks {
            let cut = self.spans_len * self.pages.kv_heads;
            let parts = cut * args.chunks_max as usize * tiles * 16 * (self.pages.head_dim + 2);
            assert!(cut <= scratch.arrivals.len() && parts <= scratch.parts.len(), "a place each");
            args.parts = scratch.parts.write();
            args.arrivals = scratch.arrivals.write();
        }
        args
    }

    pub(super) fn group(&self) -> usize {
        self.rotation.heads / self.pages.kv_heads
    }

    /// Spans of up to `rows_max` rows each, at positions one after the other; turns them too. Up to
    /// `blocks` blocks share a sequence; where more than one does, `scratch` must have been made
    /// for it.
    pub fn few(
        self,
        device: &Device,
        scratch: &mut Scratch,
        step: &Step,
        rows_max: usize,
        blocks: usize,
    ) -> Result<(), DeviceError> {
        let dim = self.pages.head_dim;
        let shared_bytes = chunk_bytes(dim, tiles(rows_max * self.group()));
        let facts = device.facts();
        let multiprocessors = facts.multiprocessors as usize;
        // A multiprocessor has a little more than one block can get, and some of it is not for us.
        let at_once = if 2 * (shared_bytes + 2048) <= facts.shared_bytes_max { 2 } else { 1 };
        let count = blocks * self.pages.kv_heads * self.spans_len;
        let fits = shared_bytes <= facts.shared_bytes_max;
        let bulk = is_for_bulk(device, rows_max, self.group(), dim);
        let is_few = count <= at_once * multiprocessors;
        let by = match self.table {
            Some(_) => FewBy::Ring,
            None if fits && is_few => FewBy::Chunk,
            None if bulk && count <= BLOCKS_BULK * multiprocessors => FewBy::Bulk,
            None => FewBy::Tile,
        };
        self.few_by(by, device, scratch, step, rows_max, blocks)
    }

    /// [`Self::few`] by a given kernel.
    pub fn few_by(
        mut self,
        by: FewBy,
        device: &Device,
        scratch: &mut Scratch,
        step: &Step,
        rows_max: usize,
        blocks: usize,
    ) -> Result<(), DeviceError> {
        let (dim, kv_heads, group) = (self.pages.head_dim, self.pages.kv_heads, self.group());
        assert!(is_few(rows_max, group, dim), "few rows");
        let tiles = tiles(rows_max * group);
        let args = self.cut_args(scratch, step, tiles, blocks);
        let (kernel, threads, shared_bytes) = match by {
            FewBy::Tile => (format!("few_{dim}_{tiles}"), 128, tile_bytes(dim, tiles)),
            FewBy::Chunk => (format!("chunk_{dim}_{tiles}"), 256, chunk_bytes(dim, tiles)),
            FewBy::Bulk => {
                assert!(is_for_bulk(device, rows_max, group, dim), "what it is made for");
                (format!("bulk_{dim}"), 256, bulk_bytes(dim))
            }
            FewBy::Ring => return self.ring(device, args, rows_max),
        };
        let grid = Grid {
            blocks: (whole(blocks), whole(kv_heads), whole(self.spans_len)),
            threads,
            shared_bytes: whole(shared_bytes),
        };
        device.launch(&format!("attend_{kernel}"), grid, &[Arg::value(&args)])
    }

    fn ring(&self, device: &Device, args: Args, rows_max: usize) -> Result<(), DeviceError> {
        let (dim, group, facts) = (self.pages.head_dim, self.group(), device.facts());
        let table = self.table.expect("this kernel needs a table");
        assert_eq!(table.sequences, self.spans_len, "the table is laid for these spans");
        let jobs = self.spans_len * self.pages.kv_heads;
        let blocks = jobs.min(facts.multiprocessors as usize);
        assert!(is_for_ring(rows_max, group), "few rows");
        let each = ring_bytes(dim, rows_max);
        let warps = (facts.shared_bytes_max / each).min(WARPS_RING).min(jobs.div_ceil(blocks));
        let grid = Grid {
            blocks: (whole(blocks), 1, 1),
            threads: whole(warps * 32),
            shared_bytes: whole(warps * each),
        };
        let args = RingArgs {
            attend: args,
            records: table.records(),
            sequences: whole(self.spans_len),
            rows_max: whole(rows_max),
        };
        device.launch(&format!("attend_ring_{dim}"), grid, &[Arg::value(&args)])
    }

    /// Spans that [`blocks_of_rows`] made, of rows that exist and were turned into `q`.
    pub fn many(self, device: &Device, step: &Step, q: &Buffer<bf16>) -> Result<(), DeviceError> {
        let by = if device.facts().is_hopper() { ManyBy::Wide } else { ManyBy::Plain };
        self.many_by(by, device, step, q)
    }

    /// [`Self::many`] by a given kernel.
    pub fn many_by(
        mut self,
        by: ManyBy,
        device: &Device,
        step: &Step,
        q: &Buffer<bf16>,
    ) -> Result<(), DeviceError> {
        assert!(by == ManyBy::Plain || device.facts().is_hopper(), "the wide kernel is Hopper's");
        let mut args = self.args(step);
        let (dim, kv_heads) = (self.pages.head_dim, self.pages.kv_heads);
        assert!(self.places.rows * self.rotation.heads * dim <= q.len(), "a query for each row");
        args.rope.set_queries(q);
        // Stages of keys and values; queries; or barriers.
        let (kernel, values, barriers) = match by {
            ManyBy::Plain => ("many", 2 * 2 * KEYS * dim + PACKED * dim, 0),
            ManyBy::Wide => ("wide", STAGES_WIDE * 2 * KEYS * dim, STAGES_WIDE * 3),
        };
        let grid = Grid {
            blocks: (whole(self.spans_len), whole(kv_heads), 1),
            threads: 256,
            shared_bytes: whole(values * size_of::<bf16>() + barriers * size_of::<u64>()),
        };
        device.launch(&format!("attend_{kernel}_{dim}"), grid, &[Arg::value(&args)])
    }
}

/// The most rows of one sequence that the kernel for few rows takes.
pub fn few_rows_max(group: usize, head_dim: usize) -> usize {
    (1..=ROWS_FEW).rev().find(|it| is_few(*it, group, head_dim)).unwrap_or(0)
}

/// Whether the kernel for few rows takes so many of one sequence.
pub fn is_few(rows: usize, group: usize, head_dim: usize) -> bool {
    let packed_max = if head_dim == 128 { PACKED_FEW / 2 } else { PACKED_FEW };
    rows <= ROWS_FEW && rows * group <= packed_max
}

/// Whether the kernel of which two blocks share a multiprocessor takes so many rows of each
/// sequence: the tensor cores' 16, of heads of 128 values, on Hopper.
pub fn is_for_bulk(device: &Device, rows: usize, group: usize, head_dim: usize) -> bool {
    let is_few = rows <= ROWS_FEW && rows * group <= PACKED_BULK;
    device.facts().is_hopper() && is_few && head_dim == 128
}

/// Whether the kernel for many sequences takes so many rows of each: the tensor cores' 16, and no
/// more than a slot has room for as they came, with the turns of their positions.
pub fn is_for_ring(rows: usize, group: usize) -> bool {
    rows <= ROWS_FEW && rows * group <= PACKED_BULK && rows * (group + 3) * 2 < KEYS
}

/// Cuts the rows `first..first + rows` of one sequence into blocks for [`Attention::many`].
pub fn blocks_of_rows(first: u32, rows: u32, group: usize) -> impl Iterator<Item = [u32; 2]> {
    let block = whole(PACKED / group);
    (0..rows.div_ceil(block)).map(move |at| {
        let start = at * block;
        [first + start, block.min(rows - start)]
    })
}

/// Softmax attention of one query head, in f64. keys, values: (keys, head_dim).
pub fn cpu(query: &[f32], keys: &[f32], values: &[f32]) -> Vec<f32> {
    let dim = query.len();
    let scale = 1.0 / (dim as f64).sqrt();
    let dot = |key: &[f32]| -> f64 {
        query.iter().zip(key).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    let scores: Vec<f64> = keys.chunks_exact(dim).map(|key| dot(key) * scale).collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|it| (it - most).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut out = vec![0.0_f64; dim];
    for (weight, value) in weights.iter().zip(values.chunks_exact(dim)) {
        for (out, &value) in out.iter_mut().zip(value) {
            *out += weight / total * f64::from(value);
        }
    }
    #[expect(clippy::cast_possible_truncation, reason = "the reference rounds once, here")]
    out.into_iter().map(|it| it as f32).collect()
}

#[cfg(test)]
mod tests;
