//! Which part of a model one of several GPUs (ranks) has: whole heads, and whole units of what the
//! kernels cut inputs into.
//!
//! Projections of queries, keys and values, gate and up are cut by outputs; those back to the
//! residual stream by inputs, so that each rank has a part of the sum; logits by tokens. What is
//! small, and the embedding, is whole everywhere.

use std::ops::Range;

use crate::backend::layer::Sizes;

/// Inputs that stay together, and tokens.
const UNIT: usize = 64;
const TOKENS: usize = 16;

/// One rank's part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shard {
    pub(super) rank: usize,
    pub(super) ranks: usize,
}

impl Shard {
    pub(super) const WHOLE: Self = Self { rank: 0, ranks: 1 };

    /// Each rank's, in order.
    pub(super) fn all(ranks: usize) -> impl Iterator<Item = Self> {
        (0..ranks).map(move |rank| Self { rank, ranks })
    }

    /// Its share of `len` things in whole units; the last one may be cut. Shares follow each other
    /// and differ by at most one unit.
    fn of(self, len: usize, unit: usize) -> Range<usize> {
        let units = len.div_ceil(unit);
        let start = |rank: usize| (units * rank / self.ranks * unit).min(len);
        start(self.rank)..start(self.rank + 1)
    }

    pub(super) fn kv_heads(self, count: usize) -> Range<usize> {
        self.of(count, 1)
    }

    /// Those of the rank that has most: what all ranks have to choose alike goes by it.
    pub(super) fn kv_heads_most(self, count: usize) -> usize {
        count.div_ceil(self.ranks)
    }

    /// Query heads: those that read its key-value heads.
    pub(super) fn heads(self, whole: Sizes) -> Range<usize> {
        let Range { start, end } = self.kv_heads(whole.kv_heads);
        start * whole.group()..end * whole.group()
    }

    /// Columns between gate and up, and down.
    pub(super) fn intermediate(self, len: usize) -> Range<usize> {
        self.of(len, UNIT)
    }

    /// Tokens whose logits it makes.
    pub(super) fn tokens(self, vocab: usize) -> Range<usize> {
        self.of(vocab, TOKENS)
    }

    /// The sizes of its part of a layer.
    pub(super) fn sizes(self, whole: Sizes) -> Sizes {
        Sizes {
            intermediate: self.intermediate(whole.intermediate).len(),
            heads: self.heads(whole).len(),
            kv_heads: self.kv_heads(whole.kv_heads).len(),
            ..whole
        }
    }

    /// Why a layer cannot be shared among so many, if it cannot.
    pub(super) fn refuses(ranks: usize, whole: Sizes) -> Option<String> {
        let short = |what: &str, count| {
            (count < ranks).then(|| format!("{ranks} GPUs cannot share {count} {what}"))
        };
        let units = whole.intermediate / UNIT;
        short("heads of keys and values", whole.kv_heads)
            .or_else(|| short("units of 64 intermediate columns", units))
    }
}

/// First token of each rank's logits, and the end.
pub(super) fn token_starts(ranks: usize, vocab: usize) -> Vec<usize> {
    let starts = Shard::all(ranks).map(|it| it.tokens(vocab).start);
    starts.chain([vocab]).collect()
}

#[cfg(test)]
mod tests;
