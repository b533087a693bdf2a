use kernels::noise::{NOISE_MAX, NOISE_MIN, Noise, at_most, exp, gumbel, ln};
use proptest::prelude::*;

use super::*;

fn seeded(seed: u64) -> Sampling {
    Sampling { seed, temperature: 1.0, ..Sampling::greedy() }
}

fn at(position: u32) -> Past<std::iter::Empty<TokenId>> {
    Past { tokens: std::iter::empty(), position, outputs_start: 0 }
}

fn chosen(logits: &[f32], sampling: &Sampling, position: u32) -> u32 {
    choose(&mut logits.to_vec(), sampling, at(position), None).0.0
}

/// How often each token is chosen in 40,000 positions.
fn shares(logits: &[f32], sampling: &Sampling) -> Vec<f64> {
    let draws = 40_000;
    let mut counts = vec![0; logits.len()];
    for position in 0..draws {
        counts[chosen(logits, sampling, position) as usize] += 1;
    }
    counts.into_iter().map(|it| f64::from(it) / f64::from(draws)).collect()
}

/// Five standard deviations of a share of 40,000 draws.
fn check_shares(logits: &[f32], sampling: &Sampling, expected: &[f64]) {
    for (token, (found, expected)) in shares(logits, sampling).iter().zip(expected).enumerate() {
        let spread = 5.0 * (expected * (1.0 - expected) / 40_000.0).sqrt();
        assert!((found - expected).abs() <= spread, "token {token}: {found}, not {expected}");
    }
}

const LOGITS: [f32; 6] = [1.0, 2.5, -1.0, 2.0, 0.0, f32::NEG_INFINITY];

fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let powers: Vec<f64> = logits.iter().map(|it| (f64::from(*it) / temperature).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|it| it / sum).collect()
}

#[test]
fn draws_follow_the_softmax() {
    for (seed, temperature) in [(1, 1.0), (2, 0.5), (3, 2.0)] {
        let sampling = Sampling { temperature, ..seeded(seed) };
        check_shares(&LOGITS, &sampling, &softmax(&LOGITS, f64::from(temperature)));
    }
}

/// Keeps the tokens named in `kept` and gives them their share of the softmax.
fn check_filter(sampling: &Sampling, kept: &[usize]) {
    let only: Vec<f32> = (0..LOGITS.len())
        .map(|it| if kept.contains(&it) { LOGITS[it] } else { f32::NEG_INFINITY })
        .collect();
    check_shares(&LOGITS, sampling, &softmax(&only, f64::from(sampling.temperature)));
}

#[test]
fn filters_keep_the_likeliest() {
    // Probabilities: token 1 .50, token 3 .30, token 0 .11, token 4 .041, token 2 .015.
    check_filter(&Sampling { top_k: 1, ..seeded(4) }, &[1]);
    check_filter(&Sampling { top_k: 3, ..seeded(5) }, &[1, 3, 0]);
    check_filter(&Sampling { top_k: 100, ..seeded(6) }, &[1, 3, 0, 4, 2]);
    check_filter(&Sampling { top_p: 0.5, ..seeded(7) }, &[1]);
    check_filter(&Sampling { top_p: 0.6, ..seeded(8) }, &[1, 3]);
    check_filter(&Sampling { top_p: 0.9, ..seeded(9) }, &[1, 3, 0]);
    check_filter(&Sampling { top_p: 0.0, ..seeded(10) }, &[1]);
    check_filter(&Sampling { min_p: 0.2, ..seeded(11) }, &[1, 3, 0]);
    check_filter(&Sampling { min_p: 1.0, ..seeded(12) }, &[1]);
    // Among the two likeliest the first has .62, so the second is needed to reach .7.
    check_filter(&Sampling { top_k: 2, top_p: 0.6, ..seeded(13) }, &[1]);
    check_filter(&Sampling { top_k: 2, top_p: 0.7, ..seeded(14) }, &[1, 3]);
    check_filter(&Sampling { top_k: 4, min_p: 0.5, ..seeded(15) }, &[1, 3]);
}

#[test]
fn of_equals_the_lower_token_comes_first() {
    let flat = [1.0; 8];
    assert_eq!(chosen(&flat, &Sampling::greedy(), 0), 0);
    for position in 0..200 {
        assert!(chosen(&flat, &Sampling { top_k: 3, ..seeded(1) }, position) < 3);
        assert!(chosen(&flat, &Sampling { top_p: 0.5, ..seeded(1) }, position) < 4);
    }
}

#[test]
fn a_choice_is_a_function_of_seed_position_and_logits() {
    let choices = |seed| (0..64).map(|it| chosen(&LOGITS, &seeded(seed), it)).collect::<Vec<_>>();
    assert_eq!(choices(1), choices(1));
    assert_ne!(choices(1), choices(2));
    // Where the prompt ends plays no part: only the position does.
    let past = Past { tokens: std::iter::empty(), position: 9, outputs_start: 5 };
    let (token, _) = choose(&mut LOGITS.to_vec(), &seeded(1), past, None);
    assert_eq!(token.0, choices(1)[9]);
}

