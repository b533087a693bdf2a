//! The choice of a token from its logits: penalties, biases and masks, filters, keyed noise.

use bytemuck::{Pod, Zeroable};

use super::collective::Slices;
use super::rows::{Extent, Step, StepArgs, Wish};
use super::{blocks_together, whole};
use crate::cuda::{Arg, Buffer, Device, DeviceError, Grid};
use crate::noise::{NOISE_MAX, NOISE_MIN, Noise, exp, gumbel, ln};

/// Stop tokens that one request can have.
pub const STOPS_MAX: usize = 128;
/// Alternatives that can be reported beside a chosen token.
pub const LOGPROBS_MAX: usize = 20;

/// What is chosen, and what is reported of it. One place for each chooser.
#[derive(Debug)]
pub struct Choices {
    pub tokens: Buffer<u32>,
    pub logprobs: Buffer<f32>,
    /// (choosers, 20) each.
    pub top_tokens: Buffer<u32>,
    pub top_logprobs: Buffer<f32>,
}

impl Choices {
    pub fn new(device: &Device, choosers_max: usize) -> Result<Self, DeviceError> {
        Ok(Self {
            tokens: device.zeros(choosers_max)?,
            logprobs: device.zeros(choosers_max)?,
            top_tokens: device.zeros(choosers_max * LOGPROBS_MAX)?,
            top_logprobs: device.zeros(choosers_max * LOGPROBS_MAX)?,
        })
    }
}

/// Logits of rows, (rows, vocab), changed in place; where ranks have slices, room for whole rows.
#[derive(Debug)]
pub struct Logits<'a> {
    pub rows: &'a mut Buffer<f32>,
    pub vocab: usize,
    /// Where they stand instead.
    pub slices: Option<Slices<'a>>,
}

/// The twin of `Sample` in `cu/sample.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct Args {
    step: StepArgs,
    logits: u64,
    choices: u64,
    chosen_logprobs: u64,
    top_tokens: u64,
    top_logprobs: u64,
    vocab: u32,
    padding: u32,
}

/// Chooses for each chooser of the step; on every rank the same.
pub fn launch(
    device: &Device,
    step: &mut Step,
    extent: Extent,
    logits: Logits<'_>,
    choices: &mut Choices,
) -> Result<(), DeviceError> {
    let Logits { rows, vocab, slices } = logits;
    assert!(extent.choosers * vocab <= rows.len(), "logits for each chooser");
    assert!(extent.choosers <= choices.tokens.len(), "a place for each choice");
    let args = Args {
        step: step.args(extent),
        logits: rows.write(),
        choices: choices.tokens.write(),
        chosen_logprobs: choices.logprobs.write(),
        top_tokens: choices.top_tokens.write(),
        top_logprobs: choices.top_logprobs.write(),
        vocab: whole(vocab),
        padding: 0,
    };
    let shared_bytes = whole(vocab.div_ceil(32) * 4);
    let mut grid = Grid { blocks: (whole(extent.choosers), 1, 1), threads: 512, shared_bytes };
    let Some(mut slices) = slices else {
        let together = blocks_together(device, extent.choosers);
        grid.blocks = (together, whole(extent.choosers), 1);
        return device.launch_clusters("sample", grid, (together, 1, 1), &[Arg::value(&args)]);
    };
    let of_ranks = slices.args(extent.choosers, vocab);
    device.launch("sample_slices", grid, &[Arg::value(&args), Arg::value(&of_ranks)])
}

/// The token that `wish` chooses for `position` from logits to which penalties, biases and masks
/// were applied: the definition, by sorting.
pub fn cpu(logits: &[f32], wish: &Wish, position: u32) -> u32 {
    let mut order: Vec<u32> = (0..whole(logits.len())).collect();
    let logit = |token: u32| logits[token as usize];
    order.sort_by(|&a, &b| logit(b).total_cmp(&logit(a)).then(a.cmp(&b)));
    let likeliest = order[0];
    if wish.temperature <= 0.0 {
        return likeliest;
    }
    let distance = |token: u32| (logit(token) - logit(likeliest)) / wish.temperature;
    // Tokens that cannot win against the likeliest do not count.
    order.retain(|&it| NOISE_MIN - NOISE_MAX - 0.01 <= distance(it));
    if 0 < wish.top_k {
        order.truncate(wish.top_k as usize);
    }
    if wish.top_p < 1.0 {
        let mass =
            |&token: &u32| (f64::from(exp(distance(token))) * 4_294_967_296.0).round_ties_even();
        let limit = f64::from(wish.top_p) * order.iter().map(mass).sum::<f64>();
        let mut sum = 0.0;
        let reached = order.iter().position(|it| {
            sum += mass(it);
            limit <= sum
        });
        order.truncate(reached.map_or(order.len(), |it| it + 1));
    }
    if 0.0 < wish.min_p {
        order.retain(|&it| ln(wish.min_p) <= distance(it) || it == likeliest);
    }
    let noise = Noise::new(wish.seed, position);
    let score = |token: u32| distance(token) + gumbel(noise.bits(token));
    let louder =
        |a: u32, b: u32| if score(b).total_cmp(&score(a)).then(a.cmp(&b)).is_gt() { b } else { a };
    order.into_iter().reduce(louder).unwrap_or(likeliest)
}

#[cfg(test)]
mod tests;
