//! Products of 8-bit activations with AVX2.
//!
//! Sums of 4-bit integers times 8-bit ones fit 16 bits within a group: 8 times 2 * 15 * 127. So
//! 8-bit weights are taken as a low and a high half.

use std::arch::x86_64::*;

use super::prefetch::prefetch;
use crate::cpu::inputs::InputBlock;
use crate::cpu::matmul::{Operands, Slab, for_each_turn};
use crate::cpu::matrix::Groups;
use crate::cpu::rows::LANES;

/// Rows whose sums fit the registers.
const ROWS_MAX: usize = 4;

/// Sixteen channels in two registers.
type Pair<T> = [T; 2];

/// See [`crate::cpu::matmul::multiply_body`], whose bits it gives.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn multiply(groups: Groups, slab: &mut Slab<'_, '_>) {
    for_each_turn::<ROWS_MAX>(groups, slab, |operands, start, rows, sums| {
        match (groups.wide, rows) {
            (false, 1) => by_rows::<false, 1>(groups, operands, start, sums),
            (false, 2) => by_rows::<false, 2>(groups, operands, start, sums),
            (false, 3) => by_rows::<false, 3>(groups, operands, start, sums),
            (false, _) => by_rows::<false, ROWS_MAX>(groups, operands, start, sums),
            (true, 1) => by_rows::<true, 1>(groups, operands, start, sums),
            (true, 2) => by_rows::<true, 2>(groups, operands, start, sums),
            (true, 3) => by_rows::<true, 3>(groups, operands, start, sums),
            (true, _) => by_rows::<true, ROWS_MAX>(groups, operands, start, sums),
        }
    });
}

#[target_feature(enable = "avx2,fma,f16c")]
fn by_rows<const WIDE: bool, const ROWS: usize>(
    groups: Groups,
    operands: &Operands<'_>,
    start: usize,
    out: &mut [[f32; LANES]; ROWS_MAX],
) {
    let mut values = operands.values.chunks_exact(groups.value_bytes());
    let mut scales = operands.scales.chunks_exact(groups.scale_bytes());
    let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
    for input in operands.inputs {
        for half in 0..32 / groups.len {
            let (Some(values), Some(scales)) = (values.next(), scales.next()) else { return };
            if operands.ahead {
                prefetch(values);
                prefetch(scales);
            }
            let first = half * groups.len / 4;
            let dots = if WIDE {
                wide_dots::<ROWS>(values, input, start, first)
            } else {
                narrow_dots::<ROWS>(values, input, start)
            };
            let scale = load_scales(groups, scales, 0);
            let minimum = load_scales(groups, scales, usize::from(groups.minimum));
            for (row, (sums, dots)) in sums.iter_mut().zip(dots).enumerate() {
                let row = start + row;
                let offset = _mm256_set1_epi32(match (groups.minimum, WIDE, groups.len) {
                    (true, ..) => 0,
                    (false, false, _) => input.offsets_4[row],
                    (false, true, 16) => input.offsets_8_half[half][row],
                    (false, true, _) => input.offsets_8[row],
                });
                let input_scale = _mm256_set1_ps(input.scales[row]);
                let scaled_sum = _mm256_set1_ps(input.scaled_sums[row]);
                for i in 0..2 {
                    let dot = _mm256_cvtepi32_ps(_mm256_add_epi32(dots[i], offset));
                    let factor = _mm256_mul_ps(scale[i], input_scale);
                    sums[i] = _mm256_fmadd_ps(dot, factor, sums[i]);
                    if groups.minimum {
                        sums[i] = _mm256_fmadd_ps(minimum[i], scaled_sum, sums[i]);
                    }
                }
            }
        }
    }
    for (out, sums) in out.iter_mut().zip(sums) {
        // SAFETY: the array holds the sixteen numbers of two vectors.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), sums[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), sums[1]);
        }
    }
}

