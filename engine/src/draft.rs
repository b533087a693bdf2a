//! Drafters guess the next tokens. They see tokens and give tokens; the step loop owes them
//! nothing, so a drafter can be slow, wrong or absent and only the speed changes.

use std::fmt;

use crate::batch::ids::{SeqId, TokenId};

pub mod depth;
pub mod held;
pub mod ngram;
pub mod proposer;

/// Drafts of one request in one step, whatever the depth table says.
pub const DRAFTS_MAX: u32 = 16;

/// A sequence that would like guesses.
#[derive(Debug)]
pub struct Ask<'a> {
    pub seq: SeqId,
    /// What is known of it; when a plan is in flight its last tokens are not known yet.
    pub tokens: &'a [TokenId],
    pub wanted: u32,
}

/// Guesses for one ask: tokens, or a number that the backend makes itself. Never both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposal {
    pub given: Vec<TokenId>,
    pub held: u32,
}

impl Proposal {
    pub fn len(&self) -> u32 {
        u32::try_from(self.given.len()).expect("few drafts") + self.held
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn truncate(&mut self, len: u32) {
        self.given.truncate(len as usize);
        self.held = self.held.min(len);
    }
}

/// Proposes what may follow.
pub trait Drafter: fmt::Debug {
    /// Fills `proposals[i]` with what may follow `asks[i]`, at most as many as wanted; fewer or
    /// none is fine. All asks of a step come together, so that a drafter can batch them.
    fn propose(&mut self, asks: &[Ask<'_>], proposals: &mut [Proposal]);

    /// Whether it must know every token before it proposes. If so the loop reads each step's
    /// choices before it plans the next.
    fn reads_tokens(&self) -> bool;

    /// The sequence is gone; whatever was kept for it can go too.
    fn forget(&mut self, seq: SeqId);
}

/// Never guesses. Speculation is off when this is the drafter: there is no other switch.
#[derive(Debug)]
pub struct Silent;

impl Drafter for Silent {
    fn propose(&mut self, _: &[Ask<'_>], _: &mut [Proposal]) {}

    fn reads_tokens(&self) -> bool {
        false
    }

    fn forget(&mut self, _: SeqId) {}
}
