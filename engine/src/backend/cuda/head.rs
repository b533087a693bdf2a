//! The draft layer on the GPU: it guesses before the target reads, and its keys and values are kept
//! true after. What it is, and where its rows stand, is told in `backend/cpu/head.rs`.

use kernels::cuda::{Buffer, Device};
use kernels::ops::bf16;
use kernels::ops::block_values;
use kernels::ops::draft::{self, Deferred, InputNorms, InputRows, States, Window};
use kernels::ops::matmul::{self, Matrix, Out, Rows};
use kernels::ops::rope::{HeadNorms, Pages, Places, Rotation, Turns};
use kernels::ops::rows::{Extent, Step};

use super::deferred::ROWS_MAX;
use super::layer::{self, Kind, Layer, Room, Scratch, Tools, projections};
use super::shard::Shard;
use super::spans::Spans;
use super::target::{Capture, Target};
use super::weights::{Part, Source, Stack, refused};
use crate::backend::BackendError;
use crate::backend::layer::Sizes;
use crate::model::HeadConfig;

/// Its rotary positions are one behind its slots, and slot 0 has no row.
const BEHIND: u32 = 1;

/// Weights of the draft layer, its buffers, and what it remembers of each page.
#[derive(Debug)]
pub(super) struct Head {
    sizes: Sizes,
    keep_normed: bool,
    fc: Matrix,
    token_norm: Buffer<f32>,
    state_norm: Buffer<f32>,
    layer: Layer,
    /// The projections of keys and values alone.
    keys_values: Matrix,
    /// Its tokens, and what gives this rank's logits of them.
    vocab: usize,
    head: Matrix,
    target_ids: Buffer<u32>,
    turns: Turns,
    pages: Pages,
    states: States,
    pub(super) capture: Capture,
    /// What plain steps captured and nobody has read yet.
    deferred: Deferred,
    /// (rows, hidden): fused hidden states.
    fused: Buffer<f32>,
    /// (rows, 2 hidden) in blocks.
    joined: Buffer<bf16>,
    keys_values_out: Buffer<f32>,
    /// For what runs beside the target's products.
    products: matmul::Scratch,
    room: Room,
    logits: Buffer<f32>,
}

/// Sizes that its memory depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extents {
    pub(super) positions: usize,
    pub(super) rows_max: usize,
    pub(super) lanes: usize,
}

/// Memory of a rank for each page, in bytes.
pub(super) fn page_bytes(config: &HeadConfig, shard: Shard) -> usize {
    let kv_heads = shard.kv_heads(config.kv_heads).len();
    Pages::page_values(kv_heads, config.head_dim) * size_of::<bf16>()
        + States::page_bytes(config.hidden)
}

