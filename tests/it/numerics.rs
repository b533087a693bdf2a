//! How far 8-bit activations are from floats, token by token of the golden texts.

use engine::backend::cpu::CpuBackend;
use engine::batch::ids::TokenId;
use engine::batch::plan::TokenLogprobs;
use engine::batch::sampling::Sampling;
use kernels::cpu::Activations;
use tests::golden::{Row, golden};
use tests::hand::{self, Line, Share};
use tests::pair;

const PAGES_EACH: u32 = 12;

/// Distance between the distributions of two backends that read the same text.
#[derive(Debug)]
struct Distance {
    /// Over how many tokens.
    tokens: usize,
    /// How often the likeliest token is the same.
    agreement: f64,
    /// Mean Kullback-Leibler divergence from floats to 8 bits, in nats.
    divergence: f64,
}

fn lines(rows: &[Row], top: u32) -> Vec<Line> {
    let sampling = Sampling { logprobs: Some(top), ..Sampling::greedy() };
    let lanes = (0..).zip(rows);
    lanes.map(|(lane, row)| Line::new(lane, PAGES_EACH, &row.prompt, sampling.clone())).collect()
}

fn distance(rows: &[Row], len_max: usize) -> Distance {
    let count = u32::try_from(rows.len()).unwrap();
    let vocab = u32::try_from(pair::pair().model.config.vocab).unwrap();
    let new = |activations| pair::backend(activations, false, count * PAGES_EACH, count);
    let mut backends = [new(Activations::F32), new(Activations::Int8)];
    let mut lines = [lines(rows, vocab), lines(rows, vocab)];
    let (mut tokens, mut same, mut divergence) = (0, 0, 0.0);
    for at in 0..len_max {
        let fed_max = |row: &Row| if at < row.output.len() { u32::MAX } else { 0 };
        let shares: Vec<Share> =
            rows.iter().map(|row| Share { fed_max: fed_max(row), held: 0 }).collect();
        let [floats, bits]: [Vec<_>; 2] = [0, 1].map(|it| {
            let backend: &mut CpuBackend = &mut backends[it];
            hand::step(backend, &mut lines[it], &shares)
        });
        for (floats, bits) in floats.iter().zip(&bits).filter(|(it, _)| !it.tokens.is_empty()) {
            tokens += 1;
            same += usize::from(floats.tokens == bits.tokens);
            divergence += divergence_of(&floats.logprobs[0], &bits.logprobs[0]);
        }
        // Both go on with the reference's token, whatever they chose.
        for lines in &mut lines {
            for (line, row) in lines.iter_mut().zip(rows).filter(|(_, row)| at < row.output.len()) {
                *line.tokens.last_mut().unwrap() = TokenId(row.output[at]);
            }
        }
    }
    let count = tokens as f64;
    Distance { tokens, agreement: same as f64 / count, divergence: divergence / count }
}

fn divergence_of(floats: &TokenLogprobs, bits: &TokenLogprobs) -> f64 {
    let mut other = vec![0.0; bits.top.len()];
    for (token, logprob) in &bits.top {
        other[token.0 as usize] = *logprob;
    }
    let term = |(token, logprob): &(TokenId, f32)| {
        f64::from(*logprob).exp() * f64::from(logprob - other[token.0 as usize])
    };
    floats.top.iter().map(term).sum()
}

#[track_caller]
fn check(distance: &Distance, tokens_min: usize) {
    assert!(tokens_min <= distance.tokens, "{distance:?}");
    assert!(0.97 <= distance.agreement, "{distance:?}");
    assert!(distance.divergence <= 0.01, "{distance:?}");
}

#[test]
fn eight_bit_activations_are_close_to_floats() {
    let (rows, _) = golden();
    let distance = distance(&rows[..3], 16);
    println!("{distance:?}");
    check(&distance, 48);
}

#[test]
#[ignore = "minutes; its result is kept in bench/results"]
fn eight_bit_activations_are_close_to_floats_at_length() {
    let (rows, len_max) = golden();
    let distance = distance(&rows, len_max);
    println!("{distance:?}");
    check(&distance, 500);
}
