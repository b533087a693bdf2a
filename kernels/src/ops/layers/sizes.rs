//! Who gets how much of a layer, and whether there is room for it.

use bytemuck::{Pod, Zeroable};

use super::Heads;
use crate::ops::attend;
use crate::ops::matmul::Matrix;
use crate::ops::whole;

/// Parts of one matrix's sums that a block has room for.
const JOBS_MAX: usize = 16;
/// Tiles of the residual stream that a block holds, one a warp.
const HELD_MAX: usize = 8;
/// See [`less`].
const LESS_MAX: usize = 2;
/// Bytes of 16 outputs x 64 inputs.
pub(super) const UNIT_BYTES: usize = 2048;

/// Of `cu/layers_small.cu`: blocks of a cluster; slices of every matrix; tiles of a cluster's first
/// product and of the stream that a block has room for; units of the stream, and of a slice.
pub(super) const CLUSTER: usize = 8;
pub(super) const SLICES: usize = 8;
const TILES_EACH_MAX: usize = 3;
const STREAM_TILES_MAX: usize = 5;
const STREAM_UNITS_MAX: usize = 10;
const SLICE_UNITS_MAX: usize = 3;
/// Its `Hub`, at most, and a block's shared memory on Hopper.
const HUB_BYTES: usize = 44 << 10;
const SHARED_BYTES: usize = 226 << 10;
/// Of `cu/layers_small_wide.cu`: slices of down that a cluster has; units of the stream; its `Hub`.
const DOWN_SLICES: usize = 2;
const WIDE_UNITS_MAX: usize = 9;
const WIDE_HUB_BYTES: usize = 54 << 10;

/// The twin of `Sized` in `cu/layers.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub(super) struct Sized {
    pub(super) units: u32,
    pub(super) tiles: u32,
    pub(super) slices: u32,
}

impl Sized {
    pub(super) fn of(matrix: &Matrix) -> Self {
        Self {
            units: whole(matrix.inputs() / 64),
            tiles: whole(matrix.outputs() / 16),
            slices: whole(matrix.slices()),
        }
    }
}

/// Whether `blocks` blocks have room for what is theirs of each matrix.
pub(super) fn has_room(matrices: &[Sized; 4], blocks: usize) -> bool {
    let tiles = |it: &Sized| (it.tiles as usize).div_ceil(blocks);
    let fits = |it: &Sized| tiles(it) * it.slices as usize <= JOBS_MAX;
    matrices.iter().all(fits) && tiles(&matrices[1]) <= HELD_MAX
}

/// Clusters of `cu/layers_small.cu`: `teams` a kv head, one a slice of down.
pub(super) fn clusters(matrices: &[Sized; 4], heads: Heads, teams: usize) -> usize {
    heads.kv_heads * teams + matrices[3].slices as usize
}

/// Whether blocks of those clusters have room for what is theirs, and no slice of o is that of two.
pub(super) fn are_small(matrices: &[Sized; 4], heads: Heads) -> bool {
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
        && o.max(down).div_ceil(SLICES) <= SLICE_UNITS_MAX
        && (0..SLICES).all(|it| slice(it) / heads.group == (slice(it + 1) - 1) / heads.group)
        && HUB_BYTES + weights + keys <= SHARED_BYTES
}

/// Whether such blocks have room for twice as many rows, those without keys for two slices.
pub(super) fn are_small_wide(matrices: &[Sized; 4], heads: Heads) -> bool {
    let [stream, down] = [matrices[0].units, matrices[3].units].map(|it| it as usize);
    let inner = heads.group.max(down.div_ceil(SLICES));
    let weights = |first: usize, inner: usize| {
        (TILES_EACH_MAX * first * stream + STREAM_TILES_MAX * inner) * UNIT_BYTES
    };
    let attends = weights(1, inner) + attend::chunk_bytes(heads.dim, 1);
    let feeds = weights(DOWN_SLICES, DOWN_SLICES * down.div_ceil(SLICES));
    are_small(matrices, heads)
        && stream <= WIDE_UNITS_MAX
        && WIDE_HUB_BYTES + attends.max(feeds) <= SHARED_BYTES
}

/// Of `tiles` tiles of gate and up, those that each of `attending` blocks has less than the other
/// ones: about as many as attention takes time for, if no other block gets more for it.
pub(super) fn less(blocks: usize, tiles: usize, attending: usize) -> usize {
    let most = |less: usize| (tiles + attending * less).div_ceil(blocks);
    let fits = |less: &usize| *less <= tiles / blocks && most(*less) == most(0);
    (0..=LESS_MAX).rev().find(fits).unwrap_or(0)
}
