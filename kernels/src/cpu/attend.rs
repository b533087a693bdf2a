//! The arithmetic of attention: rows of one sequence and query heads that share a key-value head.

use std::ops::Range;

use super::attention::AttentionRow;
use super::pages::{Half, Kept, KvNumbers, KvPages, PAGE_TOKENS};
use super::rows::{LANES, exp, sum_lanes};
use super::simd::team::Window;
use super::simd::vector::Vector;

/// Slots of a pass.
const PASS: usize = 128;
const PASS_PAGES: usize = PASS / PAGE_TOKENS;

/// Queries whose scores of a pass are kept at once.
const QUERIES_MAX: usize = 24;

/// Queries whose sums are in registers at once.
const TURN: usize = 6;

/// Rows of one sequence with one key-value head, and where their answers go.
#[derive(Debug)]
pub(crate) struct Run<'a, 'w> {
    pub(crate) pages: &'a KvPages,
    pub(crate) layer: usize,
    pub(crate) kv_head: usize,
    pub(crate) scale: f32,
    /// All with the same table of pages.
    pub(crate) rows: &'a [AttentionRow<'a>],
    /// Number of the first row in the window's array.
    pub(crate) start: usize,
    /// The columns of the query heads that share the key-value head.
    pub(crate) out: &'a mut Window<'w, f32>,
}

/// One query head of a row.
#[derive(Clone, Copy)]
struct Query<'a> {
    /// (head dim,).
    values: &'a [f32],
    /// Which row and head of the run.
    row: usize,
    head: usize,
    first: usize,
    last: usize,
}

/// Running maximum and sum of weights.
#[derive(Clone, Copy)]
struct State {
    max: f32,
    sum: f32,
}

/// What one pass does to a query: its slots, counted from the start of the pass, and the factors
/// of what was summed before it and of what it sums.
#[derive(Clone, Copy)]
struct Step {
    query: usize,
    start: usize,
    end: usize,
    before: f32,
    now: f32,
}

impl Step {
    const NONE: Self = Self { query: 0, start: 0, end: 0, before: 0.0, now: 0.0 };
}

/// A query's scores of a pass, later their weights.
type Scores = [[f32; LANES]; PASS_PAGES];

#[inline(always)]
pub(crate) fn attend_body<V: Vector>(v: V, run: &mut Run<'_, '_>) {
    match run.pages.numbers() {
        KvNumbers::F32 => attend_run::<V, f32>(v, run),
        KvNumbers::F16 => attend_run::<V, Half>(v, run),
    }
}

#[inline(always)]
fn attend_run<V: Vector, K: Kept>(v: V, run: &mut Run<'_, '_>) {
    let dim = run.pages.layer(run.layer).head_dim;
    let heads = run.out.columns().len() / dim;
    let none = Query { values: &[], row: 0, head: 0, first: 0, last: 0 };
    let mut queries = [none; QUERIES_MAX];
    let all = run.rows.len() * heads;
    for start in (0..all).step_by(QUERIES_MAX) {
        let queries = &mut queries[..QUERIES_MAX.min(all - start)];
        for (i, query) in queries.iter_mut().enumerate() {
            let (row, head) = ((start + i) / heads, (start + i) % heads);
            let AttentionRow { query: values, first, last, .. } = run.rows[row];
            let values = &values[run.out.columns().start + head * dim..][..dim];
            *query = Query { values, row, head, first, last };
        }
        attend_queries::<V, K>(v, run, queries);
    }
}

