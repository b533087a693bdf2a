//! Activation rows, made ready once for all the products that read them.

use super::matmul::TILE_ROWS;
use super::matrix::Activations;
use super::rows::rows_per_chunk;
use super::simd::dispatch;
use super::simd::team::Team;

/// Inputs that share a scale.
pub(super) const BLOCK: usize = 32;

/// Thirty-two inputs of a row in 8 bits: one cache line with all that a product asks for.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct InputBlock {
    /// From -127 to 127.
    pub(crate) quants: [i8; BLOCK],
    /// An input is `scale * quant`.
    pub(crate) scale: f32,
    /// `scale` times the sum of the integers: the factor of a weight block's minimum.
    pub(crate) scaled_sum: f32,
    /// The sum of the integers times the zero point of 4-bit weights, subtracted from 0.
    pub(crate) offset_4: i32,
    /// The same for 8-bit weights, of the whole block and of each half.
    pub(crate) offset_8: i32,
    pub(crate) offset_8_half: [i32; 2],
}

impl InputBlock {
    const EMPTY: Self = Self {
        quants: [0; BLOCK],
        scale: 0.0,
        scaled_sum: 0.0,
        offset_4: 0,
        offset_8: 0,
        offset_8_half: [0; 2],
    };
}

/// Zero points of centred weights that are stored from 0.
pub(super) const ZERO_4: i32 = 8;
pub(super) const ZERO_8: i32 = 128;

/// Rows of activations as [`super::matmul`] reads them. Kept between steps, it allocates only when
/// it grows.
#[derive(Debug)]
pub struct Inputs {
    activations: Activations,
    rows: usize,
    columns: usize,
    floats: Vec<f32>,
    /// (groups of eight rows, blocks of a row, rows of the group): what a tile of rows reads
    /// stands together. The last group may have fewer rows, the last block is filled with zeros.
    blocks: Vec<InputBlock>,
}

impl Inputs {
    /// No rows; room for `rows` of `columns` without allocating.
    pub fn with_capacity(rows: usize, columns: usize, activations: Activations) -> Self {
        let mut empty =
            Self { activations, rows: 0, columns: 0, floats: Vec::new(), blocks: Vec::new() };
        match activations {
            Activations::F32 => empty.floats.reserve(rows * columns),
            Activations::Int8 => empty.blocks.reserve(rows * columns.div_ceil(BLOCK)),
        }
        empty
    }

    /// Takes the rows of `x`, (rows, columns), in the form that weights with these `activations`
    /// need; see [`super::Matrix::activations`].
    pub fn prepare(&mut self, team: &Team, x: &[f32], columns: usize, activations: Activations) {
        assert!(x.len().is_multiple_of(columns), "rows are whole");
        self.activations = activations;
        self.columns = columns;
        self.rows = x.len() / columns;
        let per_chunk = rows_per_chunk(team, self.rows, columns);
        match activations {
            Activations::F32 => {
                self.floats.resize(x.len(), 0.0);
                team.run_windows(&mut self.floats, columns, (per_chunk, columns), &|window| {
                    for row in window.rows() {
                        window.row(row).copy_from_slice(&x[row * columns..][..columns]);
                    }
                });
            }
            Activations::Int8 => {
                let len = self.rows * columns.div_ceil(BLOCK);
                let group_len = TILE_ROWS * columns.div_ceil(BLOCK);
                let per_chunk = per_chunk.div_ceil(TILE_ROWS) * group_len;
                self.blocks.resize(len, InputBlock::EMPTY);
                team.run_windows(&mut self.blocks, len, (1, per_chunk), &|window| {
                    let start = window.columns().start / group_len;
                    let groups = window.row(0).chunks_mut(group_len);
                    for (x, group) in x.chunks(TILE_ROWS * columns).skip(start).zip(groups) {
                        dispatch::quantize(team.instructions(), x, columns, group);
                    }
                });
            }
        }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn columns(&self) -> usize {
        self.columns
    }

    pub fn activations(&self) -> Activations {
        self.activations
    }

    pub(super) fn floats(&self, row: usize) -> &[f32] {
        &self.floats[row * self.columns..][..self.columns]
    }

    /// The blocks of the `rows` rows from `start` on, a whole group: (blocks of a row, rows).
    pub(super) fn blocks(&self, start: usize, rows: usize) -> &[InputBlock] {
        let blocks = self.columns.div_ceil(BLOCK);
        debug_assert!(start.is_multiple_of(TILE_ROWS) && rows == TILE_ROWS.min(self.rows - start));
        &self.blocks[start * blocks..][..rows * blocks]
    }
}

/// x: (rows, columns); out: (blocks of a row, rows).
///
/// What is not finite makes its block's scale so, and with it every product.
#[inline(always)]
pub(super) fn quantize_body(x: &[f32], columns: usize, out: &mut [InputBlock]) {
    let rows = x.len() / columns;
    for (row, x) in x.chunks_exact(columns).enumerate() {
        for (x, out) in x.chunks(BLOCK).zip(out.chunks_exact_mut(rows)) {
            let mut padded = [0.0; BLOCK];
            padded[..x.len()].copy_from_slice(x);
            out[row] = quantize_block(&padded);
        }
    }
}

#[inline(always)]
fn quantize_block(x: &[f32; BLOCK]) -> InputBlock {
    /// Adding it rounds to the nearest integer, which is then in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;
    /// Below it the reciprocal overflows; such a block is as good as zero.
    const AMAX_MIN: f32 = 1e-30;
    let mut out = InputBlock::EMPTY;
    // As bits, so that infinities and what is not a number count as largest.
    let amax = x.iter().fold(0, |amax, x| amax.max(x.to_bits() & 0x7fff_ffff));
    let amax = f32::from_bits(amax);
    out.scale = amax / 127.0;
    let inverse = if AMAX_MIN < amax { 127.0 / amax } else { 0.0 };
    let mut sums = [0; 2];
    for (i, &x) in x.iter().enumerate() {
        let quant = i8::from_le_bytes([(x * inverse + ROUND).to_bits().to_le_bytes()[0]]);
        out.quants[i] = quant;
        sums[i / 16] += i32::from(quant);
    }
    let sum = sums[0] + sums[1];
    out.scaled_sum = out.scale * sum as f32;
    out.offset_4 = -ZERO_4 * sum;
    out.offset_8 = -ZERO_8 * sum;
    out.offset_8_half = sums.map(|it| -ZERO_8 * it);
    out
}
