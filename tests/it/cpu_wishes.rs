//! Whatever a request wishes for, the CPU backend gives the same in every mode, in any company:
//! penalties, filters, bias, grammars, stops, least lengths, log-probabilities, priorities.

use engine::backend::cpu::{CpuBackend, CpuOptions};
use engine::batch::plan::TokenLogprobs;
use engine::batch::sampling::Sampling;
use engine::draft::held::Held;
use engine::draft::ngram::Ngram;
use engine::draft::{DRAFTS_MAX, Drafter, Silent};
use kernels::cpu::Activations;
use tests::desk::{self, Order, Setting, Written};
use tests::hand::{self, Line, Share};
use tests::rails::Rails;
use tests::rng::Rng;
use tests::tiny::{self, Kind};

use crate::cpu_equality::{
    Draft, LANES, PAGES, ROWS_MAX, alone, backend, kinds, setting, settings, tight,
};
use crate::engine_day::wishes;

fn tokens(rng: &mut Rng, len: u32) -> Vec<u32> {
    let last = u32::try_from(tiny::VOCAB).unwrap() - 1;
    (0..len).map(|_| rng.within(0, last)).collect()
}

/// Wishes of all kinds; prompts of which many begin alike, and some come twice with another seed.
fn orders(seed: u64, count: u32) -> Vec<Order> {
    let mut rng = Rng::new(seed);
    let vocab = u32::try_from(tiny::VOCAB).unwrap();
    let shared = tokens(&mut rng, 48);
    let mut orders: Vec<Order> = Vec::new();
    for index in 0..count {
        let again = orders.last().filter(|_| index % 4 == 3);
        let mut prompt = again
            .map_or_else(|| shared[..index as usize * 5 % 41].to_vec(), |it| it.prompt.clone());
        if again.is_none() {
            let len = rng.within(1, 30);
            prompt.extend(tokens(&mut rng, len));
        }
        let mut sampling = wishes(&mut rng, vocab);
        if rng.chance(30) {
            sampling.logprobs = Some(3);
        }
        let guide = rng.chance(40).then(|| {
            let sticks_after = if rng.chance(10) { 7 } else { 999 };
            Rails::new(rng.draw(), vocab, rng.within(1, 60) as usize, sticks_after)
        });
        orders.push(Order {
            sampling,
            arrives: rng.within(0, 20),
            priority: rng.within(0, 2).cast_signed() - 1,
            drafts_max: if rng.chance(20) { rng.within(0, 2) } else { DRAFTS_MAX },
            guide,
            ..Order::new(prompt, rng.within(1, 60))
        });
    }
    orders
}

/// Texts, ends and log-probabilities to the bit.
#[track_caller]
fn assert_same(expected: &[Written], found: &[Written], how: &str) {
    for (index, (expected, found)) in expected.iter().zip(found).enumerate() {
        assert_eq!(expected.tokens, found.tokens, "order {index}, {how}");
        assert_eq!(expected.finish, found.finish, "order {index}, {how}");
        assert_eq!(expected.logprobs, found.logprobs, "order {index}, {how}");
    }
}

#[test]
fn every_wish_gives_the_same_in_every_mode() {
    let (mut kept, mut preempted, mut cached) = (0, 0, 0);
    let drafters: [(&str, Draft); 3] = [
        ("silent", || Box::new(Silent)),
        ("held", || Box::new(Held)),
        ("ngram", || Box::new(Ngram { context: 2 })),
    ];
    for (seed, kind) in (21..).zip(kinds()) {
        let plain = backend(seed, kind, Activations::Int8, false);
        let drafting = backend(seed, kind, Activations::Int8, true);
        let orders = orders(seed, 20);
        let expected = alone(&plain, &orders);
        for (name, drafter) in drafters {
            for setting in settings() {
                let (found, load) = desk::write_counted(&drafting, &setting, drafter(), &orders);
                assert_same(&expected, &found, &format!("{kind:?}, {name}, {setting:?}"));
                kept += found.iter().flat_map(|it| &it.kept).sum::<u32>();
                cached += found.iter().map(|it| it.cached).sum::<u32>();
                preempted += load.counts.preemptions;
            }
        }
    }
    let enough = 1000 < kept && 10 < preempted && 1000 < cached;
    assert!(enough, "{kept} kept, {preempted} preempted, {cached} cached: too few to show much");
}

