//! Products of activation rows with a repacked matrix.

use super::inputs::{BLOCK, InputBlock, Inputs};
use super::matrix::{Activations, Form, Groups, Matrix, Part};
use super::rows::LANES;
use super::simd::dispatch;
use super::simd::team::Team;

/// Rows that share one reading of a weight.
pub(crate) const TILE_ROWS: usize = 8;

/// Outputs of up to eight rows in 16 channels.
pub(crate) type Tile = [[f32; LANES]; TILE_ROWS];

/// What one tile is computed from.
#[derive(Debug)]
pub(crate) struct Product<'a> {
    pub(crate) part: &'a Part,
    pub(crate) tile: usize,
    pub(crate) inputs: &'a Inputs,
    /// First row of at most eight.
    pub(crate) start: usize,
    pub(crate) rows: usize,
}

/// The same for 8-bit activations: a tile's integers and scales, and the blocks of its rows, which
/// are (blocks of a row, rows).
#[derive(Debug)]
pub(crate) struct Operands<'a> {
    pub(crate) values: &'a [u8],
    pub(crate) scales: &'a [u8],
    pub(crate) inputs: &'a [InputBlock],
    pub(crate) rows: usize,
}

impl<'a> Product<'a> {
    pub(crate) fn operands(&self) -> Option<(Groups, Operands<'a>)> {
        let (Form::Groups(groups), Activations::Int8) = (self.part.form, self.inputs.activations())
        else {
            return None;
        };
        let all = self.part.cols / groups.len;
        let tile = |bytes: usize| self.tile * all * bytes..(self.tile + 1) * all * bytes;
        let operands = Operands {
            values: &self.part.values.bytes()[tile(groups.value_bytes())],
            scales: &self.part.scales.bytes()[tile(groups.scale_bytes())],
            inputs: self.inputs.blocks(self.start, self.rows),
            rows: self.rows,
        };
        Some((groups, operands))
    }
}

/// `out[r, c] = sum over k of inputs[r, k] * weights[c, k]`.
///
/// out: (input rows, weight rows). With [`Activations::F32`] the sum runs over k in order, each
/// step fused. With [`Activations::Int8`] it runs over groups of 32 inputs (16 for `Q6_K`) in
/// order: the group's exact sum of integers times (weight scale times input scale), fused, then
/// the weights' minimum times the input's scaled sum, fused.
pub fn matmul(team: &Team, weights: &Matrix, inputs: &Inputs, out: &mut [f32]) {
    product(team, weights, inputs, out, |out, sums| out.copy_from_slice(sums));
}

/// The same, added to what is in `out`.
pub fn matmul_add(team: &Team, weights: &Matrix, inputs: &Inputs, out: &mut [f32]) {
    product(team, weights, inputs, out, |out, sums| {
        for (out, sum) in out.iter_mut().zip(sums) {
            *out += sum;
        }
    });
}

fn product(
    team: &Team,
    weights: &Matrix,
    inputs: &Inputs,
    out: &mut [f32],
    store: impl Fn(&mut [f32], &[f32]) + Sync,
) {
    assert_eq!(inputs.columns(), weights.cols(), "the inputs fit the weights");
    assert_eq!(inputs.activations(), weights.activations(), "prepared for these weights");
    assert_eq!(out.len(), inputs.rows() * weights.rows(), "one output a row and channel");
    let tiles = weights.rows().div_ceil(LANES);
    let per_chunk = tiles.div_ceil(8 * team.threads()).max(1);
    let rows = inputs.rows().max(1);
    team.run_windows(out, weights.rows(), (rows, per_chunk * LANES), &|window| {
        let columns = window.columns();
        for column in columns.clone().step_by(LANES) {
            let (part, tile) = weights.tile(column / LANES);
            let width = LANES.min(columns.end - column);
            for start in window.rows().step_by(TILE_ROWS) {
                let rows = TILE_ROWS.min(inputs.rows() - start);
                let mut sums = [[0.0; LANES]; TILE_ROWS];
                let product = Product { part, tile, inputs, start, rows };
                dispatch::multiply(team.instructions(), &product, &mut sums);
                for (row, sums) in sums[..rows].iter().enumerate() {
                    let out = &mut window.row(start + row)[column - columns.start..][..width];
                    store(out, &sums[..width]);
                }
            }
        }
    });
}

/// One tile; the definition that faster versions must equal bit for bit.
#[inline(always)]
pub(crate) fn multiply_body(product: &Product<'_>, out: &mut Tile) {
    match (product.part.form, product.inputs.activations()) {
        (Form::Groups(groups), Activations::Int8) => multiply_groups(product, groups, out),
        _ => multiply_floats(product, out),
    }
}

#[inline(always)]
fn multiply_floats(product: &Product<'_>, out: &mut Tile) {
    let part = product.part;
    for start in (0..part.cols).step_by(BLOCK) {
        let len = BLOCK.min(part.cols - start);
        let mut weights = [[0.0; LANES]; BLOCK];
        for (k, weights) in weights[..len].iter_mut().enumerate() {
            for (lane, weight) in weights.iter_mut().enumerate() {
                *weight = part.weight(product.tile, lane, start + k);
            }
        }
        for (row, out) in out[..product.rows].iter_mut().enumerate() {
            let x = &product.inputs.floats(product.start + row)[start..][..len];
            for (x, weights) in x.iter().zip(&weights) {
                for (out, weight) in out.iter_mut().zip(weights) {
                    *out = x.mul_add(*weight, *out);
                }
            }
        }
    }
}

#[inline(always)]
fn multiply_groups(product: &Product<'_>, groups: Groups, out: &mut Tile) {
    let part = product.part;
    let all = part.cols / groups.len;
    let inputs = product.inputs.blocks(product.start, product.rows);
    for group in 0..all {
        let stored = product.tile * all + group;
        let (mut quants, mut scales) = ([[0; LANES]; BLOCK], [(0.0, 0.0); LANES]);
        for lane in 0..LANES {
            scales[lane] = part.scale(groups, stored, lane);
            for (k, quants) in quants[..groups.len].iter_mut().enumerate() {
                quants[lane] = part.stored(groups, stored, lane, k);
            }
        }
        for (row, out) in out[..product.rows].iter_mut().enumerate() {
            let input = &inputs[group * groups.len / BLOCK * product.rows + row];
            let half = group * groups.len % BLOCK;
            let mut sums = [offset(input, groups, half); LANES];
            for (x, quants) in input.quants[half..].iter().zip(&quants[..groups.len]) {
                for (sum, quant) in sums.iter_mut().zip(quants) {
                    *sum += i32::from(*x) * quant;
                }
            }
            for ((out, sum), (scale, minimum)) in out.iter_mut().zip(sums).zip(scales) {
                *out = (sum as f32).mul_add(scale * input.scale, *out);
                if groups.minimum {
                    *out = minimum.mul_add(input.scaled_sum, *out);
                }
            }
        }
    }
}

/// Where a sum of stored integers starts, so that it ends as that of centred ones.
#[inline(always)]
fn offset(input: &InputBlock, groups: Groups, half: usize) -> i32 {
    match (groups.minimum, groups.wide, groups.len) {
        (true, ..) => 0,
        (false, false, _) => input.offset_4,
        (false, true, 16) => input.offset_8_half[half / 16],
        (false, true, _) => input.offset_8,
    }
}