/// Worked out from the definition by a separate program. It must not change by accident: the texts
/// of all seeds would change with it.
#[test]
fn the_noise_is_pinned() {
    let bits: Vec<u32> = (0..4).map(|it| Noise::new(42, 7).bits(it)).collect();
    assert_eq!(bits, [3_647_660_147, 573_813_726, 1_264_051_328, 2_970_688_331]);
    let noise: Vec<u32> = bits.iter().map(|it| gumbel(*it).to_bits()).collect();
    assert_eq!(noise, [3_206_760_732, 1_073_255_671, 1_065_805_280, 3_190_194_894]);
}

/// Neighbouring tokens, positions and seeds fill the cells of an 8 by 8 table evenly.
#[test]
fn neighbours_are_independent() {
    let bits = |seed, position, token| Noise::new(seed, position).bits(token) >> 29;
    let pairs: [&dyn Fn(u32) -> (u32, u32); 3] = [
        &|it| (bits(1, it % 7, it), bits(1, it % 7, it + 1)),
        &|it| (bits(1, it, it % 5), bits(1, it + 1, it % 5)),
        &|it| (bits(it.into(), 3, it % 5), bits(u64::from(it) + 1, 3, it % 5)),
    ];
    for pair in pairs {
        let mut cells = [[0.0; 8]; 8];
        for it in 0..64_000 {
            let (left, right) = pair(it);
            cells[left as usize][right as usize] += 1.0;
        }
        let chi: f64 = cells.iter().flatten().map(|it: &f64| (it - 1000.0).powi(2) / 1000.0).sum();
        // 63 degrees of freedom: 63 on average, spread 11.
        assert!(chi < 120.0, "{chi}");
    }
}

fn penalised(sampling: &Sampling, tokens: &[u32], outputs_start: u32) -> Vec<f32> {
    let mut logits = vec![2.0, -2.0, 1.0, 0.5];
    let position = u32::try_from(tokens.len()).unwrap();
    let tokens = tokens.iter().map(|it| TokenId(*it));
    choose(&mut logits, sampling, Past { tokens, position, outputs_start }, None);
    logits
}

#[test]
fn penalties_see_the_right_tokens() {
    let base = Sampling::greedy();
    let repetition = Sampling { repetition_penalty: 2.0, ..base.clone() };
    assert_eq!(penalised(&repetition, &[0, 1, 1, 9], 3), [1.0, -4.0, 1.0, 0.5]);
    let presence = Sampling { presence_penalty: 0.5, ..base.clone() };
    assert_eq!(penalised(&presence, &[0, 1, 2, 2, 2], 2), [2.0, -2.0, 0.5, 0.5]);
    let frequency = Sampling { frequency_penalty: 0.5, ..base.clone() };
    assert_eq!(penalised(&frequency, &[0, 1, 2, 2, 0], 2), [1.5, -2.0, 0.0, 0.5]);
    let bias = Sampling { bias: vec![(TokenId(3), 4.0), (TokenId(99), 1.0)], ..base };
    assert_eq!(penalised(&bias, &[0], 1), [2.0, -2.0, 1.0, 4.5]);
}

/// The choice from `[3, 2, 1, 0]` after `outputs` tokens.
fn bounded(outputs_min: u32, stops: &[u32], outputs: u32, mask: Option<&[u32]>) -> u32 {
    let stop_tokens = stops.iter().map(|it| TokenId(*it)).collect();
    let sampling = Sampling { outputs_min, stop_tokens, ..Sampling::greedy() };
    let past = Past { tokens: std::iter::empty(), position: 10 + outputs, outputs_start: 10 };
    choose(&mut [3.0, 2.0, 1.0, 0.0], &sampling, past, mask).0.0
}

#[test]
fn masks_and_least_lengths() {
    assert_eq!(bounded(0, &[0], 0, None), 0);
    assert_eq!(bounded(2, &[0, 0, 77], 1, None), 1);
    assert_eq!(bounded(2, &[0], 2, None), 0);
    assert_eq!(bounded(0, &[], 0, Some(&[0b1100])), 2);
    assert_eq!(bounded(2, &[2], 0, Some(&[0b1100])), 3);
    // The mask wins where both leave nothing.
    assert_eq!(bounded(2, &[2], 0, Some(&[0b0100])), 2);
}

