//! A model whose next token is a hash of what it finds in its pages.
//!
//! It writes each row to the slot that the page table gives and chooses by reading all slots
//! before it. A page shared by mistake, a stale draft or a lost row changes the text.

use std::cell::Cell;
use std::rc::Rc;

use engine::backend::{Backend, BackendError, Shape};
use engine::batch::ids::{PageId, TokenId};
use engine::batch::plan::{Entry, StepChoices, StepPlan, accept};

use crate::rng::mix;

#[derive(Debug)]
pub struct HashBackend {
    shape: Shape,
    slots: Vec<Option<(u32, TokenId)>>,
    rows_fed: Rc<Cell<u64>>,
    choices: StepChoices,
}

impl HashBackend {
    pub fn new(shape: Shape, rows_fed: Rc<Cell<u64>>) -> Self {
        let slots = vec![None; (shape.pages * shape.page_tokens) as usize];
        Self { shape, slots, rows_fed, choices: StepChoices::default() }
    }

    fn slot(&self, pages: &[PageId], position: u32) -> usize {
        let page = pages[(position / self.shape.page_tokens) as usize];
        (page.0 * self.shape.page_tokens + position % self.shape.page_tokens) as usize
    }

    fn choose(&self, entry: &Entry, pages: &[PageId], position: u32) -> TokenId {
        let read = (0..=position).map(|at| {
            let found = self.slots[self.slot(pages, at)];
            let (written_at, token) = found.expect("a slot is written before it is read");
            assert_eq!(written_at, at, "a slot holds another position");
            token
        });
        next_token(entry.sampling.seed, read, self.shape.vocab)
    }
}

/// The text this model gives for a prompt, with no engine in between.
pub fn solo(seed: u64, prompt: &[TokenId], new_max: u32, vocab: u32) -> Vec<TokenId> {
    let mut tokens = prompt.to_vec();
    for _ in 0..new_max {
        tokens.push(next_token(seed, tokens.iter().copied(), vocab));
    }
    tokens.split_off(prompt.len())
}

fn next_token(seed: u64, tokens: impl Iterator<Item = TokenId>, vocab: u32) -> TokenId {
    let hash = tokens.fold(seed, |hash, token| mix(hash ^ u64::from(token.0)));
    TokenId(u32::try_from(hash % u64::from(vocab)).expect("below vocab"))
}

impl Backend for HashBackend {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), BackendError> {
        let mut rows = plan.rows.iter();
        for entry in &plan.entries {
            assert!(!entry.chained, "this backend takes one plan at a time");
            self.rows_fed.set(self.rows_fed.get() + u64::from(entry.rows()));
            let pages = &plan.pages[entry.pages.clone()];
            let known = rows.by_ref().take(entry.rows_known() as usize).copied();
            let guesses = (0..entry.held).map(|at| TokenId(at % self.shape.vocab));
            let tokens: Vec<TokenId> = known.chain(guesses).collect();
            for (position, &token) in (entry.start..).zip(&tokens) {
                let slot = self.slot(pages, position);
                self.slots[slot] = Some((position, token));
            }
            let end = entry.start + entry.rows();
            let chosen: Vec<TokenId> =
                (end - entry.choices_max()..end).map(|at| self.choose(entry, pages, at)).collect();
            let kept = accept(&tokens[entry.fed as usize..], &chosen);
            self.choices.tokens.extend_from_slice(kept);
            self.choices.counts.push(u32::try_from(kept.len()).expect("small"));
        }
        Ok(())
    }

    fn collect(&mut self, choices: &mut StepChoices) -> Result<(), BackendError> {
        *choices = std::mem::take(&mut self.choices);
        Ok(())
    }
}
