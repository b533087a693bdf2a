//! Which of several kernels take a step, and among how many blocks a text is cut: by the step's
//! shape and by how long its texts are. Steps are recorded for each.

use kernels::ops::attend::CHUNK;

/// Sequences x kv heads up to which a text is cut among several blocks.
pub(super) const BLOCKS_ENOUGH: usize = 132;
/// Chunks of keys up to which texts are short, or middling.
const CHUNKS: [usize; 2] = [2, 8];

/// How a step is taken; its results are the same whatever this is.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Way {
    /// Whether one kernel takes the rows through all layers.
    pub(super) at_once: bool,
    /// Chunks of keys for which texts are cut. One may have more, if the drafts of its last step
    /// were kept: then a block takes several.
    pub(super) chunks: usize,
}

impl Way {
    /// The one way for all that differ in nothing that steps of so many drafts ask for: the kernel
    /// for all layers cuts texts by itself, and only drafts attend without it.
    pub(super) fn with_drafts(self, depth: usize) -> Self {
        if self.at_once && depth == 0 { Self { chunks: 1, ..self } } else { self }
    }
}

/// Chunks to cut texts for, the longest of which has `keys` keys, of `chunks_max` that there may
/// be. `blocks`: sequences x kv heads.
pub(super) fn chunks(blocks: usize, keys: usize, chunks_max: usize) -> usize {
    let enough = |it: &usize| keys <= it * CHUNK && blocks <= BLOCKS_ENOUGH;
    CHUNKS.into_iter().find(enough).unwrap_or(chunks_max).min(chunks_max)
}

/// Blocks for a sequence and kv head, where there are so many of those.
pub(super) fn cut(blocks: usize, chunks: usize) -> usize {
    let cut = if blocks <= BLOCKS_ENOUGH { 2 * BLOCKS_ENOUGH / blocks } else { 1 };
    cut.clamp(1, chunks)
}

/// Lengths at which steps may be taken in other ways, up to `keys_max`.
pub(super) fn lengths(keys_max: usize) -> impl Iterator<Item = usize> {
    let ends = CHUNKS.into_iter().flat_map(|it| [it * CHUNK, it * CHUNK + 1]);
    [1].into_iter().chain(ends).filter(move |it| *it < keys_max).chain([keys_max])
}

#[cfg(test)]
mod tests;
