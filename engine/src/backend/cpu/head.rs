//! The draft layer: guesses before the target reads, and its own keys and values kept true after.
//!
//! It is an EAGLE-3 layer (Li et al. 2025, arXiv 2503.01840) whose keys and values are one more
//! layer of the same pages. The row of (embedding of the token at p, fused hidden state of p - 1)
//! stands at slot p with rotary position p - 1, so it depends on tokens up to p only and a page
//! that two texts share is right for both. Slot 0 has no row.

use kernels::cpu::{
    Activations, KvLayer, KvPages, Matrix, PAGE_TOKENS, Rope, Team, argmax, softmax,
};

use super::layer::{Layer, Place, Rows, Scratch, Tools, apply, norm};
use super::rows::{Laid, Part};
use super::target::Target;
use super::weights::{Source, refused};
use crate::backend::BackendError;
use crate::backend::layer::Sizes;
use crate::model::{self, HeadConfig};

/// First slot that has a row of the draft layer.
const SLOT_FIRST: usize = 1;

/// Weights of the draft layer, and what it remembers of each page.
#[derive(Debug)]
pub(super) struct Head {
    sizes: Sizes,
    /// Layers of the target whose input is captured.
    pub(super) captured: Vec<usize>,
    norm_before_residual: bool,
    fc: Matrix,
    embed_norm: Vec<f32>,
    hidden_norm: Vec<f32>,
    layer: Layer,
    /// The projections of keys and values alone.
    keys_values: Matrix,
    norm: Vec<f32>,
    /// `None` to borrow the target's.
    head: Option<Matrix>,
    target_ids: Vec<u32>,
    rope: Rope,
    /// Its number among the layers of the pages.
    index: usize,
    caution: Caution,
    last: LastHidden,
    stream: Stream,
}

/// The fused hidden state of the last position that stands in each page. It is all that a sequence
/// needs to go on from there, so nothing is kept for sequences.
#[derive(Debug)]
struct LastHidden {
    hidden: usize,
    /// (pages, hidden).
    states: Vec<f32>,
    /// Slot of that position in each page.
    slots: Vec<usize>,
}

/// When guessing ends before the depth that was asked for.
///
/// Confidence is the product of the probabilities that the draft layer gave its own guesses. A
/// guess costs a row of the draft layer and one of the target, and both are better saved where it
/// is likely to be refused. It depends on the text alone, so what is kept never depends on load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caution {
    /// Least confidence with which a guess is fed to the target.
    draft_min: f32,
    /// Least confidence with which one more is made; at least `draft_min`.
    chain_min: f32,
}

impl Caution {
    pub(super) const NONE: Self = Self { draft_min: 0.0, chain_min: 0.0 };

    /// A row of the target costs about 0.11 of a step at one sequence, one of the draft layer 0.07,
    /// and a token is worth 1 / 1.5 of a step; guesses are right more often than the layer thinks.
    /// Measured on the default pair: 1.53 times the speed of no drafts at temperature 0 and 1.18 at
    /// 0.8, against 1.37 and 1.10 with two drafts always, the best depth without caution.
    const USUAL: Self = Self { draft_min: 0.12, chain_min: 0.25 };
}

/// Guesses of one part in the making.
#[derive(Debug)]
struct Chain {
    part: usize,
    confidence: f32,
}

/// Buffers, kept between steps.
#[derive(Debug, Default)]
struct Stream {
    /// What the rows read beside their embeddings, (rows, hidden).
    hidden: Vec<f32>,
    embedded: Vec<f32>,
    embedded_normed: Vec<f32>,
    hidden_normed: Vec<f32>,
    /// (rows, 2 hidden): normed embedding, then normed hidden state.
    z: Vec<f32>,
    residual: Vec<f32>,
    normed: Vec<f32>,
    logits: Vec<f32>,
    fused: Vec<f32>,
    keys_values: Vec<f32>,
}

/// Sizes of the draft layer's keys and values.
pub(super) fn kv_layer(config: &HeadConfig) -> KvLayer {
    KvLayer { kv_heads: config.kv_heads, head_dim: config.head_dim }
}

