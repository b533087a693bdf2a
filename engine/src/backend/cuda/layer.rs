//! One transformer layer on the GPU, of the target or of the draft head, and the buffers it uses.

use std::ops::Range;

use kernels::cuda::{Buffer, Device};
use kernels::ops::attend::{self, Attention};
use kernels::ops::bf16;
use kernels::ops::block_values;
use kernels::ops::collective::{Collective, Slices, Stream};
use kernels::ops::layers::{self, Layers, Streams};
use kernels::ops::matmul::{self, Captured, Matrix, Out, Rows};
use kernels::ops::rope::{HeadNorms, Pages, Places, Rotation, Turns};
use kernels::ops::rows::Step;
use kernels::ops::sample::Logits;

use super::shard::{Shard, token_starts};
use super::spans::Spans;
use super::way::{self, BLOCKS_ENOUGH};
use super::weights::{Part, Source, Stack};
use crate::backend::BackendError;
use crate::backend::layer::Sizes;
use crate::model::Rope;

/// Weights of one layer.
#[derive(Debug)]
pub(super) struct Layer {
    sizes: Sizes,
    qkv: Matrix,
    /// RMSNorm before `qkv`; none where its input is normed already.
    norm: Option<f32>,
    o: Matrix,
    gate_up: Matrix,
    down: Matrix,
    bias: Option<Buffer<f32>>,
    q_norm: Option<Buffer<f32>>,
    k_norm: Option<Buffer<f32>>,
}

/// What a layer has beyond the plain kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind<'a> {
    /// The norm before attention; `None` where the input, twice as wide, is normed already.
    pub(super) input_norm: Option<&'a str>,
    pub(super) bias: bool,
    pub(super) head_norms: bool,
}

impl Layer {
    /// This rank's part of a layer whose sizes are `whole`.
    pub(super) fn read(
        source: Source<'_>,
        name: &str,
        whole: Sizes,
        kind: Kind<'_>,
    ) -> Result<Self, BackendError> {
        let Sizes { hidden, intermediate, heads, head_dim, eps, .. } = whole;
        let full = |part: &str| format!("{name}.{part}");
        let input_norm = match kind.input_norm {
            Some(it) => Some(source.vector(&full(it), hidden)?),
            None => None,
        };
        let inputs = if input_norm.is_some() { hidden } else { 2 * hidden };
        let names = ["q", "k", "v"].map(|it| full(&format!("self_attn.{it}_proj.weight")));
        let [queries, keys, values] = projections(source.shard, whole);
        let own_heads = queries.1.clone();
        let part = |name, (rows, take)| Part { name, rows, take };
        let parts = [part(&names[0], queries), part(&names[1], keys), part(&names[2], values)];
        let norm = input_norm.as_deref();
        let qkv = Stack { parts: &parts, columns: inputs, inputs: 0..inputs, norm };
        let o = full("self_attn.o_proj.weight");
        let o = &[Part::whole(&o, hidden)];
        let o = Stack { parts: o, columns: heads * head_dim, inputs: own_heads, norm: None };
        let post_norm = source.vector(&full("post_attention_layernorm.weight"), hidden)?;
        let [gate, up, down] =
            ["gate", "up", "down"].map(|it| full(&format!("mlp.{it}_proj.weight")));
        let between = || source.shard.intermediate(intermediate);
        let norm = Some(post_norm.as_slice());
        let parts = [part(&gate, (intermediate, between())), part(&up, (intermediate, between()))];
        let gate_up = Stack { parts: &parts, columns: hidden, inputs: 0..hidden, norm };
        let down = &[Part::whole(&down, hidden)];
        let down = Stack { parts: down, columns: intermediate, inputs: between(), norm: None };
        let head_norm = |part: &str| -> Result<_, BackendError> {
            let name = full(&format!("self_attn.{part}_norm.weight"));
            Ok(if kind.head_norms { Some(source.uploaded(&name, head_dim)?) } else { None })
        };
        Ok(Self {
            sizes: source.shard.sizes(whole),
            qkv: source.matrix(&qkv)?,
            norm: input_norm.is_some().then_some(eps),
            o: source.matrix(&o)?,
            gate_up: source.gated(&gate_up)?,
            down: source.matrix(&down)?,
            bias: if kind.bias { Some(bias(source, name, whole)?) } else { None },
            q_norm: head_norm("q")?,
            k_norm: head_norm("k")?,
        })
    }
}

impl Layer {
    /// As the kernel for all layers reads it.
    pub(super) fn parts(&self, captured_at: Option<usize>) -> layers::Layer<'_> {
        layers::Layer {
            qkv: &self.qkv,
            o: &self.o,
            gate_up: &self.gate_up,
            down: &self.down,
            bias: self.bias.as_ref(),
            q_norm: self.q_norm.as_ref(),
            k_norm: self.k_norm.as_ref(),
            captured_at,
        }
    }
}

