//! What a model is before a backend lays it out: its sizes and its tensors, read and checked.

use std::collections::{BTreeMap, HashMap};

use kernels::quant::Dtype;

pub use self::dummy::{load_dummy, load_dummy_head};
pub use self::error::LoadError;
pub use self::head::{LoadedHead, load_head};
pub use self::load::{Loaded, load, load_model};

mod checkpoint;
mod dummy;
pub(crate) mod error;
mod fields;
mod from_gguf;
mod from_safetensors;
pub(crate) mod gguf;
mod head;
mod hf_config;
mod hf_text;
pub mod hub;
mod load;
mod rope;
mod shapes;

/// A matrix or vector as the file stores it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub dtype: Dtype,
    /// Outputs of a matrix; 1 for a vector.
    pub rows: usize,
    /// Inputs of a matrix, or the length of a vector. A row is stored contiguously.
    pub cols: usize,
    /// `dtype.bytes(rows * cols)` of them.
    pub bytes: Vec<u8>,
}

/// A decoder of the Llama family.
///
/// Tensors have Hugging Face names without the `model.` prefix (`embed_tokens.weight`,
/// `layers.0.self_attn.q_proj.weight`, `norm.weight`, `lm_head.weight`), whatever the file called
/// them, and the rows of query and key projections are ordered for rotate-half rotary embedding.
/// `lm_head.weight` is absent when the embedding is tied. The loader has checked that each tensor
/// is there, has the shape that `config` asks for, and that none is left over.
#[derive(Clone, Debug)]
pub struct Model {
    pub config: ModelConfig,
    pub tensors: BTreeMap<String, Tensor>,
}

impl Model {
    /// How most of its bytes are stored, in the format page's name and lower case: `q4_1`.
    pub fn quantisation(&self) -> String {
        let mut bytes: HashMap<Dtype, usize> = HashMap::new();
        for tensor in self.tensors.values() {
            *bytes.entry(tensor.dtype).or_default() += tensor.bytes.len();
        }
        let most = bytes.into_iter().max_by_key(|it| it.1);
        most.map_or_else(String::new, |(dtype, _)| format!("{dtype:?}").to_ascii_lowercase())
    }
}

/// Sizes and constants of a [`Model`].
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Name for `/v1/models` when the operator gives none.
    pub name: String,
    pub vocab: usize,
    pub hidden: usize,
    pub intermediate: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub rms_eps: f32,
    pub rope: Rope,
    /// Positions the model was made for.
    pub context_max: usize,
    pub tied: bool,
    /// Biases on the query, key and value projections (Qwen2).
    pub qkv_bias: bool,
    /// RMSNorm on each head of queries and keys (Qwen3).
    pub qk_norm: bool,
}

/// Rotary position embedding, rotate-half order.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    pub theta: f32,
    /// Divisors of the inverse frequencies, `head_dim / 2` of them: Llama 3 scaling, already
    /// worked out. Empty for none.
    pub factors: Vec<f32>,
}

/// A one-layer EAGLE-3 draft head (Li et al. 2025, arXiv 2503.01840).
///
/// Tensors have the names of the original checkpoints (`fc.weight`,
/// `midlayer.self_attn.q_proj.weight`, `lm_head.weight`, ...). `lm_head.weight` is absent when the
/// head borrows the target's. The embedding is always the target's.
#[derive(Clone, Debug)]
pub struct Head {
    pub config: HeadConfig,
    pub tensors: BTreeMap<String, Tensor>,
    /// Target token of each entry of the draft vocabulary, `draft_vocab` of them.
    pub target_ids: Vec<u32>,
}

/// Sizes and constants of a [`Head`].
#[derive(Clone, Debug, PartialEq)]
pub struct HeadConfig {
    pub hidden: usize,
    pub intermediate: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub draft_vocab: usize,
    pub rms_eps: f32,
    pub rope: Rope,
    /// Layers of the target whose input, the residual stream, is captured; in the order in which
    /// `fc` expects them. The number of layers stands for what leaves the last one.
    pub captured_layers: Vec<usize>,
    /// Whether the residual of the draft layer is the normed hidden state.
    pub norm_before_residual: bool,
}
