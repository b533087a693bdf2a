//! How far 8-bit activations are from floats, and 8-bit weights from bf16, token by token of the
//! golden texts.

use std::collections::BTreeMap;

use engine::backend::cpu::CpuBackend;
use engine::batch::ids::TokenId;
use engine::batch::plan::TokenLogprobs;
use engine::batch::sampling::Sampling;
use engine::model::{Model, ModelConfig, Tensor};
use kernels::cpu::Activations;
use kernels::ops::bf16;
use kernels::ops::matmul::round_fp8;
use kernels::quant::{Dtype, dequantize};
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
    /// Mean Kullback-Leibler divergence from the first to the second, in nats.
    divergence: f64,
    /// Of the reference's text, to each of them.
    perplexity: [f64; 2],
}

fn lines(rows: &[Row], top: u32) -> Vec<Line> {
    let sampling = Sampling { logprobs: Some(top), ..Sampling::greedy() };
    let lanes = (0..).zip(rows);
    lanes.map(|(lane, row)| Line::new(lane, PAGES_EACH, &row.prompt, sampling.clone())).collect()
}

/// From the first backend to the second, over the texts' tokens, at most `len_max` of each.
fn distance(backends: &mut [CpuBackend; 2], rows: &[Row], len_max: usize) -> Distance {
    let vocab = u32::try_from(pair::pair().model.config.vocab).unwrap();
    let mut lines = [lines(rows, vocab), lines(rows, vocab)];
    let (mut tokens, mut same, mut divergence, mut surprise) = (0, 0, 0.0, [0.0; 2]);
    for at in 0..len_max {
        let fed_max = |row: &Row| if at < row.output.len() { u32::MAX } else { 0 };
        let shares: Vec<Share> =
            rows.iter().map(|row| Share { fed_max: fed_max(row), held: 0 }).collect();
        let both: [Vec<_>; 2] =
            [0, 1].map(|it| hand::step(&mut backends[it], &mut lines[it], &shares));
        for (row, (first, second)) in rows.iter().zip(both[0].iter().zip(&both[1])) {
            if first.tokens.is_empty() {
                continue;
            }
            tokens += 1;
            same += usize::from(first.tokens == second.tokens);
            divergence += divergence_of(&first.logprobs[0], &second.logprobs[0]);
            for (sum, outcome) in surprise.iter_mut().zip([first, second]) {
                *sum -= logprob_of(&outcome.logprobs[0], row.output[at]);
            }
        }
        // Both go on with the reference's token, whatever they chose.
        for lines in &mut lines {
            for (line, row) in lines.iter_mut().zip(rows).filter(|(_, row)| at < row.output.len()) {
                *line.tokens.last_mut().unwrap() = TokenId(row.output[at]);
            }
        }
    }
    let count = tokens as f64;
    Distance {
        tokens,
        agreement: same as f64 / count,
        divergence: divergence / count,
        perplexity: surprise.map(|it| (it / count).exp()),
    }
}

