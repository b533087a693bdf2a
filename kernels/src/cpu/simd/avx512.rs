//! Products of 8-bit activations with AVX-512 and its integer dot products (VNNI).

use std::arch::x86_64::*;

use crate::cpu::inputs::{self, InputBlock};
use crate::cpu::matmul::{Operands, Slab, for_each_turn};
use crate::cpu::matrix::Groups;
use crate::cpu::rows::LANES;
use crate::cpu::simd::prefetch::prefetch;

/// Rows whose sums fit the registers beside the weights of a group.
const ROWS_MAX: usize = 6;

/// See [`crate::cpu::matmul::multiply_body`], whose bits it gives.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) fn multiply(groups: Groups, slab: &mut Slab<'_, '_>) {
    let Groups { wide, minimum, half, len } = groups;
    match (wide, minimum, half, len) {
        (false, false, true, 32) => by_tiles::<false, false, true, 32>(groups, slab),
        (false, true, true, 32) => by_tiles::<false, true, true, 32>(groups, slab),
        (false, true, false, 32) => by_tiles::<false, true, false, 32>(groups, slab),
        (true, false, true, 32) => by_tiles::<true, false, true, 32>(groups, slab),
        (true, false, false, 32) => by_tiles::<true, false, false, 32>(groups, slab),
        (true, true, true, 32) => by_tiles::<true, true, true, 32>(groups, slab),
        (true, true, false, 32) => by_tiles::<true, true, false, 32>(groups, slab),
        (true, false, false, 16) => by_tiles::<true, false, false, 16>(groups, slab),
        _ => unreachable!("no format is packed as {groups:?}"),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn by_tiles<const WIDE: bool, const MINIMUM: bool, const HALF: bool, const LEN: usize>(
    groups: Groups,
    slab: &mut Slab<'_, '_>,
) {
    for_each_turn::<ROWS_MAX>(groups, slab, |operands, start, rows, sums| match rows {
        1 => by_rows::<WIDE, MINIMUM, HALF, LEN, 1>(operands, start, sums),
        2 => by_rows::<WIDE, MINIMUM, HALF, LEN, 2>(operands, start, sums),
        3 => by_rows::<WIDE, MINIMUM, HALF, LEN, 3>(operands, start, sums),
        4 => by_rows::<WIDE, MINIMUM, HALF, LEN, 4>(operands, start, sums),
        5 => by_rows::<WIDE, MINIMUM, HALF, LEN, 5>(operands, start, sums),
        _ => by_rows::<WIDE, MINIMUM, HALF, LEN, ROWS_MAX>(operands, start, sums),
    });
}

/// Rows `start..start + ROWS` of a tile. Their sums are made in turns, so that none waits for
/// another.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn by_rows<
    const WIDE: bool,
    const MINIMUM: bool,
    const HALF: bool,
    const LEN: usize,
    const ROWS: usize,
>(
    operands: &Operands<'_>,
    start: usize,
    out: &mut [[f32; LANES]; ROWS_MAX],
) {
    let value_bytes = if WIDE { 16 * LEN } else { 8 * LEN };
    let scale_bytes = if HALF { 32 } else { 64 } * if MINIMUM { 2 } else { 1 };
    let mut values = operands.values.chunks_exact(value_bytes);
    let mut scales = operands.scales.chunks_exact(scale_bytes);
    let mut sums = [_mm512_setzero_ps(); ROWS];
    for input in operands.inputs {
        let Some(rows) = input.quants[start..].first_chunk::<ROWS>() else { return };
        for half in 0..32 / LEN {
            let (Some(values), Some(scales)) = (values.next(), scales.next()) else { return };
            if operands.ahead {
                prefetch(values);
                prefetch(scales);
            }
            let quads = unpack::<WIDE, LEN>(values);
            let mut dots = [_mm512_setzero_si512(); ROWS];
            if !MINIMUM {
                let offsets = match (WIDE, LEN) {
                    (false, _) => &input.offsets_4,
                    (true, 16) => &input.offsets_8_half[half],
                    (true, _) => &input.offsets_8,
                };
                for (dot, offset) in dots.iter_mut().zip(&offsets[start..]) {
                    *dot = _mm512_set1_epi32(*offset);
                }
            }
            // A second sum for the odd quads where one row alone would wait for its own.
            let mut others = [_mm512_setzero_si512(); ROWS];
            for (quad, weights) in quads[..LEN / 4].iter().enumerate() {
                for ((dot, other), row) in dots.iter_mut().zip(&mut others).zip(rows) {
                    let sum = if ROWS <= 2 && quad % 2 == 1 { other } else { dot };
                    let inputs = quad_of(row, half * LEN / 4 + quad);
                    *sum = _mm512_dpbusd_epi32(*sum, *weights, inputs);
                }
            }
            let scale = load_scales::<HALF>(scales, 0);
            let minimum =
                if MINIMUM { load_scales::<HALF>(scales, 1) } else { _mm512_setzero_ps() };
            for (row, sum) in sums.iter_mut().enumerate() {
                let dot =
                    if ROWS <= 2 { _mm512_add_epi32(dots[row], others[row]) } else { dots[row] };
                let factor = _mm512_mul_ps(scale, _mm512_set1_ps(input.scales[start + row]));
                *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), factor, *sum);
                if MINIMUM {
                    let scaled_sum = _mm512_set1_ps(input.scaled_sums[start + row]);
                    *sum = _mm512_fmadd_ps(minimum, scaled_sum, *sum);
                }
            }
        }
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        // SAFETY: the array holds the sixteen numbers of a vector.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), sum) };
    }
}

