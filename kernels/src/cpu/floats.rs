//! Products of `f32` activations: weights of any format, turned to `f32` as they are read.

use super::matmul::Slab;
use super::matrix::{Form, Groups, Part};
use super::rows::LANES;
use super::simd::vector::Vector;
use crate::quant::Dtype;

/// Rows whose sums are in registers at once.
const TURN: usize = 6;

/// Every product is summed over the inputs in order, each step fused.
#[inline(always)]
pub(crate) fn multiply_body<V: Vector>(v: V, slab: &mut Slab<'_, '_>) {
    for tile in slab.tiles.clone() {
        for start in (0..slab.inputs.rows()).step_by(TURN) {
            match slab.inputs.rows() - start {
                1 => multiply_turn::<V, 1>(v, slab, tile, start),
                2 => multiply_turn::<V, 2>(v, slab, tile, start),
                3 => multiply_turn::<V, 3>(v, slab, tile, start),
                4 => multiply_turn::<V, 4>(v, slab, tile, start),
                5 => multiply_turn::<V, 5>(v, slab, tile, start),
                _ => multiply_turn::<V, TURN>(v, slab, tile, start),
            }
        }
    }
}

#[inline(always)]
fn multiply_turn<V: Vector, const ROWS: usize>(
    v: V,
    slab: &mut Slab<'_, '_>,
    tile: usize,
    start: usize,
) {
    let mut x: [&[f32]; ROWS] = [&[]; ROWS];
    for (i, x) in x.iter_mut().enumerate() {
        *x = &slab.inputs.floats(start + i)[..slab.part.cols];
    }
    let sums = match slab.part.form {
        Form::Plain(dtype) => plain(v, slab.part, dtype, tile, x),
        Form::Groups(groups) => grouped(v, slab.part, groups, tile, x),
    };
    for (i, sums) in sums.into_iter().enumerate() {
        let mut out = [0.0; LANES];
        v.store(sums, &mut out);
        slab.store(tile, start + i, &out);
    }
}

#[inline(always)]
fn plain<V: Vector, const ROWS: usize>(
    v: V,
    part: &Part,
    dtype: Dtype,
    tile: usize,
    x: [&[f32]; ROWS],
) -> [V::Lanes; ROWS] {
    let mut sums = [v.splat(0.0); ROWS];
    let width = LANES * dtype.block_bytes();
    let values = &part.values.bytes()[tile * part.cols * width..][..part.cols * width];
    for (k, values) in values.chunks_exact(width).enumerate() {
        let weights = match dtype {
            Dtype::F16 => v.load_half(&words(values)),
            Dtype::BF16 => v.load_bfloat(&words(values)),
            _ => v.load_float(first(values)),
        };
        for (sum, x) in sums.iter_mut().zip(&x) {
            *sum = v.fma(v.splat(x[k]), weights, *sum);
        }
    }
    sums
}

#[inline(always)]
fn grouped<V: Vector, const ROWS: usize>(
    v: V,
    part: &Part,
    groups: Groups,
    tile: usize,
    x: [&[f32]; ROWS],
) -> [V::Lanes; ROWS] {
    let mut sums = [v.splat(0.0); ROWS];
    let all = part.cols / groups.len;
    let (value_bytes, scale_bytes) = (groups.value_bytes(), groups.scale_bytes());
    let values = part.values.bytes().chunks_exact(value_bytes).skip(tile * all);
    let scales = part.scales.bytes().chunks_exact(scale_bytes).skip(tile * all);
    let zero = v.splat(-(groups.zero() as f32));
    let bits = if groups.wide { 8 } else { 4 };
    for (group, (values, scales)) in values.zip(scales).take(all).enumerate() {
        let numbers = |at: usize| {
            let scales = &scales[at * scale_bytes / 2..];
            if groups.half { v.load_half(&words(scales)) } else { v.load_float(first(scales)) }
        };
        let scale = numbers(0);
        let minimum = if groups.minimum { numbers(1) } else { scale };
        for k in 0..groups.len {
            let (quad, high) = if groups.wide { (k / 4, 0) } else { (k % 16 / 4, k / 16 * 4) };
            let shift = u32::try_from(k % 4 * 8 + high).expect("it is below 32");
            let quants = v.load_bits(first(&values[64 * quad..]), shift, bits);
            let mut weights = v.mul(scale, v.add(quants, zero));
            if groups.minimum {
                weights = v.add(weights, minimum);
            }
            for (sum, x) in sums.iter_mut().zip(&x) {
                *sum = v.fma(v.splat(x[group * groups.len + k]), weights, *sum);
            }
        }
    }
    sums
}

#[inline(always)]
fn first<const LEN: usize>(bytes: &[u8]) -> &[u8; LEN] {
    bytes.first_chunk().expect("a tile has all its lanes")
}

/// The first 16 words of two bytes.
#[inline(always)]
fn words(bytes: &[u8]) -> [u16; LANES] {
    let bytes: &[u8; 2 * LANES] = first(bytes);
    let mut words = [0; LANES];
    for (i, word) in words.iter_mut().enumerate() {
        *word = u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
    }
    words
}
