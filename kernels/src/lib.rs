//! Operations of the model: for each a CPU reference and, on a GPU, a kernel. The only room with
//! unsafe code, and only behind the fence that ARCHITECTURE.md names.

pub mod cpu;
pub mod cuda;
pub mod noise;
pub mod ops;
pub mod quant;