/// See [`inputs::quantize_body`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) fn quantize(x: &[f32], columns: usize, out: &mut [InputBlock]) {
    inputs::for_each_block(x, columns, out, |x, row, out| {
        // SAFETY: the array has two vectors of 16 numbers; the loads need no alignment.
        let halves = [0, 16].map(|at| unsafe { _mm512_loadu_ps(x[at..].as_ptr()) });
        let sizes = halves.map(|x| _mm512_castps_si512(_mm512_abs_ps(x)));
        let amax = _mm512_reduce_max_epu32(_mm512_max_epu32(sizes[0], sizes[1]));
        let (scale, inverse) = inputs::scale_and_inverse(f32::from_bits(amax));
        let (round, inverse) = (_mm512_set1_ps(inputs::ROUND), _mm512_set1_ps(inverse));
        let mut sums = [0; 2];
        for (half, x) in halves.into_iter().enumerate() {
            let rounded = _mm512_add_ps(_mm512_mul_ps(x, inverse), round);
            let bytes = _mm512_cvtepi32_epi8(_mm512_castps_si512(rounded));
            // SAFETY: half a row has the 16 bytes of the vector.
            unsafe { _mm_storeu_si128(out.quants[row][16 * half..].as_mut_ptr().cast(), bytes) };
            sums[half] = _mm512_reduce_add_epi32(_mm512_cvtepi8_epi32(bytes));
        }
        out.finish(row, scale, sums);
    });
}

/// Four inputs in every lane.
#[target_feature(enable = "avx512f,avx512bw")]
fn quad_of(row: &[i8; 32], quad: usize) -> __m512i {
    let q = &row[4 * quad..][..4];
    let bytes = [q[0], q[1], q[2], q[3]].map(i8::cast_unsigned);
    _mm512_set1_epi32(i32::from_le_bytes(bytes))
}

/// The integers of a group, a byte each; four of a channel in a lane.
#[target_feature(enable = "avx512f,avx512bw")]
fn unpack<const WIDE: bool, const LEN: usize>(values: &[u8]) -> [__m512i; 8] {
    let mut quads = [_mm512_setzero_si512(); 8];
    if WIDE {
        for (quad, bytes) in quads.iter_mut().zip(values.chunks_exact(64)) {
            *quad = load(bytes);
        }
    } else {
        let low = _mm512_set1_epi8(15);
        for (i, bytes) in values.chunks_exact(64).enumerate() {
            let pairs = load(bytes);
            quads[i] = _mm512_and_si512(pairs, low);
            quads[i + 4] = _mm512_and_si512(_mm512_srli_epi16(pairs, 4), low);
        }
    }
    quads
}

#[target_feature(enable = "avx512f,avx512bw")]
fn load(bytes: &[u8]) -> __m512i {
    assert!(bytes.len() == 64);
    // SAFETY: the slice has the 64 bytes; the load needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// The scales of a group, or with `at` 1 its minimums.
#[target_feature(enable = "avx512f,avx512bw,f16c")]
fn load_scales<const HALF: bool>(scales: &[u8], at: usize) -> __m512 {
    if HALF {
        let halves = &scales[32 * at..][..32];
        // SAFETY: the slice has the 32 bytes; the load needs no alignment.
        _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(halves.as_ptr().cast()) })
    } else {
        _mm512_castsi512_ps(load(&scales[64 * at..][..64]))
    }
}
