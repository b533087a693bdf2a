//! What one step feeds to the model. Backends read it; only the planner writes it.

use std::ops::Range;
use std::sync::Arc;

use crate::batch::ids::{PageId, SeqId, TokenId};
use crate::batch::sampling::Sampling;

/// One step over many sequences, laid out as the backend will read it.
#[derive(Clone, Debug, Default)]
pub struct StepPlan {
    /// The tokens the host knows, entry after entry: own tokens, then given drafts.
    pub rows: Vec<TokenId>,
    /// The page tables, entry after entry.
    pub pages: Vec<PageId>,
    /// Which tokens may be chosen: for each row that a masked entry chooses from, one bit a
    /// token, `vocab.div_ceil(32)` words, entry after entry.
    pub masks: Vec<u32>,
    /// For each row that an entry scores, the token of the prompt that follows it, entry after
    /// entry.
    pub scored: Vec<TokenId>,
    pub entries: Vec<Entry>,
}

/// One sequence's share of a step.
///
/// Rows of an entry, in order: `fed` own tokens, then `given` drafts that stand in
/// [`StepPlan::rows`], then `held` drafts that the backend guesses itself and the host never sees.
#[derive(Clone, Debug)]
pub struct Entry {
    pub seq: SeqId,
    /// The line of the backend's per-sequence tables. A running sequence keeps its lane, a lane has
    /// one sequence at a time and one entry in a plan. A new one starts with an entry that is not
    /// chained and has no drafts, at a multiple of the page size: all before it is in its pages.
    pub lane: u32,
    /// Position of the first row. Of a chained entry: the least it can be.
    pub start: u32,
    /// Rows that are the sequence's own tokens.
    pub fed: u32,
    /// The one own row is the last token chosen by this lane's entry in the plan before, which the
    /// host has not read yet: it is not in [`StepPlan::rows`], and its position follows from how
    /// many drafts that entry kept.
    pub chained: bool,
    /// Drafts that stand in [`StepPlan::rows`] after the own tokens. There are drafts of either
    /// kind only where the one own token was chosen by this lane's last entry.
    pub given: u32,
    /// Drafts that the backend makes itself, at most; none if the entry is masked.
    pub held: u32,
    /// Whether a token follows the last own row, and each draft that is kept: false mid-prompt.
    pub chooses: bool,
    /// Whether [`StepPlan::masks`] has a mask for each row this entry chooses from.
    pub masked: bool,
    /// Rows, from the first, whose successor stands in [`StepPlan::scored`]: the backend reports
    /// how likely the model finds it, with as many of the likeliest as `sampling` says.
    pub scored: u32,
    /// Position of the first token that is not prompt: penalties and least lengths count from here.
    pub outputs_start: u32,
    pub sampling: Arc<Sampling>,
    /// This entry's part of [`StepPlan::pages`]; enough for the longest outcome. A page that an
    /// entry writes stands in no other entry of the plan.
    pub pages: Range<usize>,
}

impl StepPlan {
    pub fn clear(&mut self) {
        self.rows.clear();
        self.pages.clear();
        self.masks.clear();
        self.scored.clear();
        self.entries.clear();
    }
}

impl Entry {
    /// Rows the model reads for this entry.
    pub fn rows(&self) -> u32 {
        self.fed + self.drafts()
    }

    /// Rows whose token the host knows.
    pub fn rows_known(&self) -> u32 {
        if self.chained { self.given } else { self.fed + self.given }
    }

    pub fn drafts(&self) -> u32 {
        self.given + self.held
    }

    /// Most tokens that this entry can yield.
    pub fn choices_max(&self) -> u32 {
        if self.chooses { 1 + self.drafts() } else { 0 }
    }
}

/// What a step yielded, entry after entry.
#[derive(Debug, Default)]
pub struct StepChoices {
    /// The tokens that stand: the drafts that equal the choice, and the one choice after them.
    pub tokens: Vec<TokenId>,
    /// How many of `tokens` each entry got: 0 mid-prompt, else 1 to 1 + its drafts.
    pub counts: Vec<u32>,
    /// Drafts that each entry had, where a backend may make fewer than planned; empty if it made
    /// all.
    pub drafts: Vec<u32>,
    /// For entries whose sampling asks for them, one for each of their tokens, in order.
    pub logprobs: Vec<TokenLogprobs>,
    /// One for each of [`StepPlan::scored`], by the model alone: without penalties and bias.
    pub scored: Vec<TokenLogprobs>,
}

impl StepChoices {
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.counts.clear();
        self.drafts.clear();
        self.logprobs.clear();
        self.scored.clear();
    }
}

/// Natural logarithms of probabilities, before temperature and filters, after penalties and bias.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    pub chosen: f32,
    /// The likeliest tokens, best first, as many as were asked for.
    pub top: Vec<(TokenId, f32)>,
}

/// The drafts that the model would have chosen itself, and the one token that follows them.
/// `chosen[i]` is the choice after the own tokens and `drafts[..i]`.
pub fn accept<'a>(drafts: &[TokenId], chosen: &'a [TokenId]) -> &'a [TokenId] {
    let kept = drafts.iter().zip(chosen).take_while(|(draft, choice)| draft == choice).count();
    &chosen[..chosen.len().min(kept + 1)]
}
