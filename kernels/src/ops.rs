//! One file for one operation on the GPU: its shapes, a reference in plain code, the launch.

pub mod attend;
pub mod collective;
pub mod draft;
pub mod embed;
pub mod layers;
pub mod matmul;
pub mod rope;
pub mod rows;
pub mod sample;

use crate::cuda::Device;

/// Columns of a block of activations.
const BLOCK_COLUMNS: usize = 64;

/// Half of a float: what activations, keys and values are kept as.
pub use half::bf16;

/// Where (row, column) of `rows` rows stands in a matrix of blocks of 8 rows x 64 columns, block
/// after block along the rows, then along the columns: how activations lie on the device. A block
/// is 8 lines of 8 rows x 8 columns.
pub fn block_place(row: usize, column: usize, rows: usize) -> usize {
    let block = column / BLOCK_COLUMNS * rows.div_ceil(8) + row / 8;
    block * 8 * BLOCK_COLUMNS + column % BLOCK_COLUMNS / 8 * 64 + row % 8 * 8 + column % 8
}

/// Values of a matrix of blocks: rows and columns are rounded up to whole ones.
pub fn block_values(rows: usize, columns: usize) -> usize {
    rows.next_multiple_of(8) * columns.next_multiple_of(BLOCK_COLUMNS)
}

/// Blocks of a cluster, at most: `BLOCKS_MAX` in `cu/together.cuh`.
const TOGETHER_MAX: usize = 8;

/// Blocks that look at a row together where there are so many rows: a power of two, so many that
/// all have a multiprocessor of half the card, since clusters do not fill it. Without clusters one.
fn blocks_together(device: &Device, rows: usize) -> u32 {
    let facts = device.facts();
    let share = facts.multiprocessors as usize / 2 / rows.max(1);
    let blocks = if facts.is_hopper() { share.clamp(1, TOGETHER_MAX) } else { 1 };
    1 << blocks.ilog2()
}

fn whole(count: usize) -> u32 {
    u32::try_from(count).expect("sizes of a model and a step fit")
}
