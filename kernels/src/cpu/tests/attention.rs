//! Attention: a row sees its own slots and nothing else.

use proptest::prelude::*;

use super::*;

const LAYERS: [KvLayer; 2] =
    [KvLayer { kv_heads: 2, head_dim: 24 }, KvLayer { kv_heads: 1, head_dim: 64 }];
const HEADS: [usize; 2] = [6, 3];
const PAGES: usize = 40;

/// A sequence in a layer: its keys and values, (slots, kv heads, head dim).
#[derive(Clone)]
struct Sequence {
    layer: usize,
    table: Vec<u32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Sequence {
    /// Of numbers that half precision holds too.
    fn new(layer: usize, table: &[u32], slots: usize, chance: &mut Chance) -> Self {
        let len = slots * LAYERS[layer].kv_heads * LAYERS[layer].head_dim;
        let mut numbers = || {
            let numbers = chance.numbers(len).into_iter();
            numbers.map(|it| half::f16::from_f32(it).to_f32()).collect()
        };
        Self { layer, table: table.to_vec(), keys: numbers(), values: numbers() }
    }

    fn store(&self, pages: &mut KvPages) {
        let width = LAYERS[self.layer].kv_heads * LAYERS[self.layer].head_dim;
        let pairs = self.keys.chunks_exact(width).zip(self.values.chunks_exact(width));
        for (slot, (keys, values)) in pairs.enumerate() {
            pages.write(self.layer, self.table[slot / 16], slot % 16, keys, values);
        }
    }

    fn row<'a>(&'a self, query: &'a [f32], first: usize, last: usize) -> AttentionRow<'a> {
        AttentionRow { query, pages: &self.table, first, last }
    }

    /// One number of the answer, in `f64`.
    fn exact(&self, query: &[f32], head: usize, i: usize, first: usize, last: usize) -> f64 {
        let KvLayer { kv_heads, head_dim } = LAYERS[self.layer];
        let kv_head = head / (HEADS[self.layer] / kv_heads);
        let at = |slot: usize, i: usize| (slot * kv_heads + kv_head) * head_dim + i;
        let dot = |slot: usize| {
            let terms = (0..head_dim)
                .map(|i| f64::from(query[head * head_dim + i]) * f64::from(self.keys[at(slot, i)]));
            0.3 * terms.sum::<f64>()
        };
        let max = (first..=last).map(dot).fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = (first..=last).map(|slot| (dot(slot) - max).exp()).collect();
        let values = (first..=last).map(|slot| f64::from(self.values[at(slot, i)]));
        let sum: f64 = values.zip(&weights).map(|(value, weight)| value * weight).sum();
        sum / weights.iter().sum::<f64>()
    }
}

/// Pages full of what must never be read into an answer.
fn poisoned(numbers: KvNumbers) -> KvPages {
    let mut pages = KvPages::new(PAGES, &LAYERS, numbers);
    for (layer, sizes) in LAYERS.iter().enumerate() {
        let bad = vec![f32::NAN; sizes.kv_heads * sizes.head_dim];
        for page in 0..PAGES {
            for slot in 0..PAGE_TOKENS {
                pages.write(layer, u32::try_from(page).unwrap(), slot, &bad, &bad);
            }
        }
    }
    pages
}

fn answer(team: &Team, pages: &KvPages, layer: usize, rows: &[AttentionRow<'_>]) -> Vec<f32> {
    let mut out = vec![f32::NAN; rows.len() * HEADS[layer] * LAYERS[layer].head_dim];
    attention(team, pages, layer, 0.3, rows, &mut out);
    out
}

fn check(layer: usize, slots: usize, first: usize, others: usize, seed: u64) {
    let mut chance = Chance(seed);
    let mut order: Vec<u32> = (0..40).collect();
    for i in 0..order.len() {
        let j = chance.below(order.len());
        order.swap(i, j);
    }
    let sequence = Sequence::new(layer, &order[..20], slots, &mut chance);
    let other = Sequence::new(layer, &order[20..], slots, &mut chance);
    let mut pages = poisoned(KvNumbers::F32);
    sequence.store(&mut pages);
    other.store(&mut pages);
    let columns = HEADS[layer] * LAYERS[layer].head_dim;
    let query = chance.numbers(columns);
    let (last, teams) = (slots - 1, teams());
    let expected = answer(&teams[0], &pages, layer, &[sequence.row(&query, first, last)]);
    for (at, out) in expected.iter().enumerate() {
        let (head, i) = (at / LAYERS[layer].head_dim, at % LAYERS[layer].head_dim);
        let exact = sequence.exact(&query, head, i, first, last);
        assert!((f64::from(*out) - exact).abs() < 1e-5, "{out} for {exact}");
    }
    // The same row among rows of both sequences; and with its pages elsewhere, in half precision.
    let queries = chance.numbers((others + 1) * columns);
    let mut rows: Vec<_> = (0..others)
        .map(|i| {
            let owner = if i % 3 == 2 { &other } else { &sequence };
            owner.row(&queries[i * columns..][..columns], first.min(i), last.min(first + i))
        })
        .collect();
    rows.push(sequence.row(&query, first, last));
    let mut moved = poisoned(KvNumbers::F16);
    let elsewhere = Sequence { table: order[20..].to_vec(), ..sequence.clone() };
    elsewhere.store(&mut moved);
    for team in &teams {
        let what = format!("{slots} slots from {first} {team:?}");
        let all = answer(team, &pages, layer, &rows);
        same_bits(&all[others * columns..], &expected, &what);
        let alone = answer(team, &moved, layer, &[elsewhere.row(&query, first, last)]);
        same_bits(&alone, &expected, &what);
    }
}

#[test]
fn short_and_long_sequences() {
    for (slots, first) in [(1, 0), (2, 1), (16, 0), (17, 3), (129, 0), (300, 128), (300, 5)] {
        for layer in [0, 1] {
            check(layer, slots, first, 9, 21);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_row(
        layer in 0_usize..2,
        slots in 1_usize..320,
        first in 0_usize..320,
        others in 0_usize..20,
        seed in 1_u64..,
    ) {
        check(layer, slots, first % slots, others, seed);
    }
}

#[test]
fn large_scores_do_not_overflow() {
    let team = Team::new(&[0]).unwrap();
    let mut pages = KvPages::new(10, &LAYERS, KvNumbers::F32);
    for slot in 0..160_u32 {
        let value = vec![slot as f32; 64];
        pages.write(1, slot / 16, slot as usize % 16, &[slot as f32 * 10.0; 64], &value);
    }
    let query = vec![1.0; 3 * 64];
    let table: Vec<u32> = (0..10).collect();
    let row = AttentionRow { query: &query, pages: &table, first: 0, last: 159 };
    let out = answer(&team, &pages, 1, &[row]);
    assert!(out.iter().all(|it| *it == 159.0), "all weight is on the last slot");
}
