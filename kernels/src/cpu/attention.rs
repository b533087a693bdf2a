//! Attention of query rows over paged keys and values, heads grouped.

use super::attend::Run;
use super::pages::{KvPages, PAGE_TOKENS};
use super::simd::dispatch;
use super::simd::team::Team;

/// Rows of one chunk of the work: those of one sequence read its pages together.
const CHUNK_ROWS: usize = 8;

/// One row: what it asks, and the slots of its sequence that it sees.
#[derive(Clone, Copy, Debug)]
pub struct AttentionRow<'a> {
    /// (heads, head dim).
    pub query: &'a [f32],
    /// The sequence's pages in order; slot `s` is in `pages[s / 16]`. Rows that stand together
    /// and have the very same slice are fastest.
    pub pages: &'a [u32],
    /// First slot that it sees.
    pub first: usize,
    /// Last slot that it sees, at least `first`.
    pub last: usize,
}

/// `out[r, h, :] = sum over slots s of softmax(scale * q[r, h] . k[s]) * v[s]`.
///
/// out: (rows, heads, head dim). The slots are taken in passes of 128 that start at multiples of
/// 128: each pass has its own maximum and sums, which are merged in order. So the sums of a row
/// have one order wherever it begins. Slots outside `first..=last` may be read but are never used.
pub fn attention(
    team: &Team,
    pages: &KvPages,
    layer: usize,
    scale: f32,
    rows: &[AttentionRow<'_>],
    out: &mut [f32],
) {
    let sizes = pages.layer(layer);
    let Some(first) = rows.first() else { return };
    let columns = first.query.len();
    let group = columns / sizes.kv_heads;
    assert!(group.is_multiple_of(sizes.head_dim), "whole heads in equal groups");
    assert_eq!(out.len(), rows.len() * columns, "one output row a row");
    for row in rows {
        assert_eq!(row.query.len(), columns, "rows have the same heads");
        assert!(row.first <= row.last, "a row sees at least one slot");
        assert!(row.last < row.pages.len() * PAGE_TOKENS, "its slots have pages");
    }
    // Few rows: each query head by itself, so that all threads have work.
    let few = rows.len().div_ceil(CHUNK_ROWS) * sizes.kv_heads < 4 * team.threads();
    let width = if few { sizes.head_dim } else { group };
    team.run_windows(out, columns, (CHUNK_ROWS, width), &|window| {
        let kv_head = window.columns().start / group;
        let mut start = window.rows().start;
        for rows in rows[window.rows()].chunk_by(|a, b| std::ptr::eq(a.pages, b.pages)) {
            let mut run = Run { pages, layer, kv_head, scale, rows, start, out: window };
            dispatch::attend(team.instructions(), &mut run);
            start += rows.len();
        }
    });
}
