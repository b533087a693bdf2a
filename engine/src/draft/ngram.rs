//! Copies what followed the last time the same few tokens were seen. No weights, no state.

use crate::batch::ids::{SeqId, TokenId};
use crate::draft::{Ask, Drafter, Proposal};

/// Looks for the longest end of the text, of at most `context` tokens, that stood before; of
/// equally long ones for the last. Ends shorter than `CONTEXT_MIN` say too little.
#[derive(Debug)]
pub struct Ngram {
    pub context: usize,
}

const CONTEXT_MIN: usize = 2;

impl Drafter for Ngram {
    fn propose(&mut self, asks: &[Ask<'_>], proposals: &mut [Proposal]) {
        for (ask, proposal) in asks.iter().zip(proposals) {
            if let Some(found) = find(ask.tokens, self.context) {
                let follows = &ask.tokens[found..];
                proposal.given.extend(follows.iter().take(ask.wanted as usize));
            }
        }
    }

    fn reads_tokens(&self) -> bool {
        true
    }

    fn forget(&mut self, _: SeqId) {}
}

/// Where the text goes on after the place that reads like its end.
fn find(tokens: &[TokenId], context: usize) -> Option<usize> {
    let mut best = (CONTEXT_MIN.min(context).max(1) - 1, None);
    for end in (1..tokens.len()).rev() {
        let back = tokens[..end].iter().rev().zip(tokens.iter().rev());
        let same = back.take(context).take_while(|(before, last)| before == last).count();
        if best.0 < same {
            best = (same, Some(end));
        }
        if same == context {
            break;
        }
    }
    best.1
}

#[cfg(test)]
mod tests;
