//! A draw from the filtered softmax, without sorting the vocabulary.
//!
//! Filters only find a [`Cut`]. Probability masses are multiples of 2^-32, so that their sums are
//! exact and do not depend on the order of addition.

use crate::batch::sampling::Sampling;
use crate::batch::sampling::chunk::{WIDTH, any_reaches, chunks, each};
use kernels::noise::{NOISE_MAX, NOISE_MIN, Noise, at_most, exp, gumbel, ln};

/// The last token that is kept, likeliest first; of equal logits the lower token comes first.
#[derive(Clone, Copy, Debug)]
struct Cut {
    logit: f32,
    token: u32,
}

/// From a logit to its distance below the likeliest, in units of temperature.
#[derive(Clone, Copy, Debug)]
struct Scale {
    max: f32,
    temperature: f32,
}

/// Buckets of distance, an eighth each: the last has all that is further away.
const BUCKETS: usize = 256;
const BUCKETS_PER_UNIT: f32 = 8.0;

/// The token with the largest (logit / temperature + noise) among those that the filters keep.
/// `likeliest` is the token of the largest logit, which is finite; the others are finite or minus
/// infinity.
pub(super) fn draw(logits: &[f32], sampling: &Sampling, position: u32, likeliest: u32) -> u32 {
    let scale = Scale { max: logits[likeliest as usize], temperature: sampling.temperature };
    // What the likeliest cannot lose to is not worth a look.
    let reach = Cut { logit: scale.logit_below(NOISE_MIN - NOISE_MAX), token: u32::MAX };
    let mut cut = reach;
    if 0 < sampling.top_k {
        let limit = f64::from(sampling.top_k);
        cut = tighten(logits, scale, cut, |_| 1.0, |_| limit);
    }
    if sampling.top_p < 1.0 {
        let top_p = f64::from(sampling.top_p);
        cut = tighten(logits, scale, cut, mass, |total| top_p * total);
    }
    let floor = if 0.0 < sampling.min_p { ln(sampling.min_p) } else { f32::NEG_INFINITY };
    loudest(logits, scale, cut, floor, (Noise::new(sampling.seed, position), likeliest))
}

impl Cut {
    fn keeps(self, logit: f32, token: u32) -> bool {
        self.logit < logit || (self.logit == logit && token <= self.token)
    }
}

impl Scale {
    /// Not positive.
    fn distance(self, logit: f32) -> f32 {
        (logit - self.max) / self.temperature
    }

    /// A logit no larger than any that is at `distance` or nearer, whatever was rounded.
    #[expect(clippy::cast_possible_truncation, reason = "rounded down below")]
    fn logit_below(self, distance: f32) -> f32 {
        let distance = f64::from(distance) - 0.01;
        let logit = f64::from(self.max) + distance * f64::from(self.temperature);
        (logit as f32).next_down()
    }
}

/// Rises with the distance, by rounding to a whole number.
fn bucket(distance: f32) -> usize {
    const ROUND: f32 = 8_388_608.0;
    let eighths = -distance * BUCKETS_PER_UNIT;
    let inside = if eighths < 255.0 { eighths } else { 255.0 };
    ((inside + ROUND).to_bits() & 0xff) as usize
}

/// The probability relative to the likeliest, a multiple of 2^-32.
fn mass(distance: f32) -> f64 {
    const ROUND: f64 = 1.5 * 1_048_576.0;
    (f64::from(exp(distance)) + ROUND) - ROUND
}

/// The cut that keeps tokens, the likeliest first, while the weight before them is below the limit;
/// `limit` is told the weight of all that `before` keeps.
fn tighten(
    logits: &[f32],
    scale: Scale,
    before: Cut,
    weigh: impl Fn(f32) -> f64,
    limit: impl FnOnce(f64) -> f64,
) -> Cut {
    let mut weights = [0.0; BUCKETS];
    for (start, chunk) in chunks(logits) {
        if !any_reaches(&chunk, before.logit) {
            continue;
        }
        let distances = each(&chunk, |it| scale.distance(it));
        let buckets = each(&distances, bucket);
        let masses = each(&distances, &weigh);
        for (at, token) in (start..).take(WIDTH).enumerate() {
            let is_kept = before.keeps(chunk[at], token);
            weights[buckets[at]] += if is_kept { masses[at] } else { 0.0 };
        }
    }
    let limit = limit(weights.iter().sum());
    let mut sum = 0.0;
    let crossing = weights.iter().position(|weight| {
        let crosses = 0.0 < *weight && limit <= sum + weight;
        sum += if crosses { 0.0 } else { *weight };
        crosses
    });
    let Some(crossing) = crossing else { return before };
    let mut inside = within(logits, scale, before, crossing);
    inside.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    for &(token, logit) in &inside {
        sum += weigh(scale.distance(logit));
        if limit <= sum {
            return Cut { logit, token };
        }
    }
    before
}

/// The tokens of one bucket.
fn within(logits: &[f32], scale: Scale, before: Cut, crossing: usize) -> Vec<(u32, f32)> {
    let mut found = Vec::new();
    let is_last = crossing == BUCKETS - 1;
    #[expect(clippy::cast_precision_loss, reason = "at most 256")]
    let edge = (crossing as f32 + 0.5) / -BUCKETS_PER_UNIT;
    let least = if is_last { before.logit } else { scale.logit_below(edge).max(before.logit) };
    for (start, chunk) in chunks(logits) {
        if !any_reaches(&chunk, least) {
            continue;
        }
        for (token, logit) in (start..).zip(chunk) {
            let is_in = least <= logit && bucket(scale.distance(logit)) == crossing;
            if is_in && before.keeps(logit, token) {
                found.push((token, logit));
            }
        }
    }
    found
}

/// The token with the largest noisy score, the lowest of equals, among those that `cut` keeps and
/// that are no further than `floor`. Most cannot win, which the random bits alone can tell.
fn loudest(
    logits: &[f32],
    scale: Scale,
    cut: Cut,
    floor: f32,
    (noise, likeliest): (Noise, u32),
) -> u32 {
    let mut best = (gumbel(noise.bits(likeliest)), likeliest);
    let mut least = cut.logit.max(scale.logit_below(best.0 - NOISE_MAX));
    for (start, chunk) in chunks(logits) {
        if !any_reaches(&chunk, least) {
            continue;
        }
        let distances = each(&chunk, |it| scale.distance(it));
        let mut tokens = [0; WIDTH];
        (start..).zip(&mut tokens).for_each(|(token, it)| *it = token);
        let bits = each(&tokens, |it| noise.bits(it));
        let bounds = each(&bits, at_most);
        let is_close = |at: usize| best.0 <= distances[at] + bounds[at];
        if !(0..WIDTH).fold(false, |any, at| any | is_close(at)) {
            continue;
        }
        for at in 0..WIDTH {
            let is_kept = floor <= distances[at] && cut.keeps(chunk[at], tokens[at]);
            if !is_kept || distances[at] + bounds[at] < best.0 {
                continue;
            }
            let score = distances[at] + gumbel(bits[at]);
            if best.0 < score || (best.0 == score && tokens[at] < best.1) {
                best = (score, tokens[at]);
                least = cut.logit.max(scale.logit_below(score - NOISE_MAX));
            }
        }
    }
    best.1
}
