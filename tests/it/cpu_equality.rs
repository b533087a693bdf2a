//! The same texts from the CPU backend whatever else is in a step: drafts, company, chunks, tight
//! pools, pages found, a plan in flight. On a tiny random model of each kind.

use engine::backend::cpu::{CpuBackend, CpuOptions};
use engine::batch::sampling::Sampling;
use engine::draft::depth::Depth;
use engine::draft::held::Held;
use engine::draft::ngram::Ngram;
use engine::draft::{Drafter, Silent};
use kernels::cpu::Activations;
use tests::desk::{self, Lent, Order, Setting, Written};
use tests::hand::{self, Line, Share};
use tests::rng::Rng;
use tests::tiny::{self, Kind};

pub(crate) type Draft = fn() -> Box<dyn Drafter>;

pub(crate) const PAGES: u32 = 64;
pub(crate) const ROWS_MAX: u32 = 96;
pub(crate) const LANES: u32 = 8;

pub(crate) fn backend(seed: u64, kind: Kind, activations: Activations, with_head: bool) -> Lent {
    let model = tiny::model(seed, kind);
    let head = with_head.then(|| tiny::head(seed, kind));
    let options = CpuOptions {
        cores: vec![0],
        activations,
        pages: PAGES,
        rows_max: ROWS_MAX,
        lanes: LANES,
        held_max: 8,
    };
    // Random heads are sure of nothing.
    Lent::new(CpuBackend::new(&model, head.as_ref(), &options).unwrap().every_draft())
}

pub(crate) fn kinds() -> [Kind; 3] {
    let plain = Kind::default();
    [
        plain,
        Kind { untied: true, qkv_bias: true, norm_before_residual: true, ..plain },
        Kind { qk_norm: true, rope_factors: true, borrowed_head: true, ..plain },
    ]
}

pub(crate) fn setting(depth: u32) -> Setting {
    Setting {
        pages: PAGES,
        rows_max: ROWS_MAX,
        lanes: LANES,
        ahead_max: 0,
        prompt_rows_max: 64,
        depth: Depth::always(depth),
    }
}

/// Hardly room for the longest order, and few rows.
pub(crate) fn tight(depth: u32) -> Setting {
    Setting { pages: 12, rows_max: 17, lanes: 5, prompt_rows_max: 5, ..setting(depth) }
}

/// Orders of all lengths, some of which begin alike.
fn orders(seed: u64, count: u32) -> Vec<Order> {
    let mut rng = Rng::new(seed);
    let vocab = u32::try_from(tiny::VOCAB).unwrap();
    let mut tokens = |len| (0..len).map(|_| rng.within(0, vocab - 1)).collect::<Vec<_>>();
    let shared = tokens(40);
    let mut order = |index: u32| {
        let mut prompt = shared[..if index.is_multiple_of(2) { 36 } else { 0 }].to_vec();
        prompt.extend(tokens(1 + index * 7 % 50));
        prompt
    };
    let prompts: Vec<_> = (0..count).map(&mut order).collect();
    let sampling = |index: u32| Sampling {
        seed: u64::from(index),
        temperature: if index.is_multiple_of(3) { 0.0 } else { 0.8 },
        ..Sampling::greedy()
    };
    let order = |(index, prompt)| Order {
        sampling: sampling(index),
        arrives: index * 3 % 17,
        ..Order::new(prompt, 1 + index * 11 % 60)
    };
    (0..).zip(prompts).map(order).collect()
}

/// Each order on its own, nothing cached, no drafts.
pub(crate) fn alone(backend: &Lent, orders: &[Order]) -> Vec<Written> {
    let one = |order: &Order| {
        let order = Order { arrives: 0, ..order.clone() };
        desk::write(backend, &setting(0), Box::new(Silent), &[order]).remove(0)
    };
    orders.iter().map(one).collect()
}

#[track_caller]
fn assert_same_texts(expected: &[Written], found: &[Written], how: &str) {
    for (index, (expected, found)) in expected.iter().zip(found).enumerate() {
        assert_eq!(expected.tokens, found.tokens, "order {index}, {how}");
    }
}

#[test]
fn texts_depend_on_their_requests_alone() {
    let mut kept = 0;
    let activations = [Activations::Int8, Activations::F32, Activations::Int8];
    for (seed, (kind, activations)) in (1..).zip(kinds().into_iter().zip(activations)) {
        let plain = backend(seed, kind, activations, false);
        let drafting = backend(seed, kind, activations, true);
        let orders = orders(seed, 10);
        let expected = alone(&plain, &orders);
        let drafters: [(&str, Draft); 3] = [
            ("silent", || Box::new(Silent)),
            ("held", || Box::new(Held)),
            ("ngram", || Box::new(Ngram { context: 2 })),
        ];
        for (name, drafter) in drafters {
            for setting in settings() {
                let found = desk::write(&drafting, &setting, drafter(), &orders);
                let how = format!("{kind:?}, {activations:?}, {name}, {setting:?}");
                assert_same_texts(&expected, &found, &how);
                kept += found.iter().flat_map(|it| &it.kept).sum::<u32>();
            }
        }
    }
    assert!(1000 < kept, "{kept} drafts kept: too few to show anything");
}