#[test]
fn logprobs_are_those_before_temperature_and_filters() {
    for temperature in [0.0, 0.3, 5.0] {
        let sampling = Sampling { temperature, top_k: 1, logprobs: Some(3), ..Sampling::greedy() };
        let (token, report) = choose(&mut LOGITS.to_vec(), &sampling, at(0), None);
        let report = report.expect("asked for");
        let expected = softmax(&LOGITS, 1.0);
        let tokens: Vec<u32> = report.top.iter().map(|it| it.0.0).collect();
        assert_eq!((token.0, tokens), (1, vec![1, 3, 0]));
        for (token, logprob) in &report.top {
            let expected = expected[token.0 as usize].ln();
            assert!((f64::from(*logprob) - expected).abs() < 1e-5);
        }
        assert_eq!(report.chosen.to_bits(), report.top[0].1.to_bits());
    }
    let none = Sampling { logprobs: Some(0), ..Sampling::greedy() };
    let (_, report) = choose(&mut LOGITS.to_vec(), &none, at(0), None);
    assert_eq!(report.expect("asked for").top, []);
}

#[test]
fn nonsense_logits_do_not_panic() {
    let nan = f32::NAN;
    let inf = f32::INFINITY;
    for logits in [[nan; 4], [-inf; 4], [inf; 4], [nan, inf, -inf, 0.0], [0.0, nan, 1.0, nan]] {
        for temperature in [0.0, 1e-30, 1.0, inf, nan] {
            for (top_k, top_p, min_p) in [(0, 1.0, 0.0), (2, 0.5, 0.5), (9, nan, nan)] {
                let base = seeded(1);
                let sampling =
                    Sampling { temperature, top_k, top_p, min_p, logprobs: Some(2), ..base };
                let (token, _) = choose(&mut logits.to_vec(), &sampling, at(3), None);
                assert!(token.0 < 4);
            }
        }
    }
    let (token, _) = choose(&mut [nan; 40], &Sampling::greedy(), at(0), Some(&[0, 4]));
    assert_eq!(token.0, 34);
    assert_eq!(chosen(&[0.0, nan, 1.0, nan], &seeded(1), 0) % 2, 0);
}

#[test]
fn ln_and_exp_are_close() {
    for step in 1..40_000_u16 {
        let x = f32::from(step) / 997.0;
        let error = (f64::from(ln(x)) - f64::from(x).ln()).abs();
        assert!(error <= 3e-7 * f64::from(x).ln().abs().max(0.3), "ln {x}");
        let relative = f64::from(exp(-x)) / (-f64::from(x)).exp() - 1.0;
        assert!(relative.abs() < 4e-7, "exp -{x}: {relative}");
    }
    assert_eq!(exp(0.0), 1.0);
    assert_eq!(exp(-100.0), 0.0);
    assert_eq!(exp(f32::NEG_INFINITY), 0.0);
}

/// The same choice by definition: every token scored, everything sorted.
fn plainly(logits: &[f32], sampling: &Sampling, position: u32) -> u32 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let distance = |logit: f32| (logit - max) / sampling.temperature;
    let mut order: Vec<u32> = (0..).take(logits.len()).collect();
    let logit = |token: u32| logits[token as usize];
    order.sort_by(|a, b| logit(*b).total_cmp(&logit(*a)).then(a.cmp(b)));
    if 0 < sampling.top_k {
        order.truncate(sampling.top_k as usize);
    }
    let masses: Vec<f64> = order.iter().map(|it| f64::from(exp(distance(logit(*it))))).collect();
    let limit = f64::from(sampling.top_p) * masses.iter().sum::<f64>();
    let kept = (0..masses.len()).take_while(|it| masses[..*it].iter().sum::<f64>() < limit);
    order.truncate(kept.count().max(1));
    let likeliest = order[0];
    order.retain(|it| *it == likeliest || ln(sampling.min_p) <= distance(logit(*it)));
    let noise = Noise::new(sampling.seed, position);
    let score = |token: &u32| distance(logit(*token)) + gumbel(noise.bits(*token));
    order.sort_unstable();
    order.into_iter().rev().max_by(|a, b| score(a).total_cmp(&score(b))).expect("one is kept")
}

proptest! {
    #[test]
    fn shortcuts_choose_what_the_definition_says(
        seed: u64,
        position in 0_u32..5000,
        logits in proptest::collection::vec(-12.0_f32..12.0, 1..300),
        temperature in 0.05_f32..3.0,
        top_k in 0_u32..40,
        top_p in 0.05_f32..1.2,
        min_p in 0.0001_f32..0.5,
    ) {
        let sampling =
            Sampling { temperature, top_k, top_p: top_p.min(1.0), min_p, ..seeded(seed) };
        let expected = plainly(&logits, &sampling, position);
        prop_assert_eq!(chosen(&logits, &sampling, position), expected);
    }

    #[test]
    fn the_bound_bounds(bits: u32) {
        prop_assert!(gumbel(bits) <= at_most(bits));
        prop_assert!(at_most(bits) <= NOISE_MAX);
        prop_assert!(NOISE_MIN <= gumbel(bits));
    }

    #[test]
    fn the_bound_bounds_where_noise_is_large(bits in 0_u32..100_000) {
        prop_assert!(gumbel(bits) <= at_most(bits));
        prop_assert!(at_most(bits) <= NOISE_MAX);
    }
}
