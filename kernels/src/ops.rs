//! One file for one operation on the GPU: its shapes, a reference in plain code, the launch.

pub mod attend;
pub mod draft;
pub mod embed;
pub mod matmul;
pub mod rope;
pub mod rows;
pub mod sample;

/// Half of a float: what activations, keys and values are kept as.
pub use half::bf16;

/// Where (row, column) stands in a matrix of blocks of 8 rows x 8 columns, block after block along
/// the columns: how activations lie on the device. A row count is rounded up to whole blocks.
pub fn block_place(row: usize, column: usize, columns: usize) -> usize {
    (row / 8 * (columns / 8) + column / 8) * 64 + row % 8 * 8 + column % 8
}

/// Values of a matrix of blocks.
pub fn block_values(rows: usize, columns: usize) -> usize {
    rows.next_multiple_of(8) * columns
}

fn whole(count: usize) -> u32 {
    u32::try_from(count).expect("sizes of a model and a step fit")
}
