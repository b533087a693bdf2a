//! The model's operations on a CPU: a pinned [`Team`], repacked weights, paged keys and values.
//!
//! **The contract.** What an operation gives for a row depends on that row's inputs alone: bit for
//! bit the same whatever other rows are in the call, however many threads take part, and whichever
//! instruction set the machine has. Sums have one order, written down where they are made; products
//! that are added are fused (`mul_add`) or not, but the same way on every path.

mod attend;
mod attention;
mod floats;
mod inputs;
mod matmul;
mod matrix;
mod pages;
mod rope;
mod rows;
mod simd;

pub use attention::{AttentionRow, attention};
pub use inputs::Inputs;
pub use matmul::{matmul, matmul_add};
pub use matrix::{Activations, Matrix, PackError};
pub use pages::{KvLayer, KvNumbers, KvPages, PAGE_TOKENS};
pub use rope::Rope;
pub use rows::{add, argmax, rmsnorm, softmax, swiglu};
pub use simd::instructions::Instructions;
pub use simd::team::{Team, TeamError, Window, pin_current};

#[cfg(test)]
mod tests;
