//! All layers of a step for a few rows, in one kernel whose blocks hand each other their results:
//! reading weights never waits for the end of a kernel. The bits are those of the separate kernels.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::attend::{self, Attention};
use super::matmul::{Format, Matrix};
use super::rows::{PAGE_TOKENS, Step};
use super::{block_values, whole};
use crate::cuda::{Arg, Buffer, Device, DeviceError};

mod sizes;
mod way;

use sizes::{CLUSTER, Sized, UNIT_BYTES, are_small, are_small_wide, has_room, less};
use way::{KERNEL_WIDE, TEAMS_MAX, WIDE, Way, grid, is_few, is_for_wide};

/// Tiles of packed rows (row, query head) of a sequence.
const TILES_MAX: usize = 2;
/// Units of a warp's first tile of gate and up that are brought to the L2 cache while all wait for
/// attention.
const NEAR: u32 = 8;
/// With what `cu/layers.cu` is faster than separate kernels, measured on an H200, see
/// `notes/layers.md`: bytes of a layer, size of heads (larger ones leave blocks that attend less
/// room for weights) and rows of a step. Kernels in clusters are with all that they take, but for
/// 8 texts of 4 rows and few keys, where rounds gain what the step loses.
const PAYS_BYTES: Range<usize> = 32 << 20..256 << 20;
const PAYS_HEAD_DIM: usize = 64;
const PAYS_ROWS_MAX: usize = 4;
/// A text has no more chunks of keys than so many for each block that attends to it, in
/// `cu/layers.cu` fewer: separate kernels have more blocks for long texts.
const PAYS_CHUNKS: usize = 2;

/// A layer as the kernel reads it.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a> {
    pub qkv: &'a Matrix,
    pub o: &'a Matrix,
    pub gate_up: &'a Matrix,
    pub down: &'a Matrix,
    pub bias: Option<&'a Buffer<f32>>,
    pub q_norm: Option<&'a Buffer<f32>>,
    pub k_norm: Option<&'a Buffer<f32>>,
    /// First column at which the stream behind this layer is kept, if it is.
    pub captured_at: Option<usize>,
}

impl Layer<'_> {
    fn matrices(&self) -> [&Matrix; 4] {
        [self.qkv, self.o, self.gate_up, self.down]
    }

    /// Whether its weights are bf16, and their sizes fit each other and whole tiles.
    fn is_whole(&self, heads: Heads) -> bool {
        let (hidden, width) = (self.o.outputs(), heads.group * heads.kv_heads * heads.dim);
        let inputs = [hidden, width, hidden, self.gate_up.outputs() / 2];
        self.matrices().map(Matrix::inputs) == inputs
            && self.qkv.outputs() == width + 2 * heads.kv_heads * heads.dim
            && self.down.outputs() == hidden
            && self.matrices().iter().all(|it| it.outputs().is_multiple_of(16))
            && self.matrices().iter().all(|it| it.format() == Format::Bf16)
    }
}

/// The twin of `Layer` in `cu/layers.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct LayerArgs {
    weights: [u64; 4],
    bias: u64,
    q_norm: u64,
    k_norm: u64,
    captured_at: i32,
    padding: u32,
}

/// The twin of `Layers` there.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct Args {
    attend: attend::Args,
    layers: u64,
    counts: u64,
    inputs: [u64; 4],
    qkv: u64,
    sums: u64,
    stream: u64,
    rounded: u64,
    captured: u64,
    layer_values: u64,
    matrices: [Sized; 4],
    layer_count: u32,
    sequences: u32,
    parts: u32,
    shared_bytes: u32,
    eps: f32,
    less: u32,
    near: u32,
    padding: u32,
}

/// Where the kernel finds the layers of a model, and what its blocks hand each other. The matrices
/// must outlive it.
#[derive(Debug)]
pub struct Layers {
    way: Way,
    /// Whether it takes more rows by teams that share nothing.
    is_wide: bool,
    layers: Buffer<LayerArgs>,
    matrices: [Sized; 4],
    counts: Buffer<u32>,
    /// Of each matrix: words and marks.
    inputs: [Buffer<[u32; 4]>; 4],
    qkv: Buffer<[u32; 2]>,
    sums: Buffer<[u32; 2]>,
    heads: Heads,
    eps: f32,
    /// Where the stream behind each layer is kept, if it is.
    captured_at: Vec<Option<usize>>,
    /// Multiprocessors, each of which may have a block.
    multiprocessors: usize,
}

/// Sizes of attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heads {
    pub dim: usize,
    pub kv_heads: usize,
    /// Query heads on one of keys and values.
    pub group: usize,
}