#[inline(always)]
fn attend_queries<V: Vector, K: Kept>(v: V, run: &mut Run<'_, '_>, queries: &[Query<'_>]) {
    let dim = run.pages.layer(run.layer).head_dim;
    let mut states = [State { max: f32::NEG_INFINITY, sum: 0.0 }; QUERIES_MAX];
    let mut scores = [[[0.0; LANES]; PASS_PAGES]; QUERIES_MAX];
    for query in queries {
        head_of(run, query, dim).fill(0.0);
    }
    let first = queries.iter().map(|it| it.first).min().unwrap_or(0) / PASS;
    let last = queries.iter().map(|it| it.last).max().unwrap_or(0) / PASS;
    for pass in first..=last {
        let mut steps = [Step::NONE; QUERIES_MAX];
        let mut count = 0;
        for (i, query) in queries.iter().enumerate() {
            let start = query.first.max(pass * PASS);
            let end = (query.last + 1).min((pass + 1) * PASS);
            if start < end {
                let (start, end) = (start - pass * PASS, end - pass * PASS);
                steps[count] = Step { query: i, start, end, ..Step::NONE };
                count += 1;
            }
        }
        let steps = &mut steps[..count];
        for (i, steps) in steps.chunks(TURN).enumerate() {
            score::<V, K>(v, run, queries, pass, steps, &mut scores[i * TURN..]);
        }
        for (step, scores) in steps.iter_mut().zip(&mut scores) {
            weigh(step, &mut states[step.query], scores);
        }
        for (i, steps) in steps.chunks(TURN).enumerate() {
            add_values::<V, K>(v, run, queries, pass, steps, &scores[i * TURN..]);
        }
    }
    for (query, state) in queries.iter().zip(states) {
        let scale = 1.0 / state.sum;
        head_of(run, query, dim).iter_mut().for_each(|it| *it *= scale);
    }
}

/// Where the answer of a query stands.
#[inline(always)]
fn head_of<'r>(run: &'r mut Run<'_, '_>, query: &Query<'_>, dim: usize) -> &'r mut [f32] {
    &mut run.out.row(run.start + query.row)[query.head * dim..][..dim]
}

/// Scores turn to weights; the step learns its factors. The scores outside its slots count for
/// nothing, whatever they are.
#[inline(always)]
fn weigh(step: &mut Step, state: &mut State, scores: &mut Scores) {
    let slots = scores.as_flattened_mut();
    slots[..step.start].fill(f32::NEG_INFINITY);
    slots[step.end..].fill(f32::NEG_INFINITY);
    let mut maxima = [f32::NEG_INFINITY; LANES];
    for scores in &*scores {
        for (max, score) in maxima.iter_mut().zip(scores) {
            *max = if *max < *score { *score } else { *max };
        }
    }
    let max = maxima.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0; LANES];
    for scores in scores {
        for (score, sum) in scores.iter_mut().zip(&mut sums) {
            *score = exp(*score - max);
            *sum += *score;
        }
    }
    let together = if state.max < max { max } else { state.max };
    step.before = exp(state.max - together);
    step.now = exp(max - together);
    state.sum = state.sum * step.before + sum_lanes(sums) * step.now;
    state.max = together;
}