/// Every depth, tight and wide pools, small and large chunks, with and without a plan in flight.
pub(crate) fn settings() -> Vec<Setting> {
    let ahead = |it: Setting| Setting { ahead_max: 1, ..it };
    vec![
        setting(0),
        ahead(tight(0)),
        ahead(setting(1)),
        tight(2),
        ahead(tight(3)),
        setting(5),
        ahead(tight(7)),
    ]
}

/// Prompts whose ends fall on, before and after the ends of chunks and pages, each alone.
#[test]
fn kept_drafts_do_not_depend_on_chunks() {
    const CHUNK: usize = 16;
    let kind = Kind::default();
    let backend = backend(7, kind, Activations::Int8, true);
    let mut rng = Rng::new(7);
    let mut total = 0;
    for len in [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 1] {
        let prompt: Vec<u32> = (0..len).map(|_| rng.within(0, 4)).collect();
        let order = Order::new(prompt, 60);
        let run = |rows_max| {
            let setting = Setting { rows_max, ..setting(3) };
            desk::write(&backend, &setting, Box::new(Held), std::slice::from_ref(&order)).remove(0)
        };
        let whole = run(ROWS_MAX);
        for rows_max in [4, 5, 15, 16, 17] {
            assert_eq!(whole, run(rows_max), "prompt of {len} in chunks of {rows_max}");
        }
        total += whole.kept.iter().sum::<u32>();
    }
    assert!(50 < total, "{total} drafts kept: too few to show anything");
}

/// The second time a prompt comes, its full pages are found, and nothing else changes.
#[test]
fn kept_drafts_do_not_depend_on_found_pages() {
    let backend = backend(8, Kind::default(), Activations::Int8, true);
    let mut rng = Rng::new(8);
    let mut total = 0;
    for len in [16, 17, 31, 32, 33, 50] {
        let prompt: Vec<u32> = (0..len).map(|_| rng.within(0, 4)).collect();
        let order = |arrives| Order { arrives, ..Order::new(prompt.clone(), 200) };
        let orders = [order(0), order(500)];
        let [first, second]: [Written; 2] =
            desk::write(&backend, &setting(3), Box::new(Held), &orders).try_into().unwrap();
        assert_eq!(first.cached, 0);
        assert_eq!(second.cached, (len - 1) / 16 * 16, "prompt of {len}");
        assert_eq!((&first.tokens, &first.kept), (&second.tokens, &second.kept));
        total += first.kept.iter().sum::<u32>();
    }
    assert!(50 < total, "{total} drafts kept: too few to show anything");
}

/// What nobody wrote is never read: fresh memory and memory full of NaN give the same.
#[test]
fn what_nobody_wrote_is_never_read() {
    let orders = orders(9, 8);
    let tight = tight(3);
    let fresh = backend(9, Kind::default(), Activations::Int8, true);
    let expected = desk::write(&fresh, &tight, Box::new(Held), &orders);
    let poisoned = backend(9, Kind::default(), Activations::Int8, true);
    poisoned.with(CpuBackend::poison);
    assert_eq!(expected, desk::write(&poisoned, &tight, Box::new(Held), &orders));
}

/// After rounds that kept some drafts and refused others, each layer holds what it would if the
/// text had been read at once: no trace of guesses is left, in the draft layer neither.
#[test]
fn pages_hold_the_text_and_no_trace_of_guesses() {
    let mut rng = Rng::new(10);
    let prompt: Vec<u32> = (0..21).map(|_| rng.within(0, 4)).collect();
    let sampling = Sampling { temperature: 0.8, ..Sampling::greedy() };
    let line = |tokens: &[u32]| Line::new(0, 8, tokens, sampling.clone());
    for kind in kinds() {
        let drafting = backend(10, kind, Activations::Int8, true);
        let mut lines = [line(&prompt)];
        let share = |held| [Share { fed_max: u32::MAX, held }];
        drafting.with(|it| hand::step(it, &mut lines, &share(0)));
        let rounds = [3, 7, 0, 5, 3, 1, 7, 2, 4, 6];
        for held in rounds {
            drafting.with(|it| hand::step(it, &mut lines, &share(held)));
        }
        let Line { tokens, computed, pages, .. } = &lines[0];
        let text: Vec<u32> = tokens[..*computed as usize].iter().map(|it| it.0).collect();
        assert!(prompt.len() + rounds.len() < text.len(), "some drafts were kept");

        let rebuilt = backend(10, kind, Activations::Int8, true);
        rebuilt.with(|it| hand::step(it, &mut [line(&text)], &share(0)));
        for at in 0..text.len() {
            let (page, slot) = (pages[at / 16], at % 16);
            let found = drafting.with(|it| it.keys_and_values(page, slot));
            let expected = rebuilt.with(|it| it.keys_and_values(page, slot));
            assert_eq!(expected.len(), 5);
            assert_eq!(expected, found, "{kind:?}, slot {at}");
        }
    }
}
