//! A request: the tokens it has and the pages it owns.

use std::sync::Arc;

use crate::batch::ids::{PageId, SeqId, TokenId};
use crate::batch::sampling::Sampling;

/// A request in the engine.
///
/// Invariant: the pages hold keys and values for exactly `tokens[..computed]`. What lies beyond
/// is scratch that a later step overwrites, so refusing a draft costs nothing: nobody undoes it.
#[derive(Debug)]
pub struct Sequence {
    pub id: SeqId,
    pub sampling: Arc<Sampling>,
    tokens: Vec<TokenId>,
    prompt_len: u32,
    len_max: u32,
    computed: u32,
    pub(super) pages: Vec<PageId>,
}

impl Sequence {
    pub fn new(id: SeqId, sampling: Arc<Sampling>, prompt: Vec<TokenId>, new_max: u32) -> Self {
        assert!(!prompt.is_empty(), "a sequence starts from at least one token");
        assert!(0 < new_max, "a sequence asks for at least one token");
        let prompt_len = u32::try_from(prompt.len()).expect("prompts are bounded at admission");
        let len_max = prompt_len + new_max;
        Self { id, sampling, tokens: prompt, prompt_len, len_max, computed: 0, pages: Vec::new() }
    }

    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    pub fn generated(&self) -> &[TokenId] {
        &self.tokens[self.prompt_len as usize..]
    }

    pub fn len(&self) -> u32 {
        u32::try_from(self.tokens.len()).expect("bounded by len_max")
    }

    pub fn prompt_len(&self) -> u32 {
        self.prompt_len
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    pub fn computed(&self) -> u32 {
        self.computed
    }

    /// Tokens the model has not read yet. One behind is what others call decoding.
    pub fn behind(&self) -> u32 {
        self.len() - self.computed
    }

    /// How many drafts are worth a row: the step itself yields one token more than it accepts.
    pub fn drafts_max(&self) -> u32 {
        (self.len_max - self.len()).saturating_sub(1)
    }

    pub fn is_done(&self) -> bool {
        self.len() == self.len_max
    }

    /// The model read `fed` more tokens and then chose `chosen` (empty in the middle of a prompt).
    pub(super) fn commit(&mut self, fed: u32, chosen: &[TokenId]) {
        let drafts_kept = u32::try_from(chosen.len().saturating_sub(1)).expect("small");
        self.tokens.extend_from_slice(chosen);
        self.computed += fed + drafts_kept;
        assert!(self.computed <= self.len());
        assert!(self.len() <= self.len_max);
    }

    /// Gives up the pages; the tokens stay, and the model will read them again.
    pub(super) fn rewind(&mut self) -> Vec<PageId> {
        self.computed = 0;
        std::mem::take(&mut self.pages)
    }
}
