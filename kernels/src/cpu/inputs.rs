//! Activation rows, made ready once for all the products that read them.

use super::matmul::GROUP_ROWS;
use super::matrix::Activations;
use super::rows::rows_per_chunk;
use super::simd::dispatch;
use super::simd::team::Team;

/// Inputs that share a scale.
pub(super) const BLOCK: usize = 32;

/// Thirty-two inputs of each of 16 rows in 8 bits, with all that a product asks for. Rows beyond
/// the last are whatever they were.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct InputBlock {
    /// From -127 to 127.
    pub(crate) quants: [[i8; BLOCK]; GROUP_ROWS],
    /// An input is `scale * quant`.
    pub(crate) scales: [f32; GROUP_ROWS],
    /// The scale times the sum of the integers: the factor of a weight block's minimum.
    pub(crate) scaled_sums: [f32; GROUP_ROWS],
    /// The sum of the integers times the zero point of 4-bit weights, subtracted from 0.
    pub(crate) offsets_4: [i32; GROUP_ROWS],
    /// The same for 8-bit weights, of the whole block and of each half.
    pub(crate) offsets_8: [i32; GROUP_ROWS],
    pub(crate) offsets_8_half: [[i32; GROUP_ROWS]; 2],
}

impl InputBlock {
    const EMPTY: Self = Self {
        quants: [[0; BLOCK]; GROUP_ROWS],
        scales: [0.0; GROUP_ROWS],
        scaled_sums: [0.0; GROUP_ROWS],
        offsets_4: [0; GROUP_ROWS],
        offsets_8: [0; GROUP_ROWS],
        offsets_8_half: [[0; GROUP_ROWS]; 2],
    };

    /// What follows from a row's scale and the sums of the integers in each half.
    #[inline(always)]
    pub(super) fn finish(&mut self, row: usize, scale: f32, sums: [i32; 2]) {
        let sum = sums[0] + sums[1];
        self.scales[row] = scale;
        self.scaled_sums[row] = scale * sum as f32;
        self.offsets_4[row] = -ZERO_4 * sum;
        self.offsets_8[row] = -ZERO_8 * sum;
        for (offsets, sum) in self.offsets_8_half.iter_mut().zip(sums) {
            offsets[row] = -ZERO_8 * sum;
        }
    }
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
    /// (groups of 16 rows, blocks of a row); the last block of a row is filled with zeros.
    blocks: Vec<InputBlock>,
}

impl Inputs {
    /// No rows; room for `rows` of `columns` without allocating.
    pub fn with_capacity(rows: usize, columns: usize, activations: Activations) -> Self {
        let mut empty =
            Self { activations, rows: 0, columns: 0, floats: Vec::new(), blocks: Vec::new() };
        match activations {
            Activations::F32 => empty.floats.reserve(rows * columns),
            Activations::Int8 => {
                empty.blocks.reserve(rows.div_ceil(GROUP_ROWS) * columns.div_ceil(BLOCK))
            }
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
                let blocks = columns.div_ceil(BLOCK);
                let groups = per_chunk.div_ceil(GROUP_ROWS);
                self.blocks.resize(self.rows.div_ceil(GROUP_ROWS) * blocks, InputBlock::EMPTY);
                team.run_windows(&mut self.blocks, blocks, (groups, blocks), &|window| {
                    for group in window.rows() {
                        let rows = x.chunks(GROUP_ROWS * columns).nth(group);
                        let rows = rows.expect("as many as there are groups of blocks");
                        let out = window.row(group);
                        dispatch::quantize(team.instructions(), rows, columns, out);
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

    /// The blocks of the 16 rows from `start` on.
    pub(super) fn blocks(&self, start: usize) -> &[InputBlock] {
        assert!(start.is_multiple_of(GROUP_ROWS), "rows stand in groups");
        let blocks = self.columns.div_ceil(BLOCK);
        &self.blocks[start / GROUP_ROWS * blocks..][..blocks]
    }
}

/// x: at most 16 rows of `columns`; out: (blocks of a row,).
///
/// What is not finite makes its block's scale so, and with it every product.
#[inline(always)]
pub(super) fn quantize_body(x: &[f32], columns: usize, out: &mut [InputBlock]) {
    for_each_block(x, columns, out, quantize_block);
}

/// Calls `quantize` for each block of each row, the last padded with zeros.
#[inline(always)]
pub(super) fn for_each_block(
    x: &[f32],
    columns: usize,
    out: &mut [InputBlock],
    quantize: impl Fn(&[f32; BLOCK], usize, &mut InputBlock),
) {
    for (row, x) in x.chunks_exact(columns).enumerate() {
        for (x, out) in x.chunks(BLOCK).zip(&mut *out) {
            if let Ok(x) = x.try_into() {
                quantize(x, row, out);
            } else {
                let mut padded = [0.0; BLOCK];
                padded[..x.len()].copy_from_slice(x);
                quantize(&padded, row, out);
            }
        }
    }
}

/// Adding it rounds to the nearest integer, which is then in the low bits of the mantissa.
pub(super) const ROUND: f32 = 12_582_912.0;

/// The scale of a block by its largest size, and the factor that gives the integers.
#[inline(always)]
pub(super) fn scale_and_inverse(amax: f32) -> (f32, f32) {
    /// Below it the reciprocal overflows; such a block is as good as zero.
    const AMAX_MIN: f32 = 1e-30;
    (amax * (1.0 / 127.0), if AMAX_MIN < amax { 127.0 / amax } else { 0.0 })
}

#[inline(always)]
fn quantize_block(x: &[f32; BLOCK], row: usize, out: &mut InputBlock) {
    // As bits, so that infinities and what is not a number count as largest.
    let amax = x.iter().fold(0, |amax, x| amax.max(x.to_bits() & 0x7fff_ffff));
    let (scale, inverse) = scale_and_inverse(f32::from_bits(amax));
    let mut sums = [0; 2];
    for (i, x) in x.iter().enumerate() {
        let quant = i8::from_le_bytes([(x * inverse + ROUND).to_bits().to_le_bytes()[0]]);
        out.quants[row][i] = quant;
        sums[i / 16] += i32::from(quant);
    }
    out.finish(row, scale, sums);
}
