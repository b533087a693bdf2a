//! One decoder layer: attention, then the gated feed-forward part. The draft layer is one too.

use kernels::cpu::{
    Activations, AttentionRow, Inputs, KvPages, Matrix, PAGE_TOKENS, Rope, Team, attention, matmul,
    matmul_add, rmsnorm, swiglu,
};

use super::weights::Source;
use crate::backend::BackendError;
use crate::backend::layer::Sizes;

/// Where a row stands: the page table of its sequence, and its slot there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) pages: &'a [u32],
    pub(super) slot: usize,
}

impl Place<'_> {
    /// The page, and the slot in it.
    pub(super) fn page(&self) -> (u32, usize) {
        (self.pages[self.slot / PAGE_TOKENS], self.slot % PAGE_TOKENS)
    }

    /// Stores keys, then values, of every head.
    pub(super) fn store(&self, pages: &mut KvPages, layer: usize, keys_values: &[f32]) {
        let (page, slot) = self.page();
        let (keys, values) = keys_values.split_at(keys_values.len() / 2);
        pages.write(layer, page, slot, keys, values);
    }
}

/// The rows that a layer is computed for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows<'a> {
    pub(super) places: &'a [Place<'a>],
    /// Rotary positions.
    pub(super) positions: &'a [u32],
    /// First slot that holds keys of this layer.
    pub(super) first: usize,
}

/// Weights of one layer, without the norm before its projections.
#[derive(Debug)]
pub(super) struct Layer {
    sizes: Sizes,
    /// (queries, keys, values), each heads by head dim.
    qkv: Matrix,
    /// Empty for none.
    qkv_bias: Vec<f32>,
    /// Norms of each head of queries and keys; empty for none.
    head_norms: Option<[Vec<f32>; 2]>,
    out: Matrix,
    post_norm: Vec<f32>,
    gate_up: Matrix,
    down: Matrix,
}

/// Buffers that layers work in, kept between steps.
#[derive(Debug)]
pub(super) struct Scratch {
    pub(super) inputs: Inputs,
    normed: Vec<f32>,
    qkv: Vec<f32>,
    attended: Vec<f32>,
    gate_up: Vec<f32>,
    gated: Vec<f32>,
}

/// What a layer is computed with.
#[derive(Debug)]
pub(super) struct Tools<'a> {
    pub(super) team: &'a Team,
    pub(super) rope: &'a Rope,
    pub(super) scratch: &'a mut Scratch,
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self {
            inputs: Inputs::with_capacity(0, 1, Activations::F32),
            normed: Vec::new(),
            qkv: Vec::new(),
            attended: Vec::new(),
            gate_up: Vec::new(),
            gated: Vec::new(),
        }
    }
}

/// `out = x weights^T`; x: (rows, inputs), out: (rows, outputs).
pub(super) fn apply(
    team: &Team,
    inputs: &mut Inputs,
    weights: &Matrix,
    x: &[f32],
    out: &mut Vec<f32>,
) {
    inputs.prepare(team, x, weights.cols(), weights.activations());
    out.resize(inputs.rows() * weights.rows(), 0.0);
    matmul(team, weights, inputs, out);
}

/// RMSNorm of the rows of `x`, into a buffer that grows as it must.
pub(super) fn norm(team: &Team, x: &[f32], weight: &[f32], eps: f32, out: &mut Vec<f32>) {
    out.resize(x.len(), 0.0);
    rmsnorm(team, x, weight, eps, out);
}