/// The residual stream that a run takes on, (rows, hidden), also rounded in blocks; and where it is
/// kept behind some layers: (rows, columns) in blocks.
#[derive(Debug)]
pub struct Streams<'a> {
    pub stream: &'a mut Buffer<f32>,
    pub rounded: &'a mut Buffer<bf16>,
    pub captured: Option<&'a mut Buffer<bf16>>,
}

impl Layers {
    /// Nothing where the kernel has no room for the layers, or the card cannot run it: it is for
    /// Hopper.
    pub fn new(
        device: &Device,
        layers: &[Layer<'_>],
        heads: Heads,
        eps: f32,
    ) -> Result<Option<Self>, DeviceError> {
        let Some(first) = layers.first() else { return Ok(None) };
        let multiprocessors = device.facts().multiprocessors as usize;
        let matrices = first.matrices().map(Sized::of);
        let alike = layers.iter().all(|it| it.matrices().map(Sized::of) == matrices);
        if !(device.facts().is_hopper() && alike && first.is_whole(heads)) {
            return Ok(None);
        }
        let room = |way: Way| {
            let blocks = way.blocks((&matrices, heads), usize::MAX, multiprocessors);
            device.has_room(&way.kernel(heads.dim, 1), grid(device, blocks), way.cluster())
        };
        let teams_max = if are_small(&matrices, heads) { TEAMS_MAX } else { 0 };
        let clusters = (1..=teams_max).rev().map(|teams| Way::Clusters { teams });
        let mut way = None;
        for one in clusters.chain(has_room(&matrices, multiprocessors).then_some(Way::Shared)) {
            if room(one)? {
                way = Some(one);
                break;
            }
        }
        let Some(way) = way else { return Ok(None) };
        let is_wide = way == WIDE && are_small_wide(&matrices, heads) && {
            let blocks = way.blocks((&matrices, heads), usize::MAX, multiprocessors);
            device.has_room(KERNEL_WIDE, grid(device, blocks), way.cluster())?
        };
        let address = |it: Option<&Buffer<f32>>| it.map_or(0, Buffer::read);
        let table: Vec<LayerArgs> = layers
            .iter()
            .map(|it| LayerArgs {
                weights: it.matrices().map(Matrix::table),
                bias: address(it.bias),
                q_norm: address(it.q_norm),
                k_norm: address(it.k_norm),
                captured_at: it
                    .captured_at
                    .map_or(-1, |at| i32::try_from(at).expect("columns of a model fit")),
                padding: 0,
            })
            .collect();
        let (sums, sums_wide) = way::sums(first.o.outputs());
        let words = |it: &Matrix| device.zeros(it.inputs() / 16 * 32);
        Ok(Some(Self {
            way,
            is_wide,
            layers: device.upload(&table)?,
            matrices,
            counts: device.zeros(multiprocessors)?,
            inputs: [words(first.qkv)?, words(first.o)?, words(first.gate_up)?, words(first.down)?],
            qkv: device.zeros(way::qkv(first.qkv.outputs()))?,
            sums: device.zeros(sums + if is_wide { sums_wide } else { 0 })?,
            heads,
            eps,
            captured_at: layers.iter().map(|it| it.captured_at).collect(),
            multiprocessors,
        }))
    }

    /// From now on as on a card with room for one cluster a kv head only: for comparisons. Returns
    /// whether there were more.
    pub fn in_one_team(&mut self) -> bool {
        let one = Way::Clusters { teams: 1 };
        let had_more = self.way != Way::Shared && self.way != one;
        self.way = if had_more { one } else { self.way };
        self.is_wide &= !had_more;
        had_more
    }

    /// Tiles of packed rows (row, query head) of a sequence.
    fn tiles_max(&self) -> usize {
        if self.way == Way::Shared { TILES_MAX } else { 1 }
    }

    /// Whether it takes `sequences` sequences of `rows_each` rows at most.
    pub fn takes(&self, sequences: usize, rows_each: usize) -> bool {
        0 < sequences
            && (is_few(sequences, rows_each) || self.is_wide && is_for_wide(sequences, rows_each))
            && rows_each * self.heads.group <= 16 * self.tiles_max()
            && (self.way != Way::Shared || sequences * self.heads.kv_heads <= self.multiprocessors)
    }

    /// Whether it takes them in less time than separate kernels; `keys`: of the longest.
    pub fn pays(&self, sequences: usize, rows_each: usize, keys: usize) -> bool {
        if !self.takes(sequences, rows_each) {
            return false;
        }
        let units: u32 = self.matrices.iter().map(|it| it.units * it.tiles).sum();
        let (rows, chunks) = (sequences * rows_each, keys.div_ceil(attend::CHUNK));
        let chunks_max = PAYS_CHUNKS * self.blocks_each(sequences);
        match self.way {
            Way::Clusters { .. } => chunks <= chunks_max,
            Way::Shared => {
                PAYS_BYTES.contains(&(units as usize * UNIT_BYTES))
                    && self.heads.dim == PAYS_HEAD_DIM
                    && rows <= PAYS_ROWS_MAX
                    && chunks < chunks_max
            }
        }
    }

    /// Blocks that share a sequence and kv head.
    fn blocks_each(&self, sequences: usize) -> usize {
        match self.way {
            Way::Clusters { teams } => CLUSTER / sequences.div_ceil(teams),
            Way::Shared => self.multiprocessors / (sequences * self.heads.kv_heads),
        }
    }

    /// Blocks of a step of so many sequences.
    fn blocks(&self, sequences: usize) -> usize {
        self.way.blocks((&self.matrices, self.heads), sequences, self.multiprocessors)
    }

    /// What does not depend on the layers and the stream.
    fn args(
        &mut self,
        device: &Device,
        mut attention: Attention<'_>,
        (scratch, step): (&mut attend::Scratch, &Step),
        rows_each: usize,
    ) -> Args {
        let (sequences, kv_heads) = (attention.spans_len, attention.pages.kv_heads);
        let heads = Heads { dim: attention.pages.head_dim, kv_heads, group: attention.group() };
        assert_eq!(heads, self.heads, "its heads");
        assert!(self.takes(sequences, rows_each), "a few rows");
        let (attending, blocks) = (sequences * kv_heads, self.blocks(sequences));
        let chunks = step.sizes.pages_max.div_ceil(attend::CHUNK / PAGE_TOKENS);
        let parts = self.blocks_each(sequences).min(chunks);
        let tiles = attend::tiles(rows_each * heads.group);
        let layer_values = attention.pages.layer_values() as u64;
        Args {
            attend: attention.cut_args(scratch, step, tiles, parts),
            layers: self.layers.read(),
            counts: self.counts.write(),
            inputs: self.inputs.each_mut().map(Buffer::write),
            qkv: self.qkv.write(),
            sums: self.sums.write(),
            layer_values,
            matrices: self.matrices,
            sequences: whole(sequences),
            parts: whole(parts),
            shared_bytes: grid(device, blocks).shared_bytes,
            eps: self.eps,
            less: whole(less(blocks, self.matrices[2].tiles as usize, attending)),
            near: NEAR,
            ..Args::zeroed()
        }
    }

    /// Takes the rows through `layers` layers, from that of `attention` on; `rows_each` of one
    /// sequence at most. The first sequence has rows if any has.
    pub fn run(
        &mut self,
        device: &Device,
        scratch: &mut attend::Scratch,
        step: &Step,
        attention: Attention<'_>,
        (layers, rows_each): (usize, usize),
        streams: Streams<'_>,
    ) -> Result<(), DeviceError> {
        if layers == 0 {
            return Ok(());
        }
        let (first, rows) = (attention.layer, attention.places.rows);
        let sequences = attention.spans_len;
        let blocks = self.blocks(sequences);
        let hidden = self.matrices[0].units as usize * 64;
        assert!(first + layers <= self.layers.len(), "the layers are there");
        assert!(rows <= sequences * rows_each, "sequences have the rows");
        assert!(rows * hidden <= streams.stream.len(), "a place for each row");
        assert!(block_values(rows, hidden) <= streams.rounded.len(), "and rounded");
        let captured = self.captured_at[first..first + layers].iter().flatten().max();
        let columns = captured.map_or(0, |at| at + hidden);
        let there = streams.captured.as_ref().map_or(0, |it| it.len());
        assert!(block_values(rows, columns) <= there, "and where it is kept");
        let tiles = attend::tiles(rows_each * self.heads.group);
        let mut args = self.args(device, attention, (scratch, step), rows_each);
        let mut kernel = self.way.kernel(self.heads.dim, tiles);
        if !is_few(sequences, rows_each) {
            KERNEL_WIDE.clone_into(&mut kernel);
            // Its teams count for themselves, and have places of their own.
            args.counts += size_of::<u32>() as u64;
            args.sums += (way::sums(hidden).0 * size_of::<[u32; 2]>()) as u64;
        }
        args.layers += (first * size_of::<LayerArgs>()) as u64;
        args.layer_count = whole(layers);
        args.stream = streams.stream.write();
        args.rounded = streams.rounded.write();
        args.captured = streams.captured.map_or(0, Buffer::write);
        let grid = grid(device, blocks);
        device.launch_at_once(&kernel, grid, self.way.cluster(), &[Arg::value(&args)])
    }
}

#[cfg(test)]
mod tests;
