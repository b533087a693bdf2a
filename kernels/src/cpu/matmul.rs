//! Products of activation rows with a repacked matrix.

use std::ops::Range;

use super::inputs::{BLOCK, InputBlock, Inputs};
use super::matrix::{Groups, Matrix, Part};
use super::rows::LANES;
use super::simd::dispatch;
use super::simd::team::{Team, Window};

/// Chunks of a product for each thread, at most: a thread that is late costs the others one.
const CHUNKS: usize = 8;

/// Multiplications below which a chunk costs more to claim than it is worth.
const CHUNK_MACS: usize = 1 << 16;

/// Rows that stand together in [`Inputs`].
pub(crate) const GROUP_ROWS: usize = 16;

/// A window of a product: all rows by some tiles of one part.
#[derive(Debug)]
pub(crate) struct Slab<'a, 'w> {
    pub(crate) part: &'a Part,
    pub(crate) tiles: Range<usize>,
    pub(crate) inputs: &'a Inputs,
    out: &'a mut Window<'w, f32>,
    /// Where the first tile stands in the window.
    column: usize,
    add: bool,
}

impl Slab<'_, '_> {
    /// Takes the sums of a row in a tile.
    #[inline(always)]
    pub(crate) fn store(&mut self, tile: usize, row: usize, sums: &[f32; LANES]) {
        let start = self.column + (tile - self.tiles.start) * LANES;
        let out = &mut self.out.row(row)[start..];
        if let (Some(out), false) = (out.first_chunk_mut(), self.add) {
            *out = *sums;
        } else {
            for (out, sum) in out.iter_mut().zip(sums) {
                *out = if self.add { *out + sum } else { *sum };
            }
        }
    }
}

/// `out[r, c] = sum over k of inputs[r, k] * weights[c, k]`.
///
/// out: (input rows, weight rows). With [`super::Activations::F32`] the sum runs over k in order,
/// each step fused. With [`super::Activations::Int8`] it runs over groups of 32 inputs (16 for
/// `Q6_K`) in order: the group's exact sum of integers times (weight scale times input scale),
/// fused, then the weights' minimum times the input's scaled sum, fused.
pub fn matmul(team: &Team, weights: &Matrix, inputs: &Inputs, out: &mut [f32]) {
    product(team, weights, inputs, out, false);
}

/// The same, added to what is in `out`.
pub fn matmul_add(team: &Team, weights: &Matrix, inputs: &Inputs, out: &mut [f32]) {
    product(team, weights, inputs, out, true);
}

fn product(team: &Team, weights: &Matrix, inputs: &Inputs, out: &mut [f32], add: bool) {
    assert_eq!(inputs.columns(), weights.cols(), "the inputs fit the weights");
    assert_eq!(inputs.activations(), weights.activations(), "prepared for these weights");
    assert_eq!(out.len(), inputs.rows() * weights.rows(), "one output a row and channel");
    let tiles = weights.rows().div_ceil(LANES);
    let for_each = inputs.rows() * weights.cols() * weights.rows() / team.threads();
    let chunks = (for_each / CHUNK_MACS).clamp(1, CHUNKS) * team.threads();
    let per_chunk = tiles.div_ceil(chunks);
    let size = (inputs.rows(), per_chunk * LANES);
    team.run_windows(out, weights.rows(), size, &|window| {
        let columns = window.columns();
        let (mut tile, end) = (columns.start / LANES, columns.end.div_ceil(LANES));
        while tile < end {
            let (part, first) = weights.tile(tile);
            let count = (end - tile).min(part.rows.div_ceil(LANES) - first);
            let column = tile * LANES - columns.start;
            let tiles = first..first + count;
            let mut slab = Slab { part, tiles, inputs, out: window, column, add };
            dispatch::multiply(team.instructions(), &mut slab);
            tile += count;
        }
    });
}

/// A tile's integers and scales, and the blocks of a group of rows.
#[derive(Debug)]
pub(crate) struct Operands<'a> {
    pub(crate) values: &'a [u8],
    pub(crate) scales: &'a [u8],
    pub(crate) inputs: &'a [InputBlock],
    /// Nobody has asked for the next weights yet.
    pub(crate) ahead: bool,
}