impl Head {
    /// `borrowed`: where the target's own head is read from if this one has none.
    pub(super) fn read(
        source: Source<'_>,
        config: &HeadConfig,
        target_ids: &[u32],
        borrowed: (Source<'_>, &str),
        extents: Extents,
    ) -> Result<Self, BackendError> {
        let (device, shard, whole) = (source.device, source.shard, Sizes::from(config));
        let (sizes, hidden, vocab) = (shard.sizes(whole), config.hidden, config.draft_vocab);
        let layers = &config.captured_layers;
        let norm = source.vector("norm.weight", hidden)?;
        let own = source.tensors.is_none_or(|it| it.contains_key("lm_head.weight"));
        let (from, name) = if own { (source, "lm_head.weight") } else { borrowed };
        let stack = |parts, columns, norm| Stack { parts, columns, inputs: 0..columns, norm };
        let head = [Part { name, rows: vocab, take: shard.tokens(vocab) }];
        let head = stack(&head, hidden, Some(&norm));
        let names = ["k", "v"].map(|it| format!("midlayer.self_attn.{it}_proj.weight"));
        let [_, keys, values] = projections(shard, whole);
        let part = |name, (rows, take)| Part { name, rows, take };
        let kv = keys.1.len();
        let keys_values = [part(&names[0], keys), part(&names[1], values)];
        let keys_values = stack(&keys_values, 2 * hidden, None);
        let fc = [Part::whole("fc.weight", hidden)];
        let fc = stack(&fc, layers.len() * hidden, None);
        if target_ids.len() != vocab {
            return Err(refused("the draft head", "its vocabulary has no token for each entry"));
        }
        let kind = Kind { input_norm: None, bias: false, head_norms: false };
        let Extents { positions, rows_max, lanes } = extents;
        Ok(Self {
            sizes,
            keep_normed: config.norm_before_residual,
            fc: source.matrix(&fc)?,
            token_norm: source.uploaded("midlayer.input_layernorm.weight", hidden)?,
            state_norm: source.uploaded("midlayer.hidden_norm.weight", hidden)?,
            layer: Layer::read(source, "midlayer", whole, kind)?,
            keys_values: source.matrix(&keys_values)?,
            vocab,
            head: from.matrix(&head)?,
            target_ids: device.upload(target_ids)?,
            turns: layer::turns(device, &config.rope, config.head_dim, positions)?,
            pages: Pages::new(device, 1, 0, sizes.kv_heads, config.head_dim)?,
            states: States::new(device, 0, hidden)?,
            capture: Capture::new(device, layers, hidden, rows_max)?,
            deferred: Deferred::new(device, ROWS_MAX, layers.len() * hidden)?,
            fused: device.zeros(rows_max * hidden)?,
            joined: device.zeros(block_values(rows_max, 2 * hidden))?,
            keys_values_out: device.zeros(rows_max * 2 * kv)?,
            products: matmul::Scratch::new(device, rows_max)?,
            room: Room::new(device, sizes, rows_max)?,
            logits: device.zeros(lanes * vocab)?,
        })
    }

    /// Takes memory for its part of so many pages.
    pub(super) fn take_pages(&mut self, device: &Device, pages: usize) -> Result<(), BackendError> {
        let Sizes { hidden, kv_heads, head_dim, .. } = self.sizes;
        self.pages = Pages::new(device, 1, pages, kv_heads, head_dim)?;
        self.states = States::new(device, pages, hidden)?;
        Ok(())
    }

    /// Makes up to `depth` drafts for each entry that wants some, one row of each at a time; texts
    /// are cut for so many chunks.
    pub(super) fn guess(
        &mut self,
        device: &Device,
        scratch: &mut Scratch,
        target: &Target,
        step: &mut Step,
        extent: Extent,
        (depth, chunks): (usize, usize),
    ) -> Result<(), BackendError> {
        let rows = extent.entries;
        for at in 0..depth {
            self.join(device, target, step, rows, at == 0)?;
            let places =
                Places { positions: &step.chain_positions, lanes: &step.chain_lanes, rows };
            let spans = Spans {
                few: &step.chain_spans,
                few_len: rows,
                few_rows: 1,
                table: None,
                chunks,
                many: &step.chain_spans,
                many_len: 0,
            };
            let tools = Tools {
                device,
                scratch: &mut *scratch,
                step,
                places,
                spans,
                pages: &mut self.pages,
                index: 0,
                turns: &self.turns,
                behind: BEHIND,
            };
            self.layer.run(tools, &mut self.room, Some(&self.joined), None)?;
            let of = Rows { x: &self.room.x, rows, norm: Some(self.sizes.eps) };
            let logits = scratch.logits(device, &self.head, of, (self.vocab, &mut self.logits))?;
            draft::guess(device, step, extent, logits, &self.target_ids, at)?;
        }
        Ok(())
    }

    /// The layer's input for the chain: its first row starts from what a page keeps, a later one
    /// from what the row before gave.
    fn join(
        &mut self,
        device: &Device,
        target: &Target,
        step: &Step,
        rows: usize,
        is_first: bool,
    ) -> Result<(), BackendError> {
        let rows = InputRows {
            tokens: &step.chain_tokens,
            sources: is_first.then_some(&step.chain_sources),
            states: &self.fused,
            rows,
        };
        let norms = InputNorms {
            table: &target.embedding,
            token: &self.token_norm,
            state: &self.state_norm,
            eps: self.sizes.eps,
            keep_normed: self.keep_normed,
        };
        let (states, stream) = (&self.states, &mut self.room.stream);
        Ok(draft::input(device, norms, states, rows, stream, &mut self.joined)?)
    }

    /// Stores keys and values of all rows from the target's true hidden states, over those of
    /// guesses. Needs nothing of the target after the last captured layer, so it can run beside
    /// what is left. `waited`: of the rows that waited and are gathered, instead of the step's.
    pub(super) fn keep_up(
        &mut self,
        device: &Device,
        target: &Target,
        step: &Step,
        rows: usize,
        waited: bool,
    ) -> Result<(), BackendError> {
        let Self { deferred: of, products, .. } = self;
        let (tokens, sources, positions, lanes) = if waited {
            (&of.tokens, &of.sources, &of.positions, &of.lanes)
        } else {
            (&step.tokens, &step.sources, &step.positions, &step.lanes)
        };
        let of = Rows { x: &self.capture.to, rows, norm: None };
        self.fc.multiply(device, products, of, Out::Plain(&mut self.fused))?;
        let norms = InputNorms {
            table: &target.embedding,
            token: &self.token_norm,
            state: &self.state_norm,
            eps: self.sizes.eps,
            keep_normed: self.keep_normed,
        };
        let input = InputRows { tokens, sources: Some(sources), states: &self.fused, rows };
        let stream = &mut self.room.stream;
        draft::input(device, norms, &self.states, input, stream, &mut self.joined)?;
        let of = Rows { x: &self.joined, rows, norm: None };
        let out = Out::Plain(&mut self.keys_values_out);
        self.keys_values.multiply(device, products, of, out)?;
        let rotation = Rotation {
            qkv: &self.keys_values_out,
            heads: 0,
            norms: HeadNorms::default(),
            turns: &self.turns,
            behind: BEHIND,
        };
        let places = Places { positions, lanes, rows };
        Ok(rotation.store(device, step, places, (&mut self.pages, 0))?)
    }

    /// Accepts the choices of a plain step and leaves its rows for later.
    pub(super) fn accept(
        &mut self,
        device: &Device,
        step: &mut Step,
        choices: &Buffer<u32>,
        window: Window,
    ) -> Result<(), BackendError> {
        Ok(self.deferred.accept(device, step, choices, &self.capture.to, window)?)
    }

    /// Takes up the rows that wait.
    pub(super) fn catch_up(
        &mut self,
        device: &Device,
        target: &Target,
        step: &mut Step,
        window: Window,
    ) -> Result<(), BackendError> {
        self.deferred.gather(device, window, &mut self.capture.to)?;
        self.keep_up(device, target, step, window.all(), true)?;
        let Self { states, deferred, fused, .. } = self;
        Ok(states.keep_deferred(device, step, deferred, window, fused)?)
    }

    /// Keeps the states that later steps start from. After [`Self::keep_up`], and where there are
    /// drafts, after the choices are accepted.
    pub(super) fn keep_states(
        &mut self,
        device: &Device,
        step: &mut Step,
        extent: Extent,
    ) -> Result<(), BackendError> {
        Ok(self.states.keep(device, step, extent, &self.fused)?)
    }
}