/// scores[i][slot] = scale * query . key, the product summed over dimensions in order.
#[inline(always)]
fn score<V: Vector, K: Kept>(
    v: V,
    run: &Run<'_, '_>,
    queries: &[Query<'_>],
    pass: usize,
    steps: &[Step],
    scores: &mut [Scores],
) {
    // As many sums at once as the registers hold, since each waits for itself.
    match (steps.len(), V::SUMS_MAX < 12) {
        (1, true) => score_turn::<V, K, 1, 4>(v, run, queries, pass, steps, scores),
        (1, false) => score_turn::<V, K, 1, 8>(v, run, queries, pass, steps, scores),
        (2, true) => score_turn::<V, K, 2, 2>(v, run, queries, pass, steps, scores),
        (2, false) => score_turn::<V, K, 2, 4>(v, run, queries, pass, steps, scores),
        (3, true) => score_turn::<V, K, 3, 2>(v, run, queries, pass, steps, scores),
        (3, false) => score_turn::<V, K, 3, 4>(v, run, queries, pass, steps, scores),
        (4, true) => score_turn::<V, K, 4, 1>(v, run, queries, pass, steps, scores),
        (4, false) => score_turn::<V, K, 4, 2>(v, run, queries, pass, steps, scores),
        (5, true) => score_turn::<V, K, 5, 1>(v, run, queries, pass, steps, scores),
        (5, false) => score_turn::<V, K, 5, 2>(v, run, queries, pass, steps, scores),
        (_, true) => score_turn::<V, K, TURN, 1>(v, run, queries, pass, steps, scores),
        (_, false) => score_turn::<V, K, TURN, 2>(v, run, queries, pass, steps, scores),
    }
}

/// `COUNT` queries with `PAGES` pages at a time.
#[inline(always)]
fn score_turn<V: Vector, K: Kept, const COUNT: usize, const PAGES: usize>(
    v: V,
    run: &Run<'_, '_>,
    queries: &[Query<'_>],
    pass: usize,
    steps: &[Step],
    scores: &mut [Scores],
) {
    let mut page = steps.iter().map(|it| it.start).min().unwrap_or(0) / PAGE_TOKENS;
    let end = steps.iter().map(|it| it.end).max().unwrap_or(0).div_ceil(PAGE_TOKENS);
    while page < end {
        if PAGES <= end - page {
            score_pages::<V, K, COUNT, PAGES>(v, run, queries, pass, page, steps, scores);
            page += PAGES;
        } else {
            score_pages::<V, K, COUNT, 1>(v, run, queries, pass, page, steps, scores);
            page += 1;
        }
    }
}

#[inline(always)]
fn score_pages<V: Vector, K: Kept, const COUNT: usize, const PAGES: usize>(
    v: V,
    run: &Run<'_, '_>,
    queries: &[Query<'_>],
    pass: usize,
    page: usize,
    steps: &[Step],
    scores: &mut [Scores],
) {
    let dim = run.pages.layer(run.layer).head_dim;
    let table = &run.rows[0].pages[pass * PASS_PAGES + page..];
    let mut keys: [&[[K; LANES]]; PAGES] = [&[]; PAGES];
    for (keys, &page) in keys.iter_mut().zip(table) {
        *keys = &run.pages.keys(run.layer, page, run.kv_head)[..dim];
    }
    let mut values: [&[f32]; COUNT] = [&[]; COUNT];
    for (values, step) in values.iter_mut().zip(steps) {
        *values = &queries[step.query].values[..dim];
    }
    let mut dots = [[v.splat(0.0); PAGES]; COUNT];
    // The first turn asks for what comes next: the values of these pages, the keys of others.
    let first = steps[0].query == 0;
    let mut next = [(&keys[0][..0], &keys[0][..0]); PAGES];
    if first {
        let later = table.iter().skip(PAGES).chain(table);
        for ((next, page), later) in next.iter_mut().zip(table).zip(later) {
            let values = run.pages.values(run.layer, *page, run.kv_head);
            *next = (run.pages.keys(run.layer, *later, run.kv_head), values);
        }
    }
    for i in 0..dim {
        for (keys, values) in &next {
            if let (Some(keys), Some(values)) = (keys.get(i), values.get(i)) {
                v.prefetch(keys);
                v.prefetch(values);
            }
        }
        let mut lanes = [v.splat(0.0); PAGES];
        for (lanes, keys) in lanes.iter_mut().zip(&keys) {
            *lanes = K::load(v, &keys[i]);
        }
        for (dots, values) in dots.iter_mut().zip(&values) {
            let value = v.splat(values[i]);
            for (dot, lanes) in dots.iter_mut().zip(lanes) {
                *dot = v.fma(value, lanes, *dot);
            }
        }
    }
    let scale = v.splat(run.scale);
    for (dots, scores) in dots.into_iter().zip(scores) {
        for (dot, scores) in dots.into_iter().zip(&mut scores[page..]) {
            v.store(v.mul(dot, scale), scores);
        }
    }
}

/// out[i] = out[i] * before + now * sum over slots of weight * value, in order.
#[inline(always)]
fn add_values<V: Vector, K: Kept>(
    v: V,
    run: &mut Run<'_, '_>,
    queries: &[Query<'_>],
    pass: usize,
    steps: &[Step],
    weights: &[Scores],
) {
    match steps.len() {
        1 => add_turn::<V, K, 1>(v, run, queries, pass, steps, weights),
        2 => add_turn::<V, K, 2>(v, run, queries, pass, steps, weights),
        3 => add_turn::<V, K, 3>(v, run, queries, pass, steps, weights),
        4 => add_turn::<V, K, 4>(v, run, queries, pass, steps, weights),
        5 => add_turn::<V, K, 5>(v, run, queries, pass, steps, weights),
        _ => add_turn::<V, K, TURN>(v, run, queries, pass, steps, weights),
    }
}

#[inline(always)]
fn add_turn<V: Vector, K: Kept, const COUNT: usize>(
    v: V,
    run: &mut Run<'_, '_>,
    queries: &[Query<'_>],
    pass: usize,
    steps: &[Step],
    weights: &[Scores],
) {
    let (Some(steps), Some(weights)) = (steps.first_chunk(), weights.first_chunk()) else { return };
    let vectors = run.pages.layer(run.layer).head_dim.div_ceil(LANES);
    let mut vector = 0;
    while vector < vectors {
        if V::SUMS_MAX / COUNT < 4 || vectors - vector < 4 {
            add_vectors::<V, K, COUNT, 1>(v, run, queries, pass, vector, steps, weights);
            vector += 1;
        } else {
            add_vectors::<V, K, COUNT, 4>(v, run, queries, pass, vector, steps, weights);
            vector += 4;
        }
    }
}

/// The dimensions from 16 `vector` on, `16 * WIDTH` of them.
#[inline(always)]
fn add_vectors<V: Vector, K: Kept, const COUNT: usize, const WIDTH: usize>(
    v: V,
    run: &mut Run<'_, '_>,
    queries: &[Query<'_>],
    pass: usize,
    vector: usize,
    steps: &[Step; COUNT],
    weights: &[Scores; COUNT],
) {
    let mut sums = [[v.splat(0.0); WIDTH]; COUNT];
    let begin = steps.iter().map(|it| it.start).min().unwrap_or(0);
    let end = steps.iter().map(|it| it.end).max().unwrap_or(0);
    // All queries see the slots between; before and after, each sees its own.
    let all_begin = steps.iter().map(|it| it.start).max().unwrap_or(0);
    let all_end = steps.iter().map(|it| it.end).min().unwrap_or(0).max(all_begin);
    let (before, after) = (begin..all_begin.min(end), all_end.max(begin)..end);
    let seen = all_begin..all_end;
    let at = (pass, vector);
    add_slots::<V, K, COUNT, WIDTH, false>(v, run, at, before, steps, weights, &mut sums);
    add_slots::<V, K, COUNT, WIDTH, true>(v, run, at, seen, steps, weights, &mut sums);
    add_slots::<V, K, COUNT, WIDTH, false>(v, run, at, after, steps, weights, &mut sums);
    let dim = run.pages.layer(run.layer).head_dim;
    for (step, sums) in steps.iter().zip(sums) {
        let out = head_of(run, &queries[step.query], dim);
        let (before, now) = (v.splat(step.before), v.splat(step.now));
        for (sum, out) in sums.into_iter().zip(out.chunks_mut(LANES).skip(vector)) {
            let mut lanes = [0.0; LANES];
            lanes[..out.len()].copy_from_slice(out);
            let scaled = v.mul(v.load(&lanes), before);
            v.store(v.fma(sum, now, scaled), &mut lanes);
            out.copy_from_slice(&lanes[..out.len()]);
        }
    }
}

/// Adds weighted values of some slots of a pass, in order; those that a query does not see only
/// if `ALL` promises that there are none.
#[inline(always)]
fn add_slots<V: Vector, K: Kept, const COUNT: usize, const WIDTH: usize, const ALL: bool>(
    v: V,
    run: &Run<'_, '_>,
    (pass, vector): (usize, usize),
    slots: Range<usize>,
    steps: &[Step; COUNT],
    weights: &[Scores; COUNT],
    sums: &mut [[V::Lanes; WIDTH]; COUNT],
) {
    let vectors = run.pages.layer(run.layer).head_dim.div_ceil(LANES);
    for page in slots.start / PAGE_TOKENS..slots.end.div_ceil(PAGE_TOKENS) {
        let first = page * PAGE_TOKENS;
        let number = run.rows[0].pages[pass * PASS_PAGES + page];
        let values = run.pages.values::<K>(run.layer, number, run.kv_head);
        for slot in slots.start.max(first)..slots.end.min(first + PAGE_TOKENS) {
            let token = slot - first;
            let values = &values[token * vectors + vector..][..WIDTH];
            let mut lanes = [v.splat(0.0); WIDTH];
            for (lanes, value) in lanes.iter_mut().zip(values) {
                *lanes = K::load(v, value);
            }
            for ((sums, step), weights) in sums.iter_mut().zip(steps).zip(weights) {
                if ALL || (step.start <= slot && slot < step.end) {
                    let weight = v.splat(weights[page][token]);
                    for (sum, lanes) in sums.iter_mut().zip(lanes) {
                        *sum = v.fma(weight, lanes, *sum);
                    }
                }
            }
        }
    }
}
