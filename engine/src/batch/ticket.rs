//! What was submitted for an entry, and what came back for it.

use crate::batch::ids::TokenId;
use crate::batch::plan::{Entry, StepChoices, TokenLogprobs};

/// What was submitted for one entry, to make sense of what comes back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket {
    pub(super) lane: u32,
    /// The tenure it belongs to: if another has the lane now, nobody waits for the result.
    pub(super) tenure: u64,
    pub(super) fed: u32,
    pub(super) drafts: u32,
    pub(super) choices_max: u32,
    logprobs: bool,
    scored: u32,
}

/// What came back, for one entry or for those that are left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Yield<'a> {
    pub(super) chosen: &'a [TokenId],
    pub(super) logprobs: &'a [TokenLogprobs],
    pub(super) scored: &'a [TokenLogprobs],
}

impl Ticket {
    pub(super) fn new(entry: &Entry, tenure: u64) -> Self {
        Self {
            lane: entry.lane,
            tenure,
            fed: entry.fed,
            drafts: entry.drafts(),
            choices_max: entry.choices_max(),
            logprobs: entry.sampling.logprobs.is_some(),
            scored: entry.scored,
        }
    }
}

impl<'a> Yield<'a> {
    pub(super) fn whole(choices: &'a StepChoices) -> Self {
        let StepChoices { tokens, logprobs, scored, .. } = choices;
        Self { chosen: tokens, logprobs, scored }
    }

    /// Takes what belongs to the next entry, which got `count` tokens.
    pub(super) fn split_off(&mut self, ticket: &Ticket, count: u32) -> Self {
        assert!(count <= ticket.choices_max && (0 < count) == (0 < ticket.choices_max));
        let reported = if ticket.logprobs { count as usize } else { 0 };
        let scored = ticket.scored as usize;
        Self {
            chosen: self.chosen.split_off(..count as usize).expect("as many as counted"),
            logprobs: self.logprobs.split_off(..reported).expect("one for each token"),
            scored: self.scored.split_off(..scored).expect("as many as asked for"),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chosen.is_empty() && self.logprobs.is_empty() && self.scored.is_empty()
    }
}
