//! How a token is chosen from logits: a pure function of the request, the tokens so far and the
//! position, so that a text never depends on when or beside whom it was written.

use crate::batch::ids::TokenId;
use crate::batch::plan::TokenLogprobs;
use crate::batch::sampling::chunk::{WIDTH, chunks};

mod chunk;
mod draw;
mod report;

/// A request's wishes. Bounds are checked where requests enter.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// The noise is a pure function of (seed, position, token).
    pub seed: u64,
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// Keep this many of the likeliest; 0 keeps all. Of equals the lower tokens.
    pub top_k: u32,
    /// Of those, keep the likeliest until their probabilities sum to this; 1 keeps all.
    pub top_p: f32,
    /// Of those, keep the ones at least this likely relative to the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Subtracted once from the logit of each token that stands in the output.
    pub presence_penalty: f32,
    /// Subtracted once for each time it stands there.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or output; 1 is off.
    pub repetition_penalty: f32,
    /// Added to the logit of a token.
    pub bias: Vec<(TokenId, f32)>,
    /// Tokens that may not be chosen while the output is shorter than `outputs_min`.
    pub stop_tokens: Vec<TokenId>,
    pub outputs_min: u32,
    /// How many of the likeliest tokens to report beside the chosen one; `None` reports nothing.
    pub logprobs: Option<u32>,
    /// The same for the prompt's own tokens, all but the first.
    pub prompt_logprobs: Option<u32>,
}

impl Sampling {
    /// The likeliest token, nothing else.
    pub fn greedy() -> Self {
        Self {
            seed: 0,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            bias: Vec::new(),
            stop_tokens: Vec::new(),
            outputs_min: 0,
            logprobs: None,
            prompt_logprobs: None,
        }
    }
}

/// The tokens before the one that is chosen, drafts included.
#[derive(Clone, Copy, Debug)]
pub struct Past<I> {
    /// All of them, from the first of the prompt. Only read when there is a penalty.
    pub tokens: I,
    /// How many they are: the position of the token that is chosen.
    pub position: u32,
    /// How many of them are prompt.
    pub outputs_start: u32,
}

/// Chooses a token. `logits` has one entry a token and is scratch afterwards.
///
/// In this order: bias; repetition, frequency and presence penalty; mask and `outputs_min`;
/// log-probabilities are taken; temperature; top-k, top-p, min-p; then the token with the largest
/// (logit / temperature + noise), the lowest of equals. Adding Gumbel noise and taking the largest
/// draws from the softmax (Gumbel 1954), and the noise of a token does not depend on the others.
///
/// `mask` has a bit for each token that may be chosen. A logit that is not a number counts as
/// minus infinity. Where `outputs_min` leaves nothing, stop tokens are allowed after all; where the
/// mask or the logits leave nothing, the lowest allowed token is chosen.
pub fn choose<I: Iterator<Item = TokenId>>(
    logits: &mut [f32],
    sampling: &Sampling,
    past: Past<I>,
    mask: Option<&[u32]>,
) -> (TokenId, Option<TokenLogprobs>) {
    let (position, outputs) = (past.position, past.position - past.outputs_start);
    add_bias(logits, &sampling.bias);
    if sampling.has_penalties() {
        penalise(logits, sampling, past);
    }
    if let Some(mask) = mask {
        forbid(logits, mask);
    }
    if outputs < sampling.outputs_min && !sampling.stop_tokens.is_empty() {
        forbid_stops(logits, &sampling.stop_tokens);
    }
    let Some(likeliest) = largest(logits) else {
        let lowest = mask.and_then(lowest_bit).unwrap_or(0);
        let nothing = TokenLogprobs { chosen: 0.0, top: Vec::new() };
        return (TokenId(lowest), sampling.logprobs.map(|_| nothing));
    };
    if sampling.is_greedy() && sampling.logprobs.is_none() {
        return (TokenId(likeliest), None);
    }
    tame(logits);
    let token = if sampling.is_greedy() {
        likeliest
    } else {
        draw::draw(logits, sampling, position, likeliest)
    };
    (TokenId(token), sampling.logprobs.map(|top| report::report(logits, likeliest, token, top)))
}

