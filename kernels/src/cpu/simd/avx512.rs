//! Products of 8-bit activations with AVX-512 and its integer dot products (VNNI).

use std::arch::x86_64::*;

use crate::cpu::inputs::InputBlock;
use crate::cpu::matmul::{Operands, Tile};
use crate::cpu::matrix::Groups;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) fn multiply_groups(groups: Groups, operands: &Operands<'_>, out: &mut Tile) {
    let Groups { wide, minimum, half, len } = groups;
    match (wide, minimum, half, len) {
        (false, false, true, 32) => by_rows::<false, false, true, 32>(operands, out),
        (false, true, true, 32) => by_rows::<false, true, true, 32>(operands, out),
        (false, true, false, 32) => by_rows::<false, true, false, 32>(operands, out),
        (true, false, true, 32) => by_rows::<true, false, true, 32>(operands, out),
        (true, false, false, 32) => by_rows::<true, false, false, 32>(operands, out),
        (true, true, true, 32) => by_rows::<true, true, true, 32>(operands, out),
        (true, true, false, 32) => by_rows::<true, true, false, 32>(operands, out),
        (true, false, false, 16) => by_rows::<true, false, false, 16>(operands, out),
        _ => unreachable!("no format is packed as {groups:?}"),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn by_rows<const WIDE: bool, const MINIMUM: bool, const HALF: bool, const LEN: usize>(
    operands: &Operands<'_>,
    out: &mut Tile,
) {
    match operands.rows {
        1 => multiply::<WIDE, MINIMUM, HALF, LEN, 1>(operands, out),
        2 => multiply::<WIDE, MINIMUM, HALF, LEN, 2>(operands, out),
        3 => multiply::<WIDE, MINIMUM, HALF, LEN, 3>(operands, out),
        4 => multiply::<WIDE, MINIMUM, HALF, LEN, 4>(operands, out),
        5 => multiply::<WIDE, MINIMUM, HALF, LEN, 5>(operands, out),
        6 => multiply::<WIDE, MINIMUM, HALF, LEN, 6>(operands, out),
        7 => multiply::<WIDE, MINIMUM, HALF, LEN, 7>(operands, out),
        8 => multiply::<WIDE, MINIMUM, HALF, LEN, 8>(operands, out),
        rows => unreachable!("{rows} rows in a tile"),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn multiply<
    const WIDE: bool,
    const MINIMUM: bool,
    const HALF: bool,
    const LEN: usize,
    const ROWS: usize,
>(
    operands: &Operands<'_>,
    out: &mut Tile,
) {
    let value_bytes = if WIDE { 16 * LEN } else { 8 * LEN };
    let scale_bytes = if HALF { 32 } else { 64 } * if MINIMUM { 2 } else { 1 };
    let mut values = operands.values.chunks_exact(value_bytes);
    let mut scales = operands.scales.chunks_exact(scale_bytes);
    let mut sums = [_mm512_setzero_ps(); ROWS];
    for inputs in operands.inputs.chunks_exact(ROWS) {
        for half in 0..32 / LEN {
            let (Some(values), Some(scales)) = (values.next(), scales.next()) else { return };
            let quads = unpack::<WIDE, LEN>(values);
            let scale = load_scales::<HALF>(scales, 0);
            let minimum =
                if MINIMUM { load_scales::<HALF>(scales, 1) } else { _mm512_setzero_ps() };
            for (input, sum) in inputs.iter().zip(&mut sums) {
                let offset = match (MINIMUM, WIDE, LEN) {
                    (true, ..) => 0,
                    (false, false, _) => input.offset_4,
                    (false, true, 16) => input.offset_8_half[half],
                    (false, true, _) => input.offset_8,
                };
                let mut dot = _mm512_set1_epi32(offset);
                for (quad, weights) in quads[..LEN / 4].iter().enumerate() {
                    dot = _mm512_dpbusd_epi32(dot, *weights, quad_of(input, half * LEN / 4 + quad));
                }
                let factor = _mm512_mul_ps(scale, _mm512_set1_ps(input.scale));
                *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), factor, *sum);
                if MINIMUM {
                    *sum = _mm512_fmadd_ps(minimum, _mm512_set1_ps(input.scaled_sum), *sum);
                }
            }
        }
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        // SAFETY: the array holds the sixteen numbers of a vector.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), sum) };
    }
}

/// Four inputs in every lane.
#[target_feature(enable = "avx512f,avx512bw")]
fn quad_of(input: &InputBlock, quad: usize) -> __m512i {
    let q = &input.quants[4 * quad..][..4];
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
