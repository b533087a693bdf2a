//! Operations on single rows: norms, activations, softmax, the largest.

use std::f32::consts::LOG2_E;

use super::simd::dispatch;
use super::simd::team::Team;

/// Numbers that are worked on side by side; sums keep this many partial sums.
pub(super) const LANES: usize = 16;

/// Work below which waking another thread costs more than it saves, in elements.
const SHARED_MIN: usize = 1 << 14;

/// Rows of one chunk so that each thread gets several chunks, or all rows when they are few.
pub(super) fn rows_per_chunk(team: &Team, rows: usize, columns: usize) -> usize {
    if rows * columns < SHARED_MIN { rows.max(1) } else { rows.div_ceil(4 * team.threads()) }
}

/// `out[r, d] = x[r, d] / rms(x[r, :]) * weight[d]`, with `eps` added to the mean square.
///
/// x, out: (rows, dim); weight: (dim,).
pub fn rmsnorm(team: &Team, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let dim = weight.len();
    assert_eq!(x.len(), out.len(), "one output an input");
    let per_chunk = rows_per_chunk(team, x.len() / dim, dim);
    team.run_windows(out, dim, (per_chunk, dim), &|window| {
        for row in window.rows() {
            let x = &x[row * dim..][..dim];
            dispatch::rmsnorm(team.instructions(), x, weight, eps, window.row(row));
        }
    });
}

/// `out[r, d] = silu(gate[r, d]) * up[r, d]`.
///
/// gate_up: (rows, 2 dim), the gate first; out: (rows, dim).
pub fn swiglu(team: &Team, gate_up: &[f32], dim: usize, out: &mut [f32]) {
    assert_eq!(gate_up.len(), 2 * out.len(), "two inputs an output");
    let per_chunk = rows_per_chunk(team, out.len() / dim, dim);
    team.run_windows(out, dim, (per_chunk, dim), &|window| {
        for row in window.rows() {
            let (gate, up) = gate_up[row * 2 * dim..][..2 * dim].split_at(dim);
            dispatch::swiglu(team.instructions(), gate, up, window.row(row));
        }
    });
}

/// `out[i] += x[i]`.
pub fn add(team: &Team, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "one input an output");
    dispatch::add(team.instructions(), x, out);
}

/// `x = exp(x - max x) / sum`, in place, on one row.
pub fn softmax(team: &Team, x: &mut [f32]) {
    dispatch::softmax(team.instructions(), x);
}

/// Index of the largest; the lowest of equals. What is not a number is never the largest; 0 when
/// there is none.
pub fn argmax(x: &[f32]) -> usize {
    let mut best = (0, f32::NEG_INFINITY);
    let mut found = false;
    for (i, &value) in x.iter().enumerate() {
        if best.1 < value || (!found && value == best.1) {
            best = (i, value);
            found = true;
        }
    }
    best.0
}

/// `exp(x)`: 0 below -87, as at 88 above it. Within 2 units in the last place between.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    /// Adding it leaves the nearest integer in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let clamped = x.clamp(-87.0, 88.0);
    let rounded = clamped.mul_add(LOG2_E, ROUND);
    let whole = rounded - ROUND;
    let rest = whole.mul_add(-LN_2_LOW, whole.mul_add(-LN_2_HIGH, clamped));
    // Taylor to the seventh power: the rest is at most ln 2 / 2, so the eighth is below 6e-9.
    let mut sum = 1.0 / 5040.0;
    for factor in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = rest.mul_add(sum, factor);
    }
    let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(1.0_f32.to_bits()));
    if x < -87.0 { 0.0 } else { sum * power }
}

/// The lanes of a row that may end in the middle of a group; lanes beyond its end are `rest`.
#[inline(always)]
pub(super) fn lanes(x: &[f32], rest: f32) -> [f32; LANES] {
    let mut out = [rest; LANES];
    out[..x.len()].copy_from_slice(x);
    out
}

/// Sum of partial sums: halves are added until one is left.
#[inline(always)]
pub(super) fn sum_lanes(mut sums: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while 0 < half {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
        half /= 2;
    }
    sums[0]
}

#[inline(always)]
pub(super) fn rmsnorm_body(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mut sums = [0.0; LANES];
    let mut chunks = x.chunks_exact(LANES);
    for x in &mut chunks {
        for (sum, &x) in sums.iter_mut().zip(x) {
            *sum = x.mul_add(x, *sum);
        }
    }
    for (sum, x) in sums.iter_mut().zip(lanes(chunks.remainder(), 0.0)) {
        *sum = x.mul_add(x, *sum);
    }
    let scale = 1.0 / (sum_lanes(sums) / x.len() as f32 + eps).sqrt();
    for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
}

#[inline(always)]
pub(super) fn swiglu_body(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
        *out = gate / (1.0 + exp(-gate)) * up;
    }
}

#[inline(always)]
pub(super) fn add_body(x: &[f32], out: &mut [f32]) {
    for (out, &x) in out.iter_mut().zip(x) {
        *out += x;
    }
}

#[inline(always)]
pub(super) fn softmax_body(x: &mut [f32]) {
    let max = x.iter().fold(f32::NEG_INFINITY, |max, &x| if max < x { x } else { max });
    let mut sums = [0.0; LANES];
    for x in x.chunks_mut(LANES) {
        for (x, sum) in x.iter_mut().zip(&mut sums) {
            *x = exp(*x - max);
            *sum += *x;
        }
    }
    let scale = 1.0 / sum_lanes(sums);
    for x in x {
        *x *= scale;
    }
}
