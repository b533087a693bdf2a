//! A request: the tokens it has and the pages it owns.

use std::sync::Arc;

use crate::batch::guide::{Guide, Stuck};
use crate::batch::ids::{SeqId, TokenId};
use crate::batch::pages::{Found, PagePool, PageTable};
use crate::batch::plan::TokenLogprobs;
use crate::batch::sampling::Sampling;
use crate::batch::step::{Finish, Request};

/// A request in the engine.
///
/// Invariant: the pages hold keys and values for exactly `tokens[..computed]`. What lies beyond
/// is scratch that a later step overwrites, so refusing a draft costs nothing: nobody undoes it.
#[derive(Debug)]
pub struct Sequence {
    pub id: SeqId,
    pub sampling: Arc<Sampling>,
    pub(super) place: Place,
    pub(super) guide: Option<Box<dyn Guide>>,
    pub(super) table: PageTable,
    /// Prompt tokens that were found in pages when it first ran.
    pub(super) cached: Option<u32>,
    /// How likely the prompt's tokens after the first are, as far as they were read; until they are
    /// told.
    scores: Vec<TokenLogprobs>,
    tokens: Vec<TokenId>,
    prompt_len: u32,
    len_max: u32,
    computed: u32,
}

/// Who goes first: the lower priority number, then who came first. No two requests share one.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Place {
    pub priority: i32,
    pub arrival: u64,
}

impl Sequence {
    pub(super) fn new(place: Place, request: Request) -> Self {
        let Request { id, prompt, new_max, sampling, guide, salt, .. } = request;
        assert!(!prompt.is_empty(), "a sequence starts from at least one token");
        assert!(0 < new_max, "a sequence asks for at least one token");
        let prompt_len = u32::try_from(prompt.len()).expect("prompts are bounded at admission");
        Self {
            id,
            sampling,
            place,
            guide,
            table: PageTable::new(salt),
            cached: None,
            scores: Vec::new(),
            tokens: prompt,
            prompt_len,
            len_max: prompt_len + new_max,
            computed: 0,
        }
    }

    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    pub fn len(&self) -> u32 {
        u32::try_from(self.tokens.len()).expect("bounded by len_max")
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    pub fn prompt_len(&self) -> u32 {
        self.prompt_len
    }

    pub fn len_max(&self) -> u32 {
        self.len_max
    }

    pub fn computed(&self) -> u32 {
        self.computed
    }

    /// The tokens that the pages hold.
    pub fn read(&self) -> &[TokenId] {
        &self.tokens[..self.computed as usize]
    }

    /// Whether `token` ends the text.
    pub fn stops_at(&self, token: TokenId) -> bool {
        self.sampling.stop_tokens.contains(&token)
    }

    pub(super) fn table_and_tokens(&mut self) -> (&mut PageTable, &[TokenId]) {
        (&mut self.table, &self.tokens)
    }

    /// Whether its prompt's tokens are still to be told: each of its rows must be read for that.
    fn is_scoring(&self) -> bool {
        self.sampling.prompt_logprobs.is_some() && self.len() == self.prompt_len
    }

    /// The prompt's tokens that follow `fed` rows from `start` and are to be scored.
    pub(super) fn scored(&self, start: u32, fed: u32) -> &[TokenId] {
        let end = (start + fed).min(self.prompt_len - 1);
        if end <= start || !self.is_scoring() {
            return &[];
        }
        &self.tokens[start as usize + 1..=end as usize]
    }

    /// Keeps the scores of the rows after `computed`. After a rewind some come again.
    pub(super) fn keep_scores(&mut self, scores: &[TokenLogprobs]) {
        let known = self.scores.len().saturating_sub(self.computed as usize);
        self.scores.extend_from_slice(scores.get(known..).unwrap_or_default());
    }

    pub(super) fn take_scores(&mut self) -> Vec<TokenLogprobs> {
        std::mem::take(&mut self.scores)
    }

    /// Takes the pages that already hold its start; before it has read anything itself.
    pub(super) fn find_pages(&mut self, pool: &mut PagePool, step: u64) -> Found {
        if self.is_scoring() {
            return Found::Not;
        }
        loop {
            match pool.find(&mut self.table, &self.tokens, step) {
                Found::Now => self.computed += pool.page_tokens(),
                other => return other,
            }
        }
    }

    /// How many of `chosen` the text takes, and why it ends there, if it does. Moves the guide.
    pub(super) fn end(&mut self, chosen: &[TokenId]) -> (usize, Option<Finish>) {
        for (at, &token) in chosen.iter().enumerate() {
            let guide = self.guide.as_mut();
            let allowed = guide.is_none_or(|it| it.advance(token));
            if self.stops_at(token) {
                return (at + 1, Some(Finish::Stop(token)));
            }
            if !allowed {
                let detail = format!("token {} was chosen against the mask", token.0);
                return (at, Some(Finish::Stuck(Stuck { detail })));
            }
            if self.guide.as_ref().is_some_and(|it| it.is_complete()) {
                return (at + 1, Some(Finish::Complete));
            }
            if self.tokens.len() + at + 1 == self.len_max as usize {
                return (at + 1, Some(Finish::Length));
            }
        }
        (chosen.len(), None)
    }

    /// The model read `fed` more tokens and then chose `chosen` (empty in the middle of a prompt).
    pub(super) fn commit(&mut self, fed: u32, chosen: &[TokenId]) {
        let drafts_kept = u32::try_from(chosen.len().saturating_sub(1)).expect("small");
        self.tokens.extend_from_slice(chosen);
        self.computed += fed + drafts_kept;
        assert!(self.computed <= self.len());
        assert!(self.len() <= self.len_max);
    }

    /// Gives the pages back; the tokens stay, and the model will read them again.
    pub(super) fn rewind(&mut self, pool: &mut PagePool) {
        pool.release(&mut self.table);
        self.computed = 0;
    }
}
