//! All layers of a step for a few rows, in one kernel whose blocks hand each other their results:
//! reading weights never waits for the end of a kernel. The bits are those of the separate kernels.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::attend::{self, Attention};
use super::matmul::{Format, Matrix};
use super::rows::{PAGE_TOKENS, Step};
use super::{block_values, whole};
use crate::cuda::{Arg, Buffer, Device, DeviceError, Grid};

/// Rows of a step, at most: one column of the tensor cores.
const ROWS_MAX: usize = 8;
/// Parts of one matrix's sums that a block has room for.
const JOBS_MAX: usize = 16;
/// Tiles of the residual stream that a block holds, one a warp.
const HELD_MAX: usize = 8;
/// Tiles of packed rows (row, query head) of a sequence.
const TILES_MAX: usize = 2;
/// See [`less`].
const LESS_MAX: usize = 2;
/// Units of a warp's first tile of gate and up that are brought to the L2 cache while all wait for
/// attention.
const NEAR: u32 = 8;
/// Bytes of 16 outputs x 64 inputs.
const UNIT_BYTES: usize = 2048;
/// With what it is faster than separate kernels, measured on an H200, see the notes in the README:
/// bytes of a layer and rows of a step for `cu/layers.cu`, sequences for `cu/layers_small.cu`, each
/// of which should have two blocks of a cluster at least.
const PAYS_BYTES: Range<usize> = 32 << 20..256 << 20;
const PAYS_ROWS_MAX: usize = 4;
const PAYS_SEQUENCES_MAX: usize = CLUSTER / 2;
/// Shared memory that is not for the kernel's own use.
const SHARED_BYTES_LEFT: usize = 128;

/// Of `cu/layers_small.cu`: blocks of a cluster; slices of every matrix; tiles of a cluster's first
/// product and of the stream that a block has room for; units of the stream.
const CLUSTER: usize = 8;
const SLICES: usize = 8;
const TILES_EACH_MAX: usize = 3;
const STREAM_TILES_MAX: usize = 5;
const STREAM_UNITS_MAX: usize = 10;
/// Its `Hub`, at most, and a block's shared memory on Hopper.
const HUB_BYTES: usize = 44 << 10;
const SHARED_BYTES: usize = 226 << 10;
/// Multiprocessors that may be left over where clusters do not fill the card's parts.
const SPARE: usize = 20;

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

/// Whether `blocks` blocks have room for what is theirs of each matrix.
fn has_room(matrices: &[Sized; 4], blocks: usize) -> bool {
    let tiles = |it: &Sized| (it.tiles as usize).div_ceil(blocks);
    let fits = |it: &Sized| tiles(it) * it.slices as usize <= JOBS_MAX;
    matrices.iter().all(fits) && tiles(&matrices[1]) <= HELD_MAX
}

/// Clusters of `cu/layers_small.cu`: one a kv head, one a slice of down.
fn clusters(matrices: &[Sized; 4], heads: Heads) -> usize {
    heads.kv_heads + matrices[3].slices as usize
}

/// Whether blocks of those clusters have room for what is theirs, and no slice of o is that of two.
fn are_small(matrices: &[Sized; 4], heads: Heads) -> bool {
    let [qkv, o, _, down] = matrices.map(|it| it.units as usize);
    let stream_tiles = (matrices[1].tiles as usize).div_ceil(CLUSTER);
    let inner = heads.group.max(down.div_ceil(SLICES));
    let weights = (TILES_EACH_MAX * qkv + STREAM_TILES_MAX * inner) * UNIT_BYTES;
    let keys = attend::chunk_bytes(heads.dim, 1);
    let slice = |at: usize| o * at / SLICES;
    heads.dim == 64
        && matrices.iter().all(|it| it.slices as usize == SLICES)
        && qkv <= STREAM_UNITS_MAX
        && stream_tiles <= STREAM_TILES_MAX
        && heads.group + 2 <= 2 * TILES_EACH_MAX
        && down.div_ceil(SLICES) <= TILES_EACH_MAX
        && (0..SLICES).all(|it| slice(it) / heads.group == (slice(it + 1) - 1) / heads.group)
        && HUB_BYTES + weights + keys <= SHARED_BYTES
}

