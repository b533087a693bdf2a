//! The target model's forward pass over the rows of a step.

use kernels::cpu::{Activations, KvLayer, KvPages, Matrix, Rope, Team};

use super::layer::{Layer, Rows, Scratch, Tools, apply, norm};
use super::rows::Laid;
use super::weights::Source;
use crate::backend::BackendError;
use crate::backend::layer::Sizes;
use crate::model::{Model, ModelConfig};

/// Weights of the target, laid out.
#[derive(Debug)]
pub(super) struct Target {
    sizes: Sizes,
    /// Also the head when that is tied.
    embedding: Matrix,
    layers: Vec<(Vec<f32>, Layer)>,
    rope: Rope,
    norm: Vec<f32>,
    head: Option<Matrix>,
}

/// Buffers of the forward pass, kept between steps.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// The residual stream of all rows, (rows, hidden).
    pub(super) residual: Vec<f32>,
    normed: Vec<f32>,
    /// Residual streams entering the captured layers, side by side, (rows, captured, hidden).
    pub(super) captured: Vec<f32>,
    chosen: Vec<f32>,
    /// (chosen rows, vocabulary).
    pub(super) logits: Vec<f32>,
}

/// Sizes of each layer's keys and values.
pub(super) fn kv_layers(config: &ModelConfig) -> Vec<KvLayer> {
    vec![KvLayer { kv_heads: config.kv_heads, head_dim: config.head_dim }; config.layers]
}

impl Target {
    /// Lays out the weights for texts of at most `positions` tokens.
    pub(super) fn new(
        model: &Model,
        activations: Activations,
        positions: usize,
    ) -> Result<Self, BackendError> {
        let Model { config, tensors } = model;
        let source = Source { tensors, activations, rounds_plain: false };
        let sizes = Sizes::from(config);
        let kind = (config.qkv_bias, config.qk_norm);
        let layer = |index: usize| {
            let name = format!("layers.{index}");
            let norm = source.vector(&format!("{name}.input_layernorm.weight"))?;
            Ok((norm, Layer::read(source, &name, sizes, kind)?))
        };
        let layers: Result<_, BackendError> = (0..config.layers).map(layer).collect();
        Ok(Self {
            sizes,
            embedding: source.matrix("embed_tokens.weight")?,
            layers: layers?,
            rope: Rope::new(config.head_dim, positions, config.rope.theta, &config.rope.factors),
            norm: source.vector("norm.weight")?,
            head: if config.tied { None } else { Some(source.matrix("lm_head.weight")?) },
        })
    }

    pub(super) fn hidden(&self) -> usize {
        self.sizes.hidden
    }

    pub(super) fn layers(&self) -> usize {
        self.layers.len()
    }

    pub(super) fn embed(&self, tokens: &[u32], out: &mut Vec<f32>) {
        out.resize(tokens.len() * self.sizes.hidden, 0.0);
        self.embedding.gather(tokens, out);
    }

    /// Reads the rows: stores their keys and values, leaves their residual streams and, for the
    /// `captured` layers, those that enter them.
    pub(super) fn read(
        &self,
        (team, scratch): (&Team, &mut Scratch),
        pages: &mut KvPages,
        laid: &Laid<'_>,
        captured: &[usize],
        stream: &mut Stream,
    ) {
        let Stream { residual, normed, captured: streams, .. } = stream;
        let hidden = self.sizes.hidden;
        let Laid { tokens, positions, places } = laid;
        self.embed(tokens, residual);
        streams.resize(tokens.len() * captured.len() * hidden, 0.0);
        let rows = Rows { places, positions, first: 0 };
        for (index, (input_norm, layer)) in self.layers.iter().enumerate() {
            capture(residual, hidden, index, captured, streams);
            norm(team, residual, input_norm, self.sizes.eps, normed);
            let tools = Tools { team, rope: &self.rope, scratch };
            layer.attend(tools, (pages, index), rows, normed, residual);
            layer.feed_forward(Tools { team, rope: &self.rope, scratch }, residual);
        }
        capture(residual, hidden, self.layers.len(), captured, streams);
    }

    /// Logits of some of the rows that were read last.
    pub(super) fn choose_from(
        &self,
        (team, scratch): (&Team, &mut Scratch),
        rows: impl Iterator<Item = usize>,
        stream: &mut Stream,
    ) {
        let Stream { residual, normed, chosen, logits, .. } = stream;
        let hidden = self.sizes.hidden;
        chosen.clear();
        for row in rows {
            chosen.extend_from_slice(&residual[row * hidden..][..hidden]);
        }
        norm(team, chosen, &self.norm, self.sizes.eps, normed);
        apply(team, &mut scratch.inputs, self.head(), normed, logits);
    }

    /// What turns a normed residual stream into logits.
    pub(super) fn head(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

/// Keeps the residual stream that enters layer `index` if that is asked for.
fn capture(residual: &[f32], hidden: usize, index: usize, captured: &[usize], streams: &mut [f32]) {
    for (at, _) in captured.iter().enumerate().filter(|(_, it)| **it == index) {
        let rows = residual.chunks_exact(hidden);
        for (row, out) in rows.zip(streams.chunks_exact_mut(captured.len() * hidden)) {
            out[at * hidden..][..hidden].copy_from_slice(row);
        }
    }
}