fn logprob_of(all: &TokenLogprobs, token: u32) -> f64 {
    let found = all.top.iter().find(|(it, _)| it.0 == token);
    f64::from(found.expect("all tokens are listed").1)
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

fn activations(rows: &[Row], len_max: usize) -> Distance {
    let count = u32::try_from(rows.len()).unwrap();
    let new = |activations| pair::backend(activations, false, count * PAGES_EACH, count);
    let mut backends = [new(Activations::F32), new(Activations::Int8)];
    distance(&mut backends, rows, len_max)
}

#[test]
fn eight_bit_activations_are_close_to_floats() {
    let (rows, _) = golden();
    let distance = activations(&rows[..3], 16);
    println!("{distance:?}");
    check(&distance, 48);
}

#[test]
#[ignore = "minutes; its result is kept in bench/results"]
fn eight_bit_activations_are_close_to_floats_at_length() {
    let (rows, len_max) = golden();
    let distance = activations(&rows, len_max);
    println!("{distance:?}");
    check(&distance, 500);
}

/// How a row of weights is rounded.
type Round = fn(&mut [f32]);

fn to_bf16(row: &mut [f32]) {
    row.iter_mut().for_each(|it| *it = bf16::from_f32(*it).to_f32());
}

fn to_fp8(row: &mut [f32]) {
    round_fp8(row).unwrap();
}

/// The default model with weights rounded as the GPU has them, the norm before a matrix folded in;
/// logits are made by a matrix of their own.
fn rounded(weights: Round, logits: Round) -> Model {
    let Model { config, tensors } = &pair::pair().model;
    let config = ModelConfig { tied: false, ..config.clone() };
    let folded = |name: &str, norm: Option<String>, round: Round| {
        let Tensor { dtype, rows, cols, bytes } = &tensors[name];
        let mut values = vec![0.0; rows * cols];
        dequantize(*dtype, bytes, &mut values).unwrap();
        let mut norms = vec![1.0; *cols];
        if let Some(norm) = norm.map(|it| &tensors[&it]) {
            dequantize(norm.dtype, &norm.bytes, &mut norms).unwrap();
        }
        for row in values.chunks_exact_mut(*cols) {
            row.iter_mut().zip(&norms).for_each(|(it, norm)| *it *= norm);
            round(row);
            row.iter_mut().zip(&norms).for_each(|(it, norm)| *it /= norm);
        }
        let bytes = values.iter().flat_map(|it| it.to_le_bytes()).collect();
        Tensor { dtype: Dtype::F32, rows: *rows, cols: *cols, bytes }
    };
    let norm_of = |name: &str| {
        let (layer, part) = name.rsplit_once(".self_attn.").or(name.rsplit_once(".mlp."))?;
        let norm = match part {
            "q_proj.weight" | "k_proj.weight" | "v_proj.weight" => "input_layernorm",
            "gate_proj.weight" | "up_proj.weight" => "post_attention_layernorm",
            _ => return None,
        };
        Some(format!("{layer}.{norm}.weight"))
    };
    let round = |(name, tensor): (&String, &Tensor)| {
        let is_product = name.ends_with("_proj.weight");
        let tensor = if is_product { folded(name, norm_of(name), weights) } else { tensor.clone() };
        (name.clone(), tensor)
    };
    let mut rounded: BTreeMap<String, Tensor> = tensors.iter().map(round).collect();
    let head = folded("embed_tokens.weight", Some("norm.weight".to_owned()), logits);
    rounded.insert("lm_head.weight".to_owned(), head);
    Model { config, tensors: rounded }
}

/// From bf16 weights to 8-bit ones; activations are floats.
fn weights(rows: &[Row], len_max: usize, logits: Round) -> Distance {
    let count = u32::try_from(rows.len()).unwrap();
    let sizes = (count * PAGES_EACH, count);
    let new = |model: Model| pair::backend_of(&model, None, Activations::F32, sizes);
    let mut backends = [new(rounded(to_bf16, to_bf16)), new(rounded(to_fp8, logits))];
    distance(&mut backends, rows, len_max)
}

#[track_caller]
fn check_weights(distance: &Distance) {
    assert!(0.85 <= distance.agreement && distance.divergence <= 0.05, "{distance:?}");
    let [bf16, fp8] = distance.perplexity;
    assert!(fp8 <= 1.05 * bf16, "{distance:?}");
}

#[test]
fn eight_bit_weights_are_close_to_bf16() {
    let (rows, _) = golden();
    let distance = weights(&rows[..3], 16, to_bf16);
    println!("{distance:?}");
    assert!(48 <= distance.tokens, "{distance:?}");
    check_weights(&distance);
}

#[test]
#[ignore = "minutes; its result is kept in bench/results"]
fn eight_bit_weights_are_close_to_bf16_at_length() {
    let (rows, len_max) = golden();
    for (name, logits) in [("bf16", to_bf16 as Round), ("fp8", to_fp8)] {
        let distance = weights(&rows, len_max, logits);
        println!("logits by {name} weights: {distance:?}");
        assert!(500 <= distance.tokens, "{distance:?}");
        check_weights(&distance);
    }
}