impl Head {
    /// Lays out the weights for texts of at most `positions` tokens in `pages` pages. The draft
    /// layer is layer `index` of the pages.
    pub(super) fn new(
        head: &model::Head,
        target: &Target,
        activations: Activations,
        (index, pages): (usize, usize),
        positions: usize,
    ) -> Result<Self, BackendError> {
        let model::Head { config, tensors, target_ids } = head;
        if config.hidden != target.hidden() {
            return Err(refused("the draft head", "its hidden size is not the target's"));
        }
        let source = Source { tensors, activations, rounds_plain: true };
        let sizes = Sizes::from(config);
        let own_head = tensors.contains_key("lm_head.weight");
        let keys_values = ["k", "v"].map(|it| format!("midlayer.self_attn.{it}_proj.weight"));
        let states = vec![0.0; pages * config.hidden];
        Ok(Self {
            sizes,
            captured: config.captured_layers.clone(),
            norm_before_residual: config.norm_before_residual,
            fc: source.matrix("fc.weight")?,
            embed_norm: source.vector("midlayer.input_layernorm.weight")?,
            hidden_norm: source.vector("midlayer.hidden_norm.weight")?,
            layer: Layer::read(source, "midlayer", sizes, (false, false))?,
            keys_values: source.stack(&keys_values)?,
            norm: source.vector("norm.weight")?,
            head: if own_head { Some(source.matrix("lm_head.weight")?) } else { None },
            target_ids: target_ids.clone(),
            rope: Rope::new(config.head_dim, positions, config.rope.theta, &config.rope.factors),
            index,
            caution: Caution::USUAL,
            last: LastHidden { hidden: config.hidden, states, slots: vec![PAGE_TOKENS; pages] },
            stream: Stream::default(),
        })
    }

    pub(super) fn set_caution(&mut self, caution: Caution) {
        assert!(caution.draft_min <= caution.chain_min, "no guess follows one that is not fed");
        self.caution = caution;
    }

    /// Fills what it remembers of pages with what is not a number.
    pub(super) fn poison(&mut self) {
        self.last.states.fill(f32::NAN);
    }

    /// Appends guesses to the parts that are to have some, one row of each at a time.
    ///
    /// A part guesses from the fused state of the token before its only own one. A part that has
    /// more rows, or none before it, gets no guesses in this step; see [`Caution`] for those that
    /// get fewer than they may.
    pub(super) fn guess(
        &mut self,
        (team, scratch): (&Team, &mut Scratch),
        target: &Target,
        pages: &mut KvPages,
        parts: &mut [Part<'_>],
    ) {
        let mut chains = self.start(parts);
        while !chains.is_empty() {
            let ends = chains.iter().map(|it| &parts[it.part]).map(|it| (it, it.tokens.len() - 1));
            let tokens: Vec<u32> = ends.clone().map(|(part, at)| part.tokens[at]).collect();
            let places: Vec<_> = ends.clone().map(|(part, at)| part.place(at)).collect();
            let positions: Vec<u32> = ends.map(|(part, at)| part.position(at) - 1).collect();
            let rows = Rows { places: &places, positions: &positions, first: SLOT_FIRST };
            self.run_row(team, scratch, target, pages, &tokens, rows);
            let head = self.head.as_ref().unwrap_or_else(|| target.head());
            let Stream { residual, normed, logits, .. } = &mut self.stream;
            norm(team, residual, &self.norm, self.sizes.eps, normed);
            apply(team, &mut scratch.inputs, head, normed, logits);
            for (chain, logits) in chains.iter_mut().zip(logits.chunks_exact_mut(head.rows())) {
                let best = argmax(logits);
                softmax(team, logits);
                chain.confidence *= logits[best];
                if self.caution.draft_min <= chain.confidence {
                    parts[chain.part].tokens.push(self.target_ids[best]);
                }
            }
            self.go_on(&mut chains, parts);
        }
    }

    /// A chain for each part that may have guesses, and the hidden state that it starts from.
    fn start(&mut self, parts: &[Part<'_>]) -> Vec<Chain> {
        let hidden = &mut self.stream.hidden;
        hidden.clear();
        let mut chains = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            assert!(part.entry.given == 0 || part.entry.held == 0, "given or held, never both");
            if 0 < part.entry.held && part.fed() == 1 && 0 < part.start {
                let before = Place { slot: part.start as usize - 1, ..part.place(0) };
                hidden.extend_from_slice(self.last.get(before));
                chains.push(Chain { part: index, confidence: 1.0 });
            }
        }
        chains
    }

    /// The whole draft layer for one row of each sequence: leaves its output in the residual.
    fn run_row(
        &mut self,
        team: &Team,
        scratch: &mut Scratch,
        target: &Target,
        pages: &mut KvPages,
        tokens: &[u32],
        rows: Rows<'_>,
    ) {
        self.join(team, target, tokens);
        let Stream { hidden, hidden_normed, z, residual, .. } = &mut self.stream;
        residual.clear();
        residual.extend_from_slice(if self.norm_before_residual { hidden_normed } else { hidden });
        let tools = Tools { team, rope: &self.rope, scratch };
        self.layer.attend(tools, (pages, self.index), rows, z, residual);
        self.layer.feed_forward(Tools { team, rope: &self.rope, scratch }, residual);
    }

    /// Keeps the chains that go on; what their rows gave is what they read next.
    fn go_on(&mut self, chains: &mut Vec<Chain>, parts: &[Part<'_>]) {
        let Stream { hidden, residual, .. } = &mut self.stream;
        hidden.clear();
        let mut rows = residual.chunks_exact(self.sizes.hidden);
        chains.retain(|chain| {
            let row = rows.next().expect("a row each");
            let part = &parts[chain.part];
            let goes_on = part.drafts().len() < part.entry.held as usize
                && self.caution.chain_min <= chain.confidence;
            if goes_on {
                hidden.extend_from_slice(row);
            }
            goes_on
        });
    }

    /// Stores keys and values of the rows that stand from the target's true hidden states, over
    /// those of guesses, and the fused state of the last of them in each page.
    ///
    /// captured: (rows, captured, hidden) for all rows of the step; rows that do not stand are
    /// dropped from it.
    pub(super) fn keep_up(
        &mut self,
        (team, scratch): (&Team, &mut Scratch),
        target: &Target,
        pages: &mut KvPages,
        parts: &[Part<'_>],
        captured: &mut Vec<f32>,
    ) {
        let width = self.fc.cols();
        let mut end = 0;
        for part in parts {
            let start = part.rows.start * width;
            let len = part.kept * width;
            if start != end {
                captured.copy_within(start..start + len, end);
            }
            end += len;
        }
        captured.truncate(end);
        apply(team, &mut scratch.inputs, &self.fc, captured, &mut self.stream.fused);
        let laid = self.pair(parts);
        self.join(team, target, &laid.tokens);
        let Stream { z, keys_values, .. } = &mut self.stream;
        apply(team, &mut scratch.inputs, &self.keys_values, z, keys_values);
        let columns = self.keys_values.rows();
        self.rope.rotate(team, keys_values, columns, self.sizes.kv_heads, &laid.positions);
        for (place, row) in laid.places.iter().zip(keys_values.chunks_exact(columns)) {
            place.store(pages, self.index, row);
        }
        self.remember(parts);
    }

    /// Pairs each row that stands with the fused state before it. The first row of a text has none.
    fn pair<'a>(&mut self, parts: &[Part<'a>]) -> Laid<'a> {
        let hidden = self.sizes.hidden;
        let Stream { hidden: states, fused, .. } = &mut self.stream;
        states.clear();
        let mut laid = Laid::default();
        let mut fused = fused.chunks_exact(hidden);
        for part in parts {
            let mut before = match part.start {
                0 => None,
                start => Some(self.last.get(Place { slot: start as usize - 1, ..part.place(0) })),
            };
            for at in 0..part.kept {
                if let Some(before) = before {
                    states.extend_from_slice(before);
                    laid.tokens.push(part.tokens[at]);
                    laid.positions.push(part.position(at) - 1);
                    laid.places.push(part.place(at));
                }
                before = fused.next();
            }
        }
        laid
    }