/// Sums of 4-bit integers times inputs, a whole group of 32.
#[target_feature(enable = "avx2")]
fn narrow_dots<const ROWS: usize>(
    values: &[u8],
    input: &InputBlock,
    start: usize,
) -> [Pair<__m256i>; ROWS] {
    let mut sums = [[_mm256_setzero_si256(); 2]; ROWS];
    for (piece, bytes) in values.chunks_exact(64).enumerate() {
        let (low, high) = halves(load(bytes));
        for (quad, weights) in [(piece, low), (piece + 4, high)] {
            for (row, sums) in sums.iter_mut().enumerate() {
                let x = quad_of(&input.quants[start + row], quad);
                add_products(sums, weights, x);
            }
        }
    }
    let ones = _mm256_set1_epi16(1);
    for sums in sums.iter_mut().flatten() {
        *sums = _mm256_madd_epi16(*sums, ones);
    }
    sums
}

/// Sums of 8-bit integers times inputs, from quad `first` of the block on.
#[target_feature(enable = "avx2")]
fn wide_dots<const ROWS: usize>(
    values: &[u8],
    input: &InputBlock,
    start: usize,
    first: usize,
) -> [Pair<__m256i>; ROWS] {
    let mut lows = [[_mm256_setzero_si256(); 2]; ROWS];
    let mut highs = [[_mm256_setzero_si256(); 2]; ROWS];
    for (quad, bytes) in values.chunks_exact(64).enumerate() {
        let (low, high) = halves(load(bytes));
        for (row, (lows, highs)) in lows.iter_mut().zip(&mut highs).enumerate() {
            let x = quad_of(&input.quants[start + row], first + quad);
            add_products(lows, low, x);
            add_products(highs, high, x);
        }
    }
    let (one, sixteen) = (_mm256_set1_epi16(1), _mm256_set1_epi16(16));
    for (low, high) in lows.iter_mut().flatten().zip(highs.iter().flatten()) {
        let (a, b) = (_mm256_madd_epi16(*low, one), _mm256_madd_epi16(*high, sixteen));
        *low = _mm256_add_epi32(a, b);
    }
    lows
}

/// Adds products of neighbouring bytes, in 16 bits.
#[target_feature(enable = "avx2")]
fn add_products(sums: &mut Pair<__m256i>, weights: Pair<__m256i>, x: __m256i) {
    for (sum, weights) in sums.iter_mut().zip(weights) {
        *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(weights, x));
    }
}

/// The low and the high four bits of each byte.
#[target_feature(enable = "avx2")]
fn halves(pairs: Pair<__m256i>) -> (Pair<__m256i>, Pair<__m256i>) {
    let mask = _mm256_set1_epi8(15);
    let low = [_mm256_and_si256(pairs[0], mask), _mm256_and_si256(pairs[1], mask)];
    let shifted = [_mm256_srli_epi16::<4>(pairs[0]), _mm256_srli_epi16::<4>(pairs[1])];
    (low, [_mm256_and_si256(shifted[0], mask), _mm256_and_si256(shifted[1], mask)])
}

/// Four inputs in every lane.
#[target_feature(enable = "avx2")]
fn quad_of(row: &[i8; 32], quad: usize) -> __m256i {
    let q = &row[4 * quad..][..4];
    let bytes = [q[0], q[1], q[2], q[3]].map(i8::cast_unsigned);
    _mm256_set1_epi32(i32::from_le_bytes(bytes))
}

#[target_feature(enable = "avx2")]
fn load(bytes: &[u8]) -> Pair<__m256i> {
    assert!(bytes.len() == 64);
    let at = bytes.as_ptr().cast::<__m256i>();
    // SAFETY: the slice has the 64 bytes; the loads need no alignment.
    unsafe { [_mm256_loadu_si256(at), _mm256_loadu_si256(at.add(1))] }
}

/// The scales of a group, or with `at` 1 its minimums.
#[target_feature(enable = "avx2,f16c")]
fn load_scales(groups: Groups, scales: &[u8], at: usize) -> Pair<__m256> {
    if groups.half {
        let at = scales[32 * at..][..32].as_ptr().cast::<__m128i>();
        // SAFETY: the slice has the 32 bytes; the loads need no alignment.
        let (a, b) = unsafe { (_mm_loadu_si128(at), _mm_loadu_si128(at.add(1))) };
        [_mm256_cvtph_ps(a), _mm256_cvtph_ps(b)]
    } else {
        let [a, b] = load(&scales[64 * at..][..64]);
        [_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)]
    }
}
