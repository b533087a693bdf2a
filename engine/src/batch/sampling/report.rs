//! Log-probabilities of a row.

use crate::batch::ids::TokenId;
use crate::batch::plan::TokenLogprobs;
use crate::batch::sampling::chunk::{WIDTH, any_reaches, chunks, each};
use kernels::noise::exp;

/// Log-probabilities of the `chosen` token and of the `top` likeliest. `likeliest` is the token of
/// the largest logit, which is finite; the others are finite or minus infinity.
pub(super) fn report(logits: &[f32], likeliest: u32, chosen: u32, top: u32) -> TokenLogprobs {
    let max = logits[likeliest as usize];
    let mut sums = [0.0_f64; WIDTH];
    for (_, chunk) in chunks(logits) {
        let powers = each(&chunk, |logit| f64::from(exp(logit - max)));
        for (sum, power) in sums.iter_mut().zip(powers) {
            *sum += power;
        }
    }
    let log_sum = sums.iter().sum::<f64>().ln();
    #[expect(clippy::cast_possible_truncation, reason = "rounds once, at the end")]
    let logprob = |logit: f32| (f64::from(logit - max) - log_sum) as f32;
    let top = best(logits, top as usize).into_iter();
    TokenLogprobs {
        chosen: logprob(logits[chosen as usize]),
        top: top.map(|(token, logit)| (token, logprob(logit))).collect(),
    }
}

/// The largest logits that are not minus infinity, best first, of equals the lower token first.
fn best(logits: &[f32], len: usize) -> Vec<(TokenId, f32)> {
    let mut best: Vec<(TokenId, f32)> = Vec::new();
    let mut least = f32::MIN;
    for (start, chunk) in chunks(logits) {
        if len == 0 || !any_reaches(&chunk, least) {
            continue;
        }
        for (token, logit) in (start..).map(TokenId).zip(chunk) {
            if least <= logit {
                let at = best.partition_point(|it| logit <= it.1);
                best.insert(at, (token, logit));
                best.truncate(len);
                least = if best.len() == len { best[len - 1].1 } else { f32::MIN };
            }
        }
    }
    best
}