    /// Keeps the fused state of the last row that stands in each page.
    fn remember(&mut self, parts: &[Part<'_>]) {
        let mut fused = self.stream.fused.chunks_exact(self.sizes.hidden);
        for part in parts {
            for at in 0..part.kept {
                let state = fused.next().expect("a state each");
                let place = part.place(at);
                if at + 1 == part.kept || place.page().1 + 1 == PAGE_TOKENS {
                    self.last.put(place, state);
                }
            }
        }
    }

    /// Fills `z` from the tokens' embeddings and the hidden states.
    fn join(&mut self, team: &Team, target: &Target, tokens: &[u32]) {
        let Stream { hidden, embedded, embedded_normed, hidden_normed, z, .. } = &mut self.stream;
        let Sizes { hidden: dim, eps, .. } = self.sizes;
        target.embed(tokens, embedded);
        norm(team, embedded, &self.embed_norm, eps, embedded_normed);
        norm(team, hidden, &self.hidden_norm, eps, hidden_normed);
        z.clear();
        for (embedded, hidden) in
            embedded_normed.chunks_exact(dim).zip(hidden_normed.chunks_exact(dim))
        {
            z.extend_from_slice(embedded);
            z.extend_from_slice(hidden);
        }
    }
}

impl LastHidden {
    /// The state of a position, which is the last that stands in its page.
    fn get(&self, place: Place<'_>) -> &[f32] {
        let (page, slot) = place.page();
        let page = page as usize;
        assert_eq!(self.slots[page], slot, "a text goes on from where its page ends");
        &self.states[page * self.hidden..][..self.hidden]
    }

    fn put(&mut self, place: Place<'_>, state: &[f32]) {
        let (page, slot) = place.page();
        let page = page as usize;
        self.slots[page] = slot;
        self.states[page * self.hidden..][..self.hidden].copy_from_slice(state);
    }
}