/// Twenty texts that must match, in a pool for two of them: guides survive being preempted.
#[test]
fn grammars_survive_a_pool_that_is_too_small() {
    let kind = Kind::default();
    let plain = backend(31, kind, Activations::Int8, false);
    let drafting = backend(31, kind, Activations::Int8, true);
    let mut rng = Rng::new(31);
    let vocab = u32::try_from(tiny::VOCAB).unwrap();
    let order = |_| {
        let len = rng.within(1, 30);
        let prompt = tokens(&mut rng, len);
        let sampling = Sampling { seed: rng.draw(), temperature: 0.9, ..Sampling::greedy() };
        let guide = Some(Rails::new(rng.draw(), vocab, 40, 999));
        Order { sampling, guide, ..Order::new(prompt, 60) }
    };
    let orders: Vec<Order> = (0..20).map(order).collect();
    let expected = alone(&plain, &orders);
    for ahead_max in [0, 1] {
        let setting = Setting { pages: 7, ahead_max, ..tight(3) };
        let (found, load) = desk::write_counted(&drafting, &setting, Box::new(Held), &orders);
        assert_same(&expected, &found, &format!("{ahead_max} ahead"));
        assert!(5 < load.counts.preemptions, "{load:?}");
    }
}

/// The same request has the same rounds every time: speed repeats as texts do.
#[test]
fn a_request_keeps_the_same_drafts_every_time() {
    let backend = backend(32, Kind::default(), Activations::Int8, true);
    let prompt = tokens(&mut Rng::new(32), 15);
    let order = Order::new(prompt, 80);
    let write = || desk::write(&backend, &setting(3), Box::new(Held), std::slice::from_ref(&order));
    let first = write();
    assert!(10 < first[0].kept.iter().sum::<u32>());
    for _ in 0..19 {
        assert_eq!(first, write());
    }
}

/// After any time without drafts the next round keeps what it would have kept anyway.
#[test]
fn drafts_are_as_good_at_once_after_a_time_without() {
    let prompt = tokens(&mut Rng::new(33), 21);
    let rounds = |backend: &desk::Lent, line: &mut Line, held: u32, until: u32| {
        let mut got = Vec::new();
        while line.computed < until {
            let share = [Share { fed_max: u32::MAX, held }];
            let lines = std::slice::from_mut(line);
            got.push(backend.with(|it| hand::step(it, lines, &share))[0].tokens.len());
        }
        got
    };
    let line = || Line::new(0, 12, &prompt, Sampling::greedy());
    let always = backend(33, Kind::default(), Activations::Int8, true);
    let mut drafted = line();
    rounds(&always, &mut drafted, 3, 80);
    let start = drafted.computed;
    let expected = rounds(&always, &mut drafted, 3, 180);

    let paused = backend(33, Kind::default(), Activations::Int8, true);
    let mut resumed = line();
    rounds(&paused, &mut resumed, 3, 40);
    rounds(&paused, &mut resumed, 0, start);
    assert_eq!(resumed.computed, start, "without drafts every length comes by");
    assert_eq!(expected, rounds(&paused, &mut resumed, 3, 180));
    assert_eq!(drafted.tokens, resumed.tokens);
    assert!(expected.len() < 90, "some drafts are kept");
}

