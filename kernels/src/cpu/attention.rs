//! Attention of query rows over paged keys and values, heads grouped.

use super::pages::{KvPages, PAGE_TOKENS};
use super::rows::{LANES, exp, sum_lanes};
use super::simd::dispatch;
use super::simd::team::Team;

/// Pages whose scores are made before their values are added: one pass of the running softmax.
const PASS_PAGES: usize = 8;

/// One row: what it asks, and the slots of its sequence that it sees.
#[derive(Clone, Copy, Debug)]
pub struct AttentionRow<'a> {
    /// (heads, head dim).
    pub query: &'a [f32],
    /// The sequence's pages in order; slot `s` is in `pages[s / 16]`.
    pub pages: &'a [u32],
    /// First slot that it sees.
    pub first: usize,
    /// Last slot that it sees, at least `first`.
    pub last: usize,
}

/// Query heads of one row that share a key-value head.
#[derive(Debug)]
pub(crate) struct Heads<'a> {
    pages: &'a KvPages,
    layer: usize,
    kv_head: usize,
    scale: f32,
    row: AttentionRow<'a>,
}

/// `out[r, h, :] = sum over slots s of softmax(scale * q[r, h] . k[s]) * v[s]`.
///
/// out: (rows, heads, head dim). The slots are taken in passes of 128 that start at multiples of
/// 128, so a row's sums have one order wherever it begins; slots outside `first..=last` are read
/// but never used.
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
    team.run_windows(out, columns, (1, group), &|window| {
        let row = rows[window.rows().start];
        let kv_head = window.columns().start / group;
        let row = AttentionRow { query: &row.query[kv_head * group..][..group], ..row };
        let heads = Heads { pages, layer, kv_head, scale, row };
        dispatch::attend(team.instructions(), &heads, window.row(window.rows().start));
    });
}

#[inline(always)]
pub(crate) fn attend_body(heads: &Heads<'_>, out: &mut [f32]) {
    let dim = heads.pages.layer(heads.layer).head_dim;
    for (query, out) in heads.row.query.chunks_exact(dim).zip(out.chunks_exact_mut(dim)) {
        attend_head(heads, query, out);
    }
}

/// query, out: (head dim,).
#[inline(always)]
fn attend_head(heads: &Heads<'_>, query: &[f32], out: &mut [f32]) {
    let AttentionRow { pages, first, last, .. } = heads.row;
    let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
    out.fill(0.0);
    let first_pass = first / (PASS_PAGES * PAGE_TOKENS);
    for pass in first_pass..=last / (PASS_PAGES * PAGE_TOKENS) {
        let start = pass * PASS_PAGES;
        let pages = &pages[start..pages.len().min(start + PASS_PAGES)];
        let slot = start * PAGE_TOKENS;
        let mut scores = [[f32::NEG_INFINITY; LANES]; PASS_PAGES];
        let mut pass_max = f32::NEG_INFINITY;
        for (i, (scores, &page)) in scores.iter_mut().zip(pages).enumerate() {
            let slots = slot + i * PAGE_TOKENS..slot + (i + 1) * PAGE_TOKENS;
            if slots.end <= first || last < slots.start {
                continue;
            }
            let (keys, _) = heads.pages.head(heads.layer, page, heads.kv_head);
            let mut dots = [0.0; LANES];
            for (q, keys) in query.iter().zip(keys.chunks_exact(LANES)) {
                for (dot, key) in dots.iter_mut().zip(keys) {
                    *dot = q.mul_add(*key, *dot);
                }
            }
            for ((score, dot), slot) in scores.iter_mut().zip(dots).zip(slots) {
                if first <= slot && slot <= last {
                    *score = dot * heads.scale;
                    pass_max = if pass_max < *score { *score } else { pass_max };
                }
            }
        }
        if max < pass_max {
            let shrink = exp(max - pass_max);
            sum *= shrink;
            out.iter_mut().for_each(|it| *it *= shrink);
            max = pass_max;
        }
        let mut sums = [0.0; LANES];
        for scores in &mut scores {
            for (score, sum) in scores.iter_mut().zip(&mut sums) {
                *score = exp(*score - max);
                *sum += *score;
            }
        }
        sum += sum_lanes(sums);
        for (i, (scores, &page)) in scores.iter().zip(pages).enumerate() {
            let (_, values) = heads.pages.head(heads.layer, page, heads.kv_head);
            for (token, (weight, value)) in
                scores.iter().zip(values.chunks_exact(out.len())).enumerate()
            {
                let slot = slot + i * PAGE_TOKENS + token;
                if first <= slot && slot <= last {
                    for (out, value) in out.iter_mut().zip(value) {
                        *out = weight.mul_add(*value, *out);
                    }
                }
            }
        }
    }
    let scale = 1.0 / sum;
    out.iter_mut().for_each(|it| *it *= scale);
}