/// How likely the model finds `token`, without any wish, and the `top` likeliest. `logits` has one
/// entry a token and is scratch afterwards.
pub fn score(logits: &mut [f32], token: TokenId, top: u32) -> TokenLogprobs {
    let Some(likeliest) = largest(logits) else {
        return TokenLogprobs { chosen: 0.0, top: Vec::new() };
    };
    tame(logits);
    report::report(logits, likeliest, token.0, top)
}

impl Sampling {
    /// Whether the choice is the largest of the raw logits, the lowest token of equals, so that a
    /// backend need not keep the others. Only without a mask.
    pub fn is_argmax(&self) -> bool {
        self.is_greedy()
            && self.bias.is_empty()
            && !self.has_penalties()
            && (self.outputs_min == 0 || self.stop_tokens.is_empty())
            && self.logprobs.is_none()
    }

    fn is_greedy(&self) -> bool {
        self.temperature <= 0.0
    }

    fn has_penalties(&self) -> bool {
        self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || self.repetition_penalty != 1.0
    }
}

fn add_bias(logits: &mut [f32], bias: &[(TokenId, f32)]) {
    for (token, add) in bias {
        if let Some(logit) = logits.get_mut(token.0 as usize) {
            *logit += add;
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^24")]
fn penalise<I: Iterator<Item = TokenId>>(logits: &mut [f32], sampling: &Sampling, past: Past<I>) {
    let mut seen: Vec<(TokenId, bool)> = Vec::with_capacity(past.position as usize);
    let numbered = (0..past.position).zip(past.tokens);
    seen.extend(numbered.map(|(at, token)| (token, past.outputs_start <= at)));
    seen.sort_unstable();
    for same in seen.chunk_by(|left, right| left.0 == right.0) {
        let Some(logit) = logits.get_mut(same[0].0.0 as usize) else { continue };
        let times = same.iter().filter(|(_, is_output)| *is_output).count();
        let repetition = sampling.repetition_penalty;
        *logit = if 0.0 < *logit { *logit / repetition } else { *logit * repetition };
        *logit -= sampling.frequency_penalty * times as f32;
        *logit -= if 0 < times { sampling.presence_penalty } else { 0.0 };
    }
}

fn forbid(logits: &mut [f32], mask: &[u32]) {
    for (logits, &word) in logits.chunks_mut(32).zip(mask) {
        if word == u32::MAX {
            continue;
        }
        for (bit, logit) in logits.iter_mut().enumerate() {
            if word >> bit & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

fn forbid_stops(logits: &mut [f32], stops: &[TokenId]) {
    let stops = || stops.iter().map(|it| it.0 as usize).filter(|it| *it < logits.len());
    let before: Vec<(usize, f32)> = stops().map(|it| (it, logits[it])).collect();
    for (stop, _) in &before {
        logits[*stop] = f32::NEG_INFINITY;
    }
    if largest(logits).is_none() {
        for (stop, logit) in before {
            logits[stop] = logits[stop].max(logit);
        }
    }
}

/// The token with the largest logit, the lowest of equals; none if all are minus infinity.
fn largest(logits: &[f32]) -> Option<u32> {
    let mut lanes = [f32::NEG_INFINITY; WIDTH];
    for (_, chunk) in chunks(logits) {
        for (lane, logit) in lanes.iter_mut().zip(chunk) {
            *lane = if *lane < logit { logit } else { *lane };
        }
    }
    let max = lanes.iter().fold(f32::NEG_INFINITY, |a, &b| if a < b { b } else { a });
    let at = logits.iter().position(|it| *it == max)?;
    (f32::NEG_INFINITY < max).then(|| u32::try_from(at).expect("tokens are counted in u32"))
}

/// Leaves finite numbers and minus infinity.
fn tame(logits: &mut [f32]) {
    for logit in logits {
        *logit = if logit.is_nan() { f32::NEG_INFINITY } else { logit.min(f32::MAX) };
    }
}

fn lowest_bit(mask: &[u32]) -> Option<u32> {
    (0..).step_by(32).zip(mask).find(|(_, it)| **it != 0).map(|(at, it)| at + it.trailing_zeros())
}

#[cfg(test)]
mod tests;
