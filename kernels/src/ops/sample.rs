//! The choice of a token from its logits: penalties, biases and masks, floors, keyed noise.

use bytemuck::{Pod, Zeroable};

use super::rows::{Extent, Step, StepArgs, Wish};
use super::whole;
use crate::cuda::{Arg, Buffer, Device, DeviceError, Grid};

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

/// Chooses for each chooser of the step. logits: (choosers, vocab), changed in place.
pub fn launch(
    device: &Device,
    step: &mut Step,
    extent: Extent,
    logits: &mut Buffer<f32>,
    vocab: usize,
    choices: &mut Choices,
) -> Result<(), DeviceError> {
    assert!(extent.choosers * vocab <= logits.len(), "logits for each chooser");
    assert!(extent.choosers <= choices.tokens.len(), "a place for each choice");
    let args = Args {
        step: step.args(extent),
        logits: logits.write(),
        choices: choices.tokens.write(),
        chosen_logprobs: choices.logprobs.write(),
        top_tokens: choices.top_tokens.write(),
        top_logprobs: choices.top_logprobs.write(),
        vocab: whole(vocab),
        padding: 0,
    };
    let shared_bytes = whole(vocab.div_ceil(32) * 4);
    let grid = Grid { blocks: (whole(extent.choosers), 1, 1), threads: 512, shared_bytes };
    device.launch("sample", grid, &[Arg::value(&args)])
}

/// Mixes all bits into all bits (the finisher of SplitMix64, Steele et al. 2014).
fn mix(v: u64) -> u64 {
    let v = (v ^ v >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let v = (v ^ v >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    v ^ v >> 31
}

/// Standard Gumbel noise: a function of the request's seed, the place in its output and the token.
pub fn noise(seed: u64, output: u32, token: u32) -> f32 {
    let golden = 0x9e37_79b9_7f4a_7c15_u64;
    let step = (u64::from(output) + 1).wrapping_mul(0xd1b5_4a32_d192_ed03);
    let place = mix(seed.wrapping_add(step));
    let bits = mix(place ^ (u64::from(token) + 1).wrapping_mul(golden)) >> 40;
    let uniform = (bits as f32 + 0.5) / (1_u32 << 24) as f32;
    -(-uniform.ln()).ln()
}

/// The token that `wish` chooses from logits to which penalties, biases and masks were applied.
/// Sums in f64, so a token at the very edge of top-p may fall on its other side.
pub fn cpu(logits: &[f32], wish: &Wish, output: u32) -> u32 {
    let largest = |scores: &[f32]| {
        let best = scores.iter().copied().enumerate().reduce(|a, b| if a.1 < b.1 { b } else { a });
        whole(best.map_or(0, |it| it.0))
    };
    if wish.temperature <= 0.0 {
        return largest(logits);
    }
    let per = 1.0 / wish.temperature;
    let scores: Vec<f32> = logits.iter().map(|it| it * per).collect();
    let floor = cpu_floor(&scores, wish);
    let noisy = |(token, &score): (usize, &f32)| {
        if score < floor {
            f32::NEG_INFINITY
        } else {
            score + noise(wish.seed, output, whole(token))
        }
    };
    largest(&scores.iter().enumerate().map(noisy).collect::<Vec<f32>>())
}

/// Scores below this are not drawn from.
fn cpu_floor(scores: &[f32], wish: &Wish) -> f32 {
    let mut sorted = scores.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let most = sorted[0];
    if 0 < wish.top_k {
        let floor = sorted[(wish.top_k as usize).min(sorted.len()) - 1];
        sorted.retain(|it| floor <= *it);
    }
    if wish.top_p < 1.0 {
        let weights: Vec<f64> = sorted.iter().map(|it| f64::from(it - most).exp()).collect();
        let wanted = weights.iter().sum::<f64>() * f64::from(wish.top_p);
        let mut sum = 0.0;
        let reached = weights.iter().position(|it| {
            sum += it;
            wanted <= sum
        });
        let floor = sorted[reached.unwrap_or(sorted.len() - 1)];
        sorted.retain(|it| floor <= *it);
    }
    let by_min = if 0.0 < wish.min_p { most + wish.min_p.ln() } else { f32::NEG_INFINITY };
    sorted[sorted.len() - 1].max(by_min)
}

#[cfg(test)]
mod tests;
