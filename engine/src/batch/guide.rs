//! Limits which tokens may be chosen: a grammar, a schema, a list of words.

use std::fmt;

use crate::batch::ids::TokenId;

/// Walks one request's text token by token and knows what may come next.
///
/// It stands after the last token of the text. The loop advances it over drafts to see what may
/// follow each of them, and rewinds it in the same call, so it never stays ahead of the text.
pub trait Guide: fmt::Debug + Send {
    /// Sets the bit of each token that may come next: token `t` is bit `t % 32` of word `t / 32`.
    /// `mask` has `vocab.div_ceil(32)` words, all zero. At least one bit is set, or it is an error
    /// that ends the request. Where the text may end, the tokens that end it are among them.
    fn allow(&mut self, mask: &mut [u32]) -> Result<(), Stuck>;

    /// Moves past `token`; false, and not moved, if it may not come here.
    fn advance(&mut self, token: TokenId) -> bool;

    /// Moves back over the last `tokens` tokens.
    fn rewind(&mut self, tokens: u32);

    /// Whether nothing at all may follow, so that the request is done.
    fn is_complete(&self) -> bool;
}

/// A guide cannot go on; the request that brought it ends, others do not notice.
#[derive(Clone, Debug, PartialEq)]
pub struct Stuck {
    pub detail: String,
}