/// Calls `multiply(operands, start, rows, sums)` for each tile and each turn of at most `TURN`
/// rows, `start` of its group and after, and stores the sums.
#[inline(always)]
pub(crate) fn for_each_turn<const TURN: usize>(
    groups: Groups,
    slab: &mut Slab<'_, '_>,
    multiply: impl Fn(&Operands<'_>, usize, usize, &mut [[f32; LANES]; TURN]),
) {
    let part = slab.part;
    let all = part.cols / groups.len;
    let (value_bytes, scale_bytes) = (all * groups.value_bytes(), all * groups.scale_bytes());
    for tile in slab.tiles.clone() {
        let values = &part.values.bytes()[tile * value_bytes..][..value_bytes];
        let scales = &part.scales.bytes()[tile * scale_bytes..][..scale_bytes];
        for group in (0..slab.inputs.rows()).step_by(GROUP_ROWS) {
            let inputs = slab.inputs.blocks(group);
            let end = GROUP_ROWS.min(slab.inputs.rows() - group);
            let per_turn = end.div_ceil(end.div_ceil(TURN));
            for start in (0..end).step_by(per_turn) {
                let rows = per_turn.min(end - start);
                let operands = Operands { values, scales, inputs, ahead: group + start == 0 };
                let mut sums = [[0.0; LANES]; TURN];
                multiply(&operands, start, rows, &mut sums);
                for (row, sums) in sums[..rows].iter().enumerate() {
                    slab.store(tile, group + start + row, sums);
                }
            }
        }
    }
}

/// Products of 8-bit activations: the definition that faster versions must equal bit for bit.
#[inline(always)]
pub(crate) fn multiply_body(groups: Groups, slab: &mut Slab<'_, '_>) {
    for tile in slab.tiles.clone() {
        for start in (0..slab.inputs.rows()).step_by(GROUP_ROWS) {
            let rows = GROUP_ROWS.min(slab.inputs.rows() - start);
            let mut sums = [[0.0; LANES]; GROUP_ROWS];
            let inputs = slab.inputs.blocks(start);
            multiply_groups(slab.part, groups, tile, inputs, &mut sums[..rows]);
            for (row, sums) in sums[..rows].iter().enumerate() {
                slab.store(tile, start + row, sums);
            }
        }
    }
}

#[inline(always)]
fn multiply_groups(
    part: &Part,
    groups: Groups,
    tile: usize,
    inputs: &[InputBlock],
    out: &mut [[f32; LANES]],
) {
    let all = part.cols / groups.len;
    for group in 0..all {
        let stored = tile * all + group;
        let (mut quants, mut scales) = ([[0; LANES]; BLOCK], [(0.0, 0.0); LANES]);
        for lane in 0..LANES {
            scales[lane] = part.scale(groups, stored, lane);
            for (k, quants) in quants[..groups.len].iter_mut().enumerate() {
                quants[lane] = part.stored(groups, stored, lane, k);
            }
        }
        for (row, out) in out.iter_mut().enumerate() {
            let input = &inputs[group * groups.len / BLOCK];
            let half = group * groups.len % BLOCK;
            let mut sums = [offset(input, row, groups, half); LANES];
            for (x, quants) in input.quants[row][half..].iter().zip(&quants[..groups.len]) {
                for (sum, quant) in sums.iter_mut().zip(quants) {
                    *sum += i32::from(*x) * quant;
                }
            }
            for ((out, sum), (scale, minimum)) in out.iter_mut().zip(sums).zip(scales) {
                *out = (sum as f32).mul_add(scale * input.scales[row], *out);
                if groups.minimum {
                    *out = minimum.mul_add(input.scaled_sums[row], *out);
                }
            }
        }
    }
}

/// Where a sum of stored integers starts, so that it ends as that of centred ones.
#[inline(always)]
fn offset(input: &InputBlock, row: usize, groups: Groups, half: usize) -> i32 {
    match (groups.minimum, groups.wide, groups.len) {
        (true, ..) => 0,
        (false, false, _) => input.offsets_4[row],
        (false, true, 16) => input.offsets_8_half[half / 16][row],
        (false, true, _) => input.offsets_8[row],
    }
}
