//! Everything the loop has to do with drafts: who gets how many, and what became of them.

use std::collections::BTreeMap;

use crate::batch::ids::SeqId;
use crate::draft::depth::{Depth, Switches};
use crate::draft::{Ask, DRAFTS_MAX, Drafter, Proposal};

/// A drafter, the depth it may go to, and the requests that want fewer drafts than that.
#[derive(Debug)]
pub struct Proposer {
    drafter: Box<dyn Drafter>,
    depth: Depth,
    /// Drafts at most, for those who said so.
    limits: BTreeMap<SeqId, u32>,
    counts: DraftCounts,
}

/// What became of the drafts, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DraftCounts {
    /// Entries that had drafts.
    pub rounds: u64,
    pub drafted: u64,
    pub accepted: u64,
    /// Rounds in which the draft at this place was accepted.
    pub accepted_at: [u64; DRAFTS_MAX as usize],
    pub switches: Switches,
}

impl Proposer {
    pub fn new(drafter: Box<dyn Drafter>, depth: Depth) -> Self {
        let counts = DraftCounts::default();
        Self { drafter, depth, limits: BTreeMap::new(), counts }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth.drafts()
    }

    pub(crate) fn counts(&self) -> DraftCounts {
        DraftCounts { switches: self.depth.switches(), ..self.counts }
    }

    /// The request wants at most `drafts_max` drafts in a step.
    pub(crate) fn limit(&mut self, seq: SeqId, drafts_max: u32) {
        if drafts_max < DRAFTS_MAX {
            self.limits.insert(seq, drafts_max);
        }
    }

    pub(crate) fn forget(&mut self, seq: SeqId) {
        self.limits.remove(&seq);
        self.drafter.forget(seq);
    }

    /// Drafts that each request may get in a step in which `decoding` requests decode.
    pub(crate) fn next_depth(&mut self, decoding: u32) -> u32 {
        self.depth.next(decoding).min(DRAFTS_MAX)
    }

    /// Drafts that the request wants at most.
    pub(crate) fn limit_of(&self, seq: SeqId) -> u32 {
        self.limits.get(&seq).copied().unwrap_or(DRAFTS_MAX)
    }

    /// One proposal for each ask, cut to what was wanted.
    pub(crate) fn propose(&mut self, asks: &[Ask<'_>], held_max: u32) -> Vec<Proposal> {
        let mut proposals = vec![Proposal::default(); asks.len()];
        if !asks.is_empty() {
            self.drafter.propose(asks, &mut proposals);
        }
        for (ask, proposal) in asks.iter().zip(&mut proposals) {
            proposal.given.truncate(ask.wanted as usize);
            let held_max = if proposal.given.is_empty() { held_max.min(ask.wanted) } else { 0 };
            proposal.held = proposal.held.min(held_max);
        }
        proposals
    }

    /// An entry came back with the first `kept` of its `drafted` drafts accepted.
    pub(crate) fn count(&mut self, drafted: u32, kept: u32) {
        if drafted == 0 {
            return;
        }
        self.counts.rounds += 1;
        self.counts.drafted += u64::from(drafted);
        self.counts.accepted += u64::from(kept);
        for count in &mut self.counts.accepted_at[..kept as usize] {
            *count += 1;
        }
    }
}

#[cfg(test)]
mod tests;
