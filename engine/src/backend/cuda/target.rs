//! The target model's forward pass over the rows of a step, on the GPU.

use std::ops::Range;

use kernels::cuda::{Buffer, Device};
use kernels::ops::attend::CHUNK;
use kernels::ops::bf16;
use kernels::ops::block_values;
use kernels::ops::embed;
use kernels::ops::layers::{self, Heads, Layers};
use kernels::ops::matmul::{Captured, Format, Matrix, Rows};
use kernels::ops::rope::{Pages, Places, Turns};
use kernels::ops::rows::Step;
use kernels::ops::sample::Logits;

use super::layer::{self, Kind, Layer, Room, Scratch, Tools};
use super::spans::Spans;
use super::way::{self, Way};
use super::weights::{Part, Source, Stack};
use crate::backend::BackendError;
use crate::backend::layer::Sizes;
use crate::model::ModelConfig;

/// Weights of the target.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) sizes: Sizes,
    /// Kv heads of the rank that has most.
    kv_heads_most: usize,
    pub(super) vocab: usize,
    pub(super) embedding: Matrix,
    layers: Vec<Layer>,
    turns: Turns,
    head: Matrix,
    /// Takes steps of a few rows through the layers, where the card and the model let it.
    at_once: Option<Layers>,
}

/// Residual streams that enter some layers, side by side: (rows, layers hidden) in blocks.
#[derive(Debug)]
pub(super) struct Capture {
    pub(super) to: Buffer<bf16>,
    layers: Vec<usize>,
    hidden: usize,
}

impl Capture {
    pub(super) fn new(
        device: &Device,
        layers: &[usize],
        hidden: usize,
        rows: usize,
    ) -> Result<Self, BackendError> {
        let to = device.zeros(block_values(rows, layers.len() * hidden))?;
        Ok(Self { to, layers: layers.to_vec(), hidden })
    }

    /// Layers after which all is captured.
    pub(super) fn depth(&self) -> usize {
        self.layers.iter().copied().max().unwrap_or(0)
    }

    /// First column of the stream that enters layer `index`, if it is wanted.
    fn column(&self, index: usize) -> Option<usize> {
        Some(self.layers.iter().position(|it| *it == index)? * self.hidden)
    }

    /// Where the stream that enters layer `index` goes, if it is wanted.
    fn of(&mut self, index: usize) -> Option<Captured<'_>> {
        let at = self.column(index)?;
        let columns = self.layers.len() * self.hidden;
        Some(Captured { to: &mut self.to, at, columns })
    }
}

/// Name of the tensor that turns hidden states into logits.
pub(super) fn head_name(config: &ModelConfig) -> &'static str {
    if config.tied { "embed_tokens.weight" } else { "lm_head.weight" }
}

/// What one pass over the target works with.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    pub(super) device: &'a Device,
    pub(super) scratch: &'a mut Scratch,
    pub(super) step: &'a Step,
    pub(super) rows: usize,
    pub(super) spans: Spans<'a>,
    pub(super) pages: &'a mut Pages,
    pub(super) room: &'a mut Room,
    pub(super) capture: Option<&'a mut Capture>,
    /// Whether one kernel takes the rows through the layers: see [`Way`].
    pub(super) at_once: bool,
}

impl Pass<'_> {
    /// What layer `index` works with, and what it works on.
    fn tools<'a>(
        &'a mut self,
        turns: &'a Turns,
        index: usize,
    ) -> (Tools<'a>, &'a mut Room, Option<&'a mut Capture>) {
        let Pass { device, scratch, step, rows, spans, pages, room, capture, .. } = self;
        let places = Places { positions: &step.positions, lanes: &step.lanes, rows: *rows };
        let spans = *spans;
        let tools = Tools { device, scratch, step, places, spans, pages, index, turns, behind: 0 };
        (tools, room, capture.as_deref_mut())
    }
}