/// Rows of the projections of queries, keys and values, and those that are a rank's.
pub(super) fn projections(shard: Shard, whole: Sizes) -> [(usize, Range<usize>); 3] {
    let Sizes { heads, kv_heads, head_dim, .. } = whole;
    let rows = |count: usize, own: Range<usize>| {
        (count * head_dim, own.start * head_dim..own.end * head_dim)
    };
    let kv = || rows(kv_heads, shard.kv_heads(kv_heads));
    [rows(heads, shard.heads(whole)), kv(), kv()]
}

fn bias(source: Source<'_>, name: &str, whole: Sizes) -> Result<Buffer<f32>, BackendError> {
    let parts = ["q", "k", "v"].into_iter().zip(projections(source.shard, whole));
    let mut all = Vec::new();
    for (part, (rows, take)) in parts {
        let name = format!("{name}.self_attn.{part}_proj.bias");
        all.extend_from_slice(&source.vector(&name, rows)?[take]);
    }
    Ok(source.device.upload(&all)?)
}

/// Inverse frequencies of a rotary embedding.
pub(super) fn turns(
    device: &Device,
    rope: &Rope,
    head_dim: usize,
    positions: usize,
) -> Result<Turns, BackendError> {
    let frequency = |i: usize| {
        let exponent = (2 * i) as f32 / head_dim as f32;
        1.0 / rope.theta.powf(exponent) / rope.factors.get(i).unwrap_or(&1.0)
    };
    let frequencies: Vec<f32> = (0..head_dim / 2).map(frequency).collect();
    Ok(Turns::new(device, positions, &frequencies)?)
}

/// Buffers of a forward pass, for a number of rows.
#[derive(Debug)]
pub(super) struct Room {
    /// The residual stream: (rows, hidden), and rounded in blocks.
    pub(super) stream: Buffer<f32>,
    pub(super) x: Buffer<bf16>,
    qkv: Buffer<f32>,
    q: Buffer<bf16>,
    attended: Buffer<bf16>,
    gated: Buffer<bf16>,
}

impl Room {
    pub(super) fn new(device: &Device, sizes: Sizes, rows: usize) -> Result<Self, BackendError> {
        let heads = sizes.heads * sizes.head_dim;
        Ok(Self {
            stream: device.zeros(rows * sizes.hidden)?,
            x: device.zeros(block_values(rows, sizes.hidden))?,
            qkv: device.zeros(rows * sizes.qkv())?,
            q: device.zeros(rows * heads)?,
            attended: device.zeros(block_values(rows, heads))?,
            gated: device.zeros(block_values(rows, sizes.intermediate))?,
        })
    }
}

/// What all layers share: scratch, and the way to the other ranks.
#[derive(Debug)]
pub(super) struct Scratch {
    pub(super) products: matmul::Scratch,
    parts: attend::Scratch,
    /// None where one GPU has all of the model.
    ranks: Option<Collective>,
}

impl Scratch {
    pub(super) fn new(
        device: &Device,
        rows_max: usize,
        positions: usize,
        sizes: &[Sizes],
        ranks: Option<Collective>,
    ) -> Result<Self, BackendError> {
        let packed = |it: &Sizes| attend::few_rows_max(it.group(), it.head_dim) * it.group();
        let packed = sizes.iter().map(packed).max().unwrap_or(1);
        let head_dim = sizes.iter().map(|it| it.head_dim).max().unwrap_or(1);
        // Two ranks of a model may be tried on one card.
        let products = match ranks {
            None => matmul::Scratch::alone(device, rows_max)?,
            Some(_) => matmul::Scratch::new(device, rows_max)?,
        };
        Ok(Self {
            products,
            parts: attend::Scratch::new(device, BLOCKS_ENOUGH, positions, packed, head_dim)?,
            ranks,
        })
    }

    /// Adds a product to the residual stream: of all ranks, where each has a part of the inputs.
    fn add(
        &mut self,
        device: &Device,
        matrix: &Matrix,
        of: Rows<'_>,
        to: Stream<'_>,
    ) -> Result<(), BackendError> {
        let products = &mut self.products;
        let Some(ranks) = &mut self.ranks else {
            let Stream { stream, rounded, captured } = to;
            let out = Out::Residual { stream, rounded, captured };
            return Ok(matrix.multiply(device, products, of, out)?);
        };
        matrix.multiply(device, products, of, Out::Plain(ranks.part()))?;
        Ok(ranks.add(of.rows, matrix.outputs(), to)?)
    }

