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

fn whole(count: usize) -> u32 {
    u32::try_from(count).expect("sizes of a model and a step fit")
}
