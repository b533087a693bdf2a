//! Copies what followed the last time the same few tokens were seen. No weights, no state.

use crate::batch::ids::{SeqId, TokenId};
use crate::draft::{Ask, Drafter, Proposal};

#[derive(Debug)]
pub struct Ngram {
    pub context: usize,
}

impl Drafter for Ngram {
    fn propose(&mut self, asks: &[Ask<'_>], proposals: &mut [Proposal]) {
        for (ask, proposal) in asks.iter().zip(proposals) {
            if let Some(found) = find_last(ask.tokens, self.context) {
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

/// Where the text goes on after the last earlier place that reads like its end.
fn find_last(tokens: &[TokenId], context: usize) -> Option<usize> {
    let (before, tail) = tokens.split_at_checked(tokens.len().checked_sub(context)?)?;
    let start = before.windows(context).rposition(|window| window == tail)?;
    Some(start + context)
}