impl Target {
    /// This rank's part, for texts of at most `positions` tokens.
    pub(super) fn read(
        source: Source<'_>,
        config: &ModelConfig,
        positions: usize,
    ) -> Result<Self, BackendError> {
        let (whole, shard) = (Sizes::from(config), source.shard);
        let kind = Kind {
            input_norm: Some("input_layernorm.weight"),
            bias: config.qkv_bias,
            head_norms: config.qk_norm,
        };
        let read = |index| Layer::read(source, &format!("layers.{index}"), whole, kind);
        let (vocab, hidden) = (config.vocab, config.hidden);
        let matrix = |source: Source<'_>, name, take, norm| {
            let parts = &[Part { name, rows: vocab, take }];
            source.matrix(&Stack { parts, columns: hidden, inputs: 0..hidden, norm })
        };
        // One is read row by row; rounding the other costs half as much accuracy as all layers.
        let exact = Source { format: Format::Bf16, ..source };
        let norm = source.vector("norm.weight", hidden)?;
        Ok(Self {
            sizes: shard.sizes(whole),
            kv_heads_most: shard.kv_heads_most(whole.kv_heads),
            vocab,
            embedding: matrix(exact, "embed_tokens.weight", 0..vocab, None)?,
            layers: (0..config.layers).map(read).collect::<Result<_, _>>()?,
            turns: layer::turns(source.device, &config.rope, config.head_dim, positions)?,
            head: matrix(exact, head_name(config), shard.tokens(vocab), Some(&norm))?,
            at_once: None,
        })
    }

    /// Lets one kernel take a few rows through all layers, for a model that one GPU has all of.
    pub(super) fn run_at_once(
        &mut self,
        device: &Device,
        capture: Option<&Capture>,
    ) -> Result<(), BackendError> {
        let column = |index| capture.and_then(|it| it.column(index));
        let parts = self.layers.iter().enumerate().map(|(at, it)| it.parts(column(at + 1)));
        let parts: Vec<layers::Layer<'_>> = parts.collect();
        let Sizes { head_dim: dim, kv_heads, eps, .. } = self.sizes;
        let heads = Heads { dim, kv_heads, group: self.sizes.group() };
        self.at_once = Layers::new(device, &parts, heads, eps)?;
        Ok(())
    }

    pub(super) fn depth(&self) -> usize {
        self.layers.len()
    }

    /// Embeds the rows of the step: their residual streams stand in the room.
    pub(super) fn embed(&self, pass: &mut Pass<'_>) -> Result<(), BackendError> {
        let Room { stream, x, .. } = &mut *pass.room;
        let captured = pass.capture.as_mut().and_then(|it| it.of(0));
        let tokens = &pass.step.tokens;
        let embedding = &self.embedding;
        Ok(embed::launch(pass.device, embedding, tokens, pass.rows, stream, x, captured)?)
    }

    /// How so many rows of each of so many sequences go through the layers in the least time;
    /// `keys`: of the longest text, and of the longest that there may be. On every rank the same:
    /// they record a step for each, and in each run of one they wait for each other.
    pub(super) fn way(&self, few: (usize, usize), (keys, keys_max): (usize, usize)) -> Way {
        let (sequences, rows_each) = few;
        let pays = |it: &Layers| it.pays(sequences, rows_each, keys);
        let chunks_max = keys_max.div_ceil(CHUNK);
        Way {
            at_once: self.at_once.as_ref().is_some_and(pays),
            chunks: way::chunks(sequences * self.kv_heads_most, keys, chunks_max),
        }
    }

    /// Takes the residual streams through some layers.
    pub(super) fn run(
        &mut self,
        pass: &mut Pass<'_>,
        layers: Range<usize>,
    ) -> Result<(), BackendError> {
        let Self { sizes, turns, at_once, layers: all, .. } = self;
        if let Some(kernel) = at_once
            && pass.at_once
        {
            let (tools, room, capture) = pass.tools(turns, layers.start);
            let captured = capture.map(|it| &mut it.to);
            return layer::run_at_once(kernel, *sizes, tools, layers.len(), room, captured);
        }
        for index in layers {
            let (tools, room, capture) = pass.tools(turns, index);
            let captured = capture.and_then(|it| it.of(index + 1));
            all[index].run(tools, room, None, captured)?;
        }
        Ok(())
    }

    /// Logits (rows, vocab) of rows of rounded residual streams.
    pub(super) fn logits<'a>(
        &self,
        device: &Device,
        scratch: &'a mut Scratch,
        x: &Buffer<bf16>,
        rows: usize,
        to: &'a mut Buffer<f32>,
    ) -> Result<Logits<'a>, BackendError> {
        let of = Rows { x, rows, norm: Some(self.sizes.eps) };
        scratch.logits(device, &self.head, of, (self.vocab, to))
    }
}
