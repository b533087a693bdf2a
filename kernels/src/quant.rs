//! How weights are stored: element types and block formats of GGUF and safetensors files.

mod block;

pub use block::dequantize;
pub(crate) use block::{Block, unpack};

use std::fmt;

/// A storage format. Names and layouts follow the GGUF format page (ggml types) and, for the plain
/// ones, the safetensors header.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[expect(non_camel_case_types, reason = "these are the names the format page uses")]
pub enum Dtype {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4_K,
    Q5_K,
    Q6_K,
}

impl Dtype {
    /// Every format.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
    ];

    /// Weights that are stored together.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q4_K | Self::Q5_K | Self::Q6_K => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
        }
    }

    /// Bytes of `len` weights, or `None` when `len` is not a whole number of blocks or overflows.
    pub fn bytes(self, len: usize) -> Option<usize> {
        if !len.is_multiple_of(self.block_len()) {
            return None;
        }
        (len / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Weights of one block that share a scale.
    pub const fn group_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q6_K => 16,
            _ => 32,
        }
    }

    /// Whether a group adds a minimum to its scaled integers.
    pub const fn has_minimum(self) -> bool {
        matches!(self, Self::Q4_1 | Self::Q5_1 | Self::Q4_K | Self::Q5_K)
    }
}

/// Bytes that are not the stated weights.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LengthError {
    pub dtype: Dtype,
    /// Weights that were asked for.
    pub len: usize,
    /// Bytes that were given.
    pub bytes: usize,
}

impl fmt::Display for LengthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dtype, len, bytes } = self;
        match dtype.bytes(*len) {
            Some(needed) => write!(f, "{len} weights as {dtype:?} are {needed} bytes, not {bytes}"),
            None => write!(f, "{len} weights are not whole blocks of {dtype:?}"),
        }
    }
}

impl std::error::Error for LengthError {}

#[cfg(test)]
mod tests;
