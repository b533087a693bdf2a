//! A random model and draft head, small enough that a test runs thousands of steps.
//!
//! The vocabulary is small too, so that random drafts are often right.

use std::collections::BTreeMap;

use engine::model::{Head, HeadConfig, Model, ModelConfig, Rope, Tensor};
use kernels::quant::Dtype;

use crate::rng::Rng;

pub const VOCAB: usize = 5;
const HIDDEN: usize = 64;
const INTERMEDIATE: usize = 96;
const LAYERS: usize = 4;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 32;
const DRAFT_VOCAB: usize = 4;

/// What sets members of the Llama family, and their heads, apart.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kind {
    pub untied: bool,
    pub qkv_bias: bool,
    pub qk_norm: bool,
    pub rope_factors: bool,
    pub norm_before_residual: bool,
    pub borrowed_head: bool,
}

/// A model of that kind; the same seed gives the same one.
pub fn model(seed: u64, kind: Kind) -> Model {
    let mut random = Random { rng: Rng::new(seed), tensors: BTreeMap::new() };
    random.matrix("embed_tokens.weight", VOCAB, HIDDEN, Dtype::Q8_0);
    for layer in 0..LAYERS {
        random.layer(&format!("layers.{layer}"), HIDDEN, kind, Dtype::Q4_1);
        random.vector(&format!("layers.{layer}.input_layernorm.weight"), HIDDEN, 1.0);
    }
    random.vector("norm.weight", HIDDEN, 1.0);
    if kind.untied {
        random.matrix("lm_head.weight", VOCAB, HIDDEN, Dtype::F32);
    }
    let factors = vec![1.5; if kind.rope_factors { HEAD_DIM / 2 } else { 0 }];
    let config = ModelConfig {
        name: "tiny".into(),
        vocab: VOCAB,
        hidden: HIDDEN,
        intermediate: INTERMEDIATE,
        layers: LAYERS,
        heads: HEADS,
        kv_heads: KV_HEADS,
        head_dim: HEAD_DIM,
        rms_eps: 1e-5,
        rope: Rope { theta: 1e4, factors },
        context_max: 4096,
        tied: !kind.untied,
        qkv_bias: kind.qkv_bias,
        qk_norm: kind.qk_norm,
    };
    Model { config, tensors: random.tensors }
}

/// A head for [`model`].
pub fn head(seed: u64, kind: Kind) -> Head {
    let mut random = Random { rng: Rng::new(seed ^ 0x4ead), tensors: BTreeMap::new() };
    let captured_layers = vec![1, 2, 3];
    random.matrix("fc.weight", HIDDEN, captured_layers.len() * HIDDEN, Dtype::BF16);
    random.layer("midlayer", 2 * HIDDEN, Kind::default(), Dtype::BF16);
    random.vector("midlayer.input_layernorm.weight", HIDDEN, 1.0);
    random.vector("midlayer.hidden_norm.weight", HIDDEN, 1.0);
    random.vector("norm.weight", HIDDEN, 1.0);
    let draft_vocab = if kind.borrowed_head { VOCAB } else { DRAFT_VOCAB };
    if !kind.borrowed_head {
        random.matrix("lm_head.weight", DRAFT_VOCAB, HIDDEN, Dtype::BF16);
    }
    let config = HeadConfig {
        hidden: HIDDEN,
        intermediate: INTERMEDIATE,
        heads: HEADS,
        kv_heads: KV_HEADS,
        head_dim: HEAD_DIM,
        draft_vocab,
        rms_eps: 1e-5,
        rope: Rope { theta: 1e3, factors: Vec::new() },
        captured_layers,
        norm_before_residual: kind.norm_before_residual,
    };
    // A draft vocabulary that skips some of the target's: the first few, then the rest shifted.
    let spread = VOCAB - draft_vocab;
    let target_ids = (0..draft_vocab).map(|it| it + it.min(spread));
    let target_ids = target_ids.map(|it| u32::try_from(it).expect("below the vocabulary"));
    Head { config, tensors: random.tensors, target_ids: target_ids.collect() }
}

struct Random {
    rng: Rng,
    tensors: BTreeMap<String, Tensor>,
}

impl Random {
    /// What the layers of target and head have in common; `inputs` columns of the projections.
    fn layer(&mut self, name: &str, inputs: usize, kind: Kind, dtype: Dtype) {
        for (part, heads) in [("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)] {
            let attention = format!("{name}.self_attn.{part}");
            self.matrix(&format!("{attention}_proj.weight"), heads * HEAD_DIM, inputs, dtype);
            if kind.qkv_bias {
                self.vector(&format!("{attention}_proj.bias"), heads * HEAD_DIM, 0.0);
            }
            if kind.qk_norm && part != "v" {
                self.vector(&format!("{attention}_norm.weight"), HEAD_DIM, 1.0);
            }
        }
        self.matrix(&format!("{name}.self_attn.o_proj.weight"), HIDDEN, HEADS * HEAD_DIM, dtype);
        self.vector(&format!("{name}.post_attention_layernorm.weight"), HIDDEN, 1.0);
        self.matrix(&format!("{name}.mlp.gate_proj.weight"), INTERMEDIATE, HIDDEN, dtype);
        self.matrix(&format!("{name}.mlp.up_proj.weight"), INTERMEDIATE, HIDDEN, dtype);
        self.matrix(&format!("{name}.mlp.down_proj.weight"), HIDDEN, INTERMEDIATE, dtype);
    }

    /// Weights spread evenly over about -0.25 to 0.25.
    fn matrix(&mut self, name: &str, rows: usize, cols: usize, dtype: Dtype) {
        let bytes = match dtype {
            Dtype::F32 => self.floats(rows * cols).flat_map(f32::to_le_bytes).collect(),
            // The upper half of a float is a bfloat16.
            Dtype::BF16 => {
                let upper = |it: f32| [it.to_le_bytes()[2], it.to_le_bytes()[3]];
                self.floats(rows * cols).flat_map(upper).collect()
            }
            // A block is its scale, 2^-9, and 32 signed bytes.
            Dtype::Q8_0 => self.blocks(rows * cols, &[0x00, 0x18], 32),
            // A block is its scale, 2^-5, its least weight, -7.5 * 2^-5, and 32 nibbles.
            Dtype::Q4_1 => self.blocks(rows * cols, &[0x00, 0x28, 0x80, 0xb3], 16),
            other => unreachable!("no test asks for {other:?}"),
        };
        self.tensors.insert(name.into(), Tensor { dtype, rows, cols, bytes });
    }

    /// A vector of weights around `middle`.
    fn vector(&mut self, name: &str, cols: usize, middle: f32) {
        let bytes = self.floats(cols).flat_map(|it| (middle + it).to_le_bytes()).collect();
        self.tensors.insert(name.into(), Tensor { dtype: Dtype::F32, rows: 1, cols, bytes });
    }

    fn floats(&mut self, len: usize) -> std::vec::IntoIter<f32> {
        let steps: Vec<u16> = (0..len)
            .map(|_| u16::try_from(self.rng.within(0, 1 << 12)).expect("below 2^16"))
            .collect();
        let floats: Vec<f32> = steps.into_iter().map(|it| f32::from(it) / 8192.0 - 0.25).collect();
        floats.into_iter()
    }

    fn blocks(&mut self, weights: usize, scale: &[u8], payload: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..weights / 32 {
            bytes.extend_from_slice(scale);
            bytes.extend((0..payload).map(|_| self.rng.draw().to_le_bytes()[0]));
        }
        bytes
    }
}
