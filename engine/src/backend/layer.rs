//! Sizes of a decoder layer, the same wherever it is computed.

use crate::model::{HeadConfig, ModelConfig};

/// Sizes and constants that a layer shares with its like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) hidden: usize,
    pub(super) intermediate: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) eps: f32,
}

impl Sizes {
    /// Columns of queries, keys and values side by side.
    pub(super) fn qkv(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Query heads that share a key-value head.
    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

impl From<&ModelConfig> for Sizes {
    fn from(config: &ModelConfig) -> Self {
        Self {
            hidden: config.hidden,
            intermediate: config.intermediate,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            eps: config.rms_eps,
        }
    }
}

/// The draft layer's.
impl From<&HeadConfig> for Sizes {
    fn from(config: &HeadConfig) -> Self {
        Self {
            hidden: config.hidden,
            intermediate: config.intermediate,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            eps: config.rms_eps,
        }
    }
}
