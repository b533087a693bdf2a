//! Which kernel computes a product, for a matrix and a number of rows.

use super::{BLOCK_OUTPUTS, FEW, FEW_MAX, Matrix, Scratch, TILE};

/// What may be read of x, for each 16 outputs, and of weights, for each 64 rows, before wider
/// blocks are better.
const FEW_BYTES_MAX: usize = 24 << 20;

/// How a product is computed. The result is the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Path {
    /// Up to 64 rows beside each other.
    Few,
    /// Blocks of so many rows that add up all slices.
    Whole(Blocks),
    /// Blocks of so many rows, each for one of so many parts of the slices; the last one adds up.
    Cut(Blocks, usize),
}

/// The rows of a block, by the kernel that makes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Blocks {
    /// 32 or 64 rows, on any card.
    Plain(usize),
    /// 64, 128, 192 (only of whole sums in slices) or 256 (only of sums in one slice), on Hopper.
    Wide(usize),
}

impl Blocks {
    pub(super) fn rows(self) -> usize {
        match self {
            Self::Plain(rows) | Self::Wide(rows) => rows,
        }
    }
}

impl Matrix {
    /// The path that is fastest for a number of rows.
    pub fn path(&self, scratch: &Scratch, rows: usize) -> Path {
        let width = rows.next_power_of_two().min(FEW_MAX);
        let rows_read = self.outputs.div_ceil(TILE) * width + self.outputs;
        let bytes = rows.div_ceil(width) * rows_read * self.inputs * 2;
        if rows <= FEW || bytes <= FEW_BYTES_MAX {
            return Path::Few;
        }
        let cut = |blocks: Blocks| {
            let count = rows.div_ceil(blocks.rows()) * self.outputs.div_ceil(BLOCK_OUTPUTS);
            // Of the narrow wide ones two fit a multiprocessor.
            let fit = if blocks == Blocks::Wide(64) { 2 } else { 1 };
            let enough = scratch.blocks_min * fit * 2 / 3;
            let parts = [1, 2, 4].into_iter().find(|it| enough <= count * it).unwrap_or(8);
            (count, parts.min(self.slices))
        };
        if !scratch.hopper {
            let blocks = Blocks::Plain(if rows <= 32 { 32 } else { 64 });
            let (count, parts) = cut(blocks);
            let is_cut = 1 < parts && count < scratch.blocks_min;
            return if is_cut { Path::Cut(blocks, self.slices) } else { Path::Whole(blocks) };
        }
        if rows <= 32 {
            // Of the plain ones more fit a multiprocessor, which pays while memory sets the pace.
            let blocks = Blocks::Plain(32);
            let is_cut = 1 < self.slices;
            return if is_cut { Path::Cut(blocks, self.slices) } else { Path::Whole(blocks) };
        }
        let blocks = Blocks::Wide(if rows <= 64 { 64 } else { 128 });
        let (_, parts) = cut(blocks);
        match (self.slices, parts) {
            (1, _) if 128 < rows => Path::Whole(Blocks::Wide(256)),
            (1, _) | (_, 1) if rows <= 128 => Path::Whole(blocks),
            (_, 1) => {
                // A wider block reads less; a last one that is half empty computes more.
                let waste = |width: usize| rows.next_multiple_of(width);
                let wide = waste(192) * 10 <= waste(128) * 11;
                Path::Whole(Blocks::Wide(if wide { 192 } else { 128 }))
            }
            (_, parts) => Path::Cut(blocks, parts),
        }
    }
}