/// Of `tiles` tiles of gate and up, those that each of `attending` blocks has less than the other
/// ones: about as many as attention takes time for, if no other block gets more for it.
fn less(blocks: usize, tiles: usize, attending: usize) -> usize {
    let most = |less: usize| (tiles + attending * less).div_ceil(blocks);
    let fits = |less: &usize| *less <= tiles / blocks && most(*less) == most(0);
    (0..=LESS_MAX).rev().find(fits).unwrap_or(0)
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

/// The twin of `Sized` there.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
struct Sized {
    units: u32,
    tiles: u32,
    slices: u32,
}

impl Sized {
    fn of(matrix: &Matrix) -> Self {
        Self {
            units: whole(matrix.inputs() / 64),
            tiles: whole(matrix.outputs() / 16),
            slices: whole(matrix.slices()),
        }
    }
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

/// Which kernel takes a model's layers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// `cu/layers.cu`: every block has a share of every matrix.
    Shared,
    /// `cu/layers_small.cu`: a cluster of blocks has what hangs together.
    Clusters,
}

/// Where the kernel finds the layers of a model, and what its blocks hand each other. The matrices
/// must outlive it.
#[derive(Debug)]
pub struct Layers {
    way: Way,
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
    /// Blocks, each on a multiprocessor of its own.
    blocks: usize,
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
        let is_hopper = device.facts().capability == (9, 0);
        if !(is_hopper && alike && first.is_whole(heads)) {
            return Ok(None);
        }
        let clusters = clusters(&matrices, heads) * CLUSTER;
        let way = if are_small(&matrices, heads) && clusters + SPARE <= multiprocessors {
            Way::Clusters
        } else if has_room(&matrices, multiprocessors) {
            Way::Shared
        } else {
            return Ok(None);
        };
        let blocks = if way == Way::Clusters { clusters } else { multiprocessors };
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
        let words = |it: &Matrix| device.zeros(it.inputs() / 16 * 32);
        Ok(Some(Self {
            way,
            layers: device.upload(&table)?,
            matrices,
            counts: device.zeros(blocks)?,
            inputs: [words(first.qkv)?, words(first.o)?, words(first.gate_up)?, words(first.down)?],
            qkv: device.zeros(ROWS_MAX * first.qkv.outputs())?,
            sums: device.zeros(2 * 2 * SLICES * ROWS_MAX * first.o.outputs())?,
            heads,
            eps,
            captured_at: layers.iter().map(|it| it.captured_at).collect(),
            blocks,
        }))
    }

    /// Tiles of packed rows (row, query head) of a sequence.
    fn tiles_max(&self) -> usize {
        if self.way == Way::Clusters { 1 } else { TILES_MAX }
    }

    /// Whether it takes `sequences` sequences of `rows_each` rows at most.
    pub fn takes(&self, sequences: usize, rows_each: usize) -> bool {
        0 < sequences
            && sequences * rows_each <= ROWS_MAX
            && rows_each * self.heads.group <= 16 * self.tiles_max()
            && (self.way == Way::Clusters || sequences * self.heads.kv_heads <= self.blocks)
    }

    /// Whether it takes them in less time than separate kernels.
    pub fn pays(&self, sequences: usize, rows_each: usize) -> bool {
        let units: u32 = self.matrices.iter().map(|it| it.units * it.tiles).sum();
        let pays = match self.way {
            Way::Clusters => sequences <= PAYS_SEQUENCES_MAX,
            Way::Shared => {
                PAYS_BYTES.contains(&(units as usize * UNIT_BYTES))
                    && sequences * rows_each <= PAYS_ROWS_MAX
            }
        };
        pays && self.takes(sequences, rows_each)
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
        let attending = sequences * kv_heads;
        let chunks = step.sizes.pages_max.div_ceil(attend::CHUNK / PAGE_TOKENS);
        let each =
            if self.way == Way::Clusters { CLUSTER / sequences } else { self.blocks / attending };
        let parts = each.min(chunks);
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
            shared_bytes: whole(device.facts().shared_bytes_max - SHARED_BYTES_LEFT),
            eps: self.eps,
            less: whole(less(self.blocks, self.matrices[2].tiles as usize, attending)),
            near: NEAR,
            ..Args::zeroed()
        }
    }

    /// Takes the rows through `layers` layers, from that of `attention` on; `rows_each` of one
    /// sequence at most.
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
        let hidden = self.matrices[0].units as usize * 64;
        assert!(first + layers <= self.layers.len(), "the layers are there");
        assert!(rows <= attention.spans_len * rows_each, "sequences have the rows");
        assert!(rows * hidden <= streams.stream.len(), "a place for each row");
        assert!(block_values(rows, hidden) <= streams.rounded.len(), "and rounded");
        let captured = self.captured_at[first..first + layers].iter().flatten().max();
        let columns = captured.map_or(0, |at| at + hidden);
        let there = streams.captured.as_ref().map_or(0, |it| it.len());
        assert!(block_values(rows, columns) <= there, "and where it is kept");
        let tiles = attend::tiles(rows_each * self.heads.group);
        let mut args = self.args(device, attention, (scratch, step), rows_each);
        args.layers += (first * size_of::<LayerArgs>()) as u64;
        args.layer_count = whole(layers);
        args.stream = streams.stream.write();
        args.rounded = streams.rounded.write();
        args.captured = streams.captured.map_or(0, Buffer::write);
        let shared_bytes = args.shared_bytes;
        let grid = Grid { blocks: (whole(self.blocks), 1, 1), threads: 256, shared_bytes };
        let (kernel, cluster) = match self.way {
            Way::Shared => (format!("layers_{}_{tiles}", self.heads.dim), 1),
            Way::Clusters => ("layers_small".to_owned(), whole(CLUSTER)),
        };
        device.launch_at_once(&kernel, grid, cluster, &[Arg::value(&args)])
    }
}

#[cfg(test)]
mod tests;