    /// Logits (rows, vocab) in `to`: or a slice of them, where each rank has a part of the tokens.
    pub(super) fn logits<'a>(
        &'a mut self,
        device: &Device,
        head: &Matrix,
        of: Rows<'_>,
        (vocab, to): (usize, &'a mut Buffer<f32>),
    ) -> Result<Logits<'a>, BackendError> {
        let Self { products, ranks, .. } = self;
        let Some(ranks) = ranks else {
            head.multiply(device, products, of, Out::Plain(to))?;
            return Ok(Logits { rows: to, vocab, slices: None });
        };
        head.multiply(device, products, of, Out::Plain(ranks.slice()))?;
        let starts = token_starts(ranks.count(), vocab);
        Ok(Logits { rows: to, vocab, slices: Some(Slices { ranks, starts }) })
    }
}

/// What a layer works with beside its weights.
#[derive(Debug)]
pub(super) struct Tools<'a> {
    pub(super) device: &'a Device,
    pub(super) scratch: &'a mut Scratch,
    pub(super) step: &'a Step,
    pub(super) places: Places<'a>,
    pub(super) spans: Spans<'a>,
    pub(super) pages: &'a mut Pages,
    /// Its number among the layers of the pages.
    pub(super) index: usize,
    pub(super) turns: &'a Turns,
    /// 1 for the draft layer, whose rotary positions are one behind its slots.
    pub(super) behind: u32,
}

/// Takes the room's stream through `layers` layers, from the tools' index on, by one kernel.
pub(super) fn run_at_once(
    kernel: &mut Layers,
    sizes: Sizes,
    tools: Tools<'_>,
    layers: usize,
    room: &mut Room,
    captured: Option<&mut Buffer<bf16>>,
) -> Result<(), BackendError> {
    let Room { stream, x, qkv, attended, .. } = room;
    let Tools { device, step, places, spans, turns, behind, .. } = tools;
    let norms = HeadNorms { eps: sizes.eps, ..HeadNorms::default() };
    let attention = Attention {
        rotation: Rotation { qkv, heads: sizes.heads, norms, turns, behind },
        places,
        pages: tools.pages,
        layer: tools.index,
        spans: spans.few,
        spans_len: spans.few_len,
        table: None,
        out: attended,
    };
    let streams = Streams { stream, rounded: x, captured };
    let parts = &mut tools.scratch.parts;
    Ok(kernel.run(device, parts, step, attention, (layers, spans.few_rows), streams)?)
}

impl Layer {
    /// Reads `x` where the input is normed already, else the room's, and adds to the room's stream.
    pub(super) fn run(
        &self,
        mut tools: Tools<'_>,
        room: &mut Room,
        x: Option<&Buffer<bf16>>,
        captured: Option<Captured<'_>>,
    ) -> Result<(), BackendError> {
        let (device, rows) = (tools.device, tools.places.rows);
        let of = Rows { x: x.unwrap_or(&room.x), rows, norm: self.norm };
        let products = &mut tools.scratch.products;
        self.qkv.multiply(device, products, of, Out::Plain(&mut room.qkv))?;
        self.attend(&mut tools, room)?;
        let scratch = &mut *tools.scratch;
        let Room { stream, x, attended, gated, .. } = room;
        let of = Rows { x: attended, rows, norm: None };
        scratch.add(device, &self.o, of, Stream { stream, rounded: x, captured: None })?;
        let of = Rows { x, rows, norm: Some(self.sizes.eps) };
        self.gate_up.multiply(device, &mut scratch.products, of, Out::Gated(gated))?;
        let of = Rows { x: gated, rows, norm: None };
        scratch.add(device, &self.down, of, Stream { stream, rounded: x, captured })
    }

    fn attend(&self, tools: &mut Tools<'_>, room: &mut Room) -> Result<(), BackendError> {
        let Room { qkv, q, attended, .. } = room;
        let rotation = Rotation {
            qkv,
            heads: self.sizes.heads,
            norms: HeadNorms {
                bias: self.bias.as_ref(),
                queries: self.q_norm.as_ref(),
                keys: self.k_norm.as_ref(),
                eps: self.sizes.eps,
            },
            turns: tools.turns,
            behind: tools.behind,
        };
        let Tools { device, step, places, spans, index, .. } = *tools;
        if 0 < spans.many_len {
            rotation.rotate(device, step, places, (tools.pages, index), q)?;
            let attention = Attention {
                rotation,
                places,
                pages: tools.pages,
                layer: index,
                spans: spans.many,
                spans_len: spans.many_len,
                table: None,
                out: attended,
            };
            attention.many(device, step, q)?;
        }
        if 0 < spans.few_len {
            let attention = Attention {
                rotation,
                places,
                pages: tools.pages,
                layer: index,
                spans: spans.few,
                spans_len: spans.few_len,
                table: spans.table,
                out: attended,
            };
            let cut = way::cut(spans.few_len * self.sizes.kv_heads, spans.chunks);
            let parts = &mut tools.scratch.parts;
            attention.few(device, parts, step, spans.few_rows, cut)?;
        }
        Ok(())
    }
}