/// How likely a prompt's tokens are is what the model says of each after those before it,
/// however the prompt is cut, whoever drafts, and whoever gave its pages up meanwhile. The text is
/// the same.
#[test]
fn prompts_are_scored_as_if_written() {
    let kind = Kind::default();
    let backend = backend(36, kind, Activations::Int8, true);
    let vocab = u32::try_from(tiny::VOCAB).unwrap();
    let mut rng = Rng::new(36);
    let prompts: Vec<Vec<u32>> = [1, 2, 16, 17, 40, 70].map(|len| tokens(&mut rng, len)).into();
    let order = |prompt: &Vec<u32>, prompt_logprobs| {
        let logprobs = Some(2);
        let sampling = Sampling { logprobs, prompt_logprobs, ..Sampling::greedy() };
        let sampling = Sampling { temperature: 0.8, frequency_penalty: 0.3, ..sampling };
        Order { sampling, ..Order::new(prompt.clone(), 40) }
    };
    let plain: Vec<Order> = prompts.iter().map(|it| order(it, None)).collect();
    let texts = alone(&backend, &plain);
    let said = |prompt: &[u32], at: usize| {
        let sampling = Sampling { logprobs: Some(vocab), ..Sampling::greedy() };
        let order = Order { sampling, ..Order::new(prompt[..at].to_vec(), 1) };
        let found = alone(&backend, &[order]).remove(0).logprobs.remove(0).top;
        let chosen = found.iter().find(|it| it.0.0 == prompt[at]).unwrap().1;
        TokenLogprobs { chosen, top: found[..2].to_vec() }
    };
    let expected: Vec<Vec<TokenLogprobs>> = prompts
        .iter()
        .map(|prompt| (1..prompt.len()).map(|at| said(prompt, at)).collect())
        .collect();
    // Every prompt comes twice: pages that the first one filled are there and must not be taken.
    let orders: Vec<Order> = prompts.iter().map(|it| order(it, Some(2))).collect();
    let orders = [orders.clone(), orders].concat();
    let mut preempted = 0;
    for setting in settings() {
        let (found, load) = desk::write_counted(&backend, &setting, Box::new(Held), &orders);
        for (at, found) in found.iter().enumerate() {
            let (expected, text) = (&expected[at % prompts.len()], &texts[at % prompts.len()]);
            assert_eq!(&found.prompt, expected, "prompt {at}, {setting:?}");
            assert_eq!((&found.tokens, &found.logprobs), (&text.tokens, &text.logprobs));
        }
        preempted += load.counts.preemptions;
    }
    assert!(0 < preempted, "none was read twice");
}

/// The rotary base of the head is the head's own: it turns the draft layer's keys and queries, so
/// it changes drafts, and nothing else.
#[test]
fn the_heads_rotary_base_changes_drafts_only() {
    let model = tiny::model(34, Kind::default());
    let prompt = tokens(&mut Rng::new(34), 60);
    let with_theta = |theta| {
        let mut head = tiny::head(34, Kind::default());
        head.config.rope.theta = theta;
        // Without the target's hidden states, which outweigh all else in a random head, a guess
        // follows from what the draft layer attends to.
        head.tensors.get_mut("fc.weight").unwrap().bytes.fill(0);
        let options = CpuOptions {
            cores: vec![0],
            activations: Activations::Int8,
            pages: PAGES,
            rows_max: ROWS_MAX,
            lanes: LANES,
            held_max: 8,
        };
        let backend = CpuBackend::new(&model, Some(&head), &options).unwrap().every_draft();
        let backend = desk::Lent::new(backend);
        let sampling = Sampling { seed: 34, temperature: 0.8, ..Sampling::greedy() };
        let order = Order { sampling, ..Order::new(prompt.clone(), 300) };
        let written = desk::write(&backend, &setting(5), Box::new(Held), &[order]).remove(0);
        let mut line = [Line::new(0, 8, &prompt, Sampling::greedy())];
        let share = [Share { fed_max: u32::MAX, held: 0 }];
        backend.with(|it| hand::step(it, &mut line, &share));
        let page = line[0].pages[2];
        (written, backend.with(|it| it.keys_and_values(page, 9)))
    };
    let ((one, mut layers), (other, mut others)) = (with_theta(1e3), with_theta(10.0));
    assert_eq!(one.tokens, other.tokens);
    assert_ne!(one.kept, other.kept);
    let (draft, other_draft) = (layers.pop().unwrap(), others.pop().unwrap());
    assert_eq!(layers, others, "the target's layers");
    assert_ne!(draft.0, other_draft.0, "keys of the draft layer");
    assert_eq!(draft.1, other_draft.1, "values of the draft layer");
}

/// A prompt of many chunks, nearly all that the pool holds.
#[test]
fn a_long_prompt_is_read_in_small_chunks() {
    let backend = backend(35, Kind::default(), Activations::Int8, true);
    let order = Order::new(tokens(&mut Rng::new(35), PAGES * 16 - 40), 30);
    let run = |setting: Setting, drafter: Box<dyn Drafter>| {
        desk::write(&backend, &setting, drafter, std::slice::from_ref(&order)).remove(0)
    };
    let whole = run(setting(3), Box::new(Held));
    assert_eq!(whole.tokens.len(), 30);
    assert_eq!(whole, run(Setting { rows_max: 17, ..setting(3) }, Box::new(Held)));
    assert_eq!(whole.tokens, run(setting(0), Box::new(Silent)).tokens);
}