impl Layer {
    /// Reads `{name}.self_attn.q_proj.weight` and so on.
    pub(super) fn read(
        source: Source<'_>,
        name: &str,
        sizes: Sizes,
        (qkv_bias, qk_norm): (bool, bool),
    ) -> Result<Self, BackendError> {
        let one = |part: &str| format!("{name}.{part}");
        let qkv = |end: &str| ["q", "k", "v"].map(|it| one(&format!("self_attn.{it}_proj.{end}")));
        let head_norm = |it: &str| source.vector(&one(&format!("self_attn.{it}_norm.weight")));
        Ok(Self {
            sizes,
            qkv: source.stack(&qkv("weight"))?,
            qkv_bias: if qkv_bias { source.vectors(&qkv("bias"))? } else { Vec::new() },
            head_norms: if qk_norm { Some([head_norm("q")?, head_norm("k")?]) } else { None },
            out: source.matrix(&one("self_attn.o_proj.weight"))?,
            post_norm: source.vector(&one("post_attention_layernorm.weight"))?,
            gate_up: source
                .stack(&["gate", "up"].map(|it| one(&format!("mlp.{it}_proj.weight"))))?,
            down: source.matrix(&one("mlp.down_proj.weight"))?,
        })
    }

    /// Stores the rows' keys and values in layer `layer` of `pages`, attends, and adds what comes
    /// of it to `residual`.
    ///
    /// z: what the projections read, (rows, inputs); residual: (rows, hidden).
    pub(super) fn attend(
        &self,
        Tools { team, rope, scratch }: Tools<'_>,
        (pages, layer): (&mut KvPages, usize),
        rows: Rows<'_>,
        z: &[f32],
        residual: &mut [f32],
    ) {
        let Sizes { heads, kv_heads, head_dim, .. } = self.sizes;
        let Scratch { inputs, qkv, attended, .. } = scratch;
        apply(team, inputs, &self.qkv, z, qkv);
        self.finish_heads(team, qkv);
        let columns = self.qkv.rows();
        rope.rotate(team, qkv, columns, heads + kv_heads, rows.positions);
        let queries = heads * head_dim;
        for (row, place) in qkv.chunks_exact(columns).zip(rows.places) {
            place.store(pages, layer, &row[queries..]);
        }
        let pairs = qkv.chunks_exact(columns).zip(rows.places);
        let seen: Vec<AttentionRow<'_>> = pairs
            .map(|(row, place)| AttentionRow {
                query: &row[..queries],
                pages: place.pages,
                first: rows.first,
                last: place.slot,
            })
            .collect();
        attended.resize(rows.places.len() * queries, 0.0);
        attention(team, pages, layer, 1.0 / (head_dim as f32).sqrt(), &seen, attended);
        inputs.prepare(team, attended, queries, self.out.activations());
        matmul_add(team, &self.out, inputs, residual);
    }

    /// Adds the feed-forward part to `residual`, (rows, hidden).
    pub(super) fn feed_forward(&self, tools: Tools<'_>, residual: &mut [f32]) {
        let Tools { team, scratch: Scratch { inputs, normed, gate_up, gated, .. }, .. } = tools;
        let Sizes { intermediate, eps, .. } = self.sizes;
        norm(team, residual, &self.post_norm, eps, normed);
        apply(team, inputs, &self.gate_up, normed, gate_up);
        gated.resize(gate_up.len() / 2, 0.0);
        swiglu(team, gate_up, intermediate, gated);
        inputs.prepare(team, gated, intermediate, self.down.activations());
        matmul_add(team, &self.down, inputs, residual);
    }

    /// Biases, and norms of single heads, where the model has them.
    fn finish_heads(&self, team: &Team, qkv: &mut [f32]) {
        let Sizes { heads, kv_heads, head_dim, eps, .. } = self.sizes;
        for row in qkv.chunks_exact_mut(self.qkv.rows()) {
            for (value, bias) in row.iter_mut().zip(&self.qkv_bias) {
                *value += bias;
            }
            let Some([query_norm, key_norm]) = &self.head_norms else { continue };
            let (queries, rest) = row.split_at_mut(heads * head_dim);
            let keys = &mut rest[..kv_heads * head_dim];
            for (heads, weight) in [(queries, query_norm), (keys, key_norm)] {
                let before = heads.to_vec();
                rmsnorm(team, &before, weight, eps, heads);
            }
        }
    }
}
