//! Finds where two instances cross with few runs: doubling, then halving, on a ladder of loads.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use router::calibration::usual_low;
use router::config::Role;

use super::confidence::chance_above_zero;
use crate::calibration::{File, Points, Threshold};
use crate::stats;

/// Runs one instance at one load.
pub trait Measure {
    /// Total tokens a second of `role` with `in_flight` requests; an error ends the search.
    fn total(
        &mut self,
        role: Role,
        in_flight: u32,
    ) -> impl Future<Output = Result<f64, String>> + Send;

    /// Runs both at once, `in_flight` requests on each, about as long: `alone` is how fast each
    /// is by itself.
    fn both(
        &mut self,
        in_flight: u32,
        alone: [f64; 2],
    ) -> impl Future<Output = Result<[f64; 2], String>> + Send;
}

/// Where to look and how often.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Requests in flight, growing; the search tells crossings apart no finer than this.
    pub ladder: Vec<u32>,
    pub repeats_min: u32,
    pub repeats_max: u32,
    /// Repeats end early when it is this sure which instance is faster.
    pub sure: f64,
}

/// The longest leap, in steps of the ladder: a factor of four in load. A longer one could pass over
/// all loads at which speculation is slower.
const STRIDE_MAX: usize = 4;

/// Powers of two and what lies half way between, up to and with `in_flight_max`.
pub fn usual_ladder(in_flight_max: u32) -> Vec<u32> {
    let powers = (0..31).map(|power| 1_u32 << power).take_while(|it| *it <= in_flight_max);
    let mut ladder: Vec<u32> = powers.flat_map(|it| [it, it + it / 2]).collect();
    ladder.push(in_flight_max);
    ladder.retain(|it| *it <= in_flight_max);
    ladder.sort_unstable();
    ladder.dedup();
    ladder
}

/// The speed of a run that made tokens; nothing can be compared with one that made none.
pub(super) fn some_tokens(role: Role, in_flight: u32, total: f64) -> Result<f64, String> {
    if total.is_finite() && 0.0 < total {
        Ok(total)
    } else {
        Err(format!("{} made no tokens with {in_flight} in flight", role.label()))
    }
}

/// Both instances at one load.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rung {
    pub speculative: Vec<f64>,
    pub throughput: Vec<f64>,
}

impl Rung {
    /// Logarithms of speculative over throughput, pair by pair: what both runs of a pair met
    /// cancels.
    fn log_ratios(&self) -> Vec<f64> {
        let pairs = self.speculative.iter().zip(&self.throughput);
        pairs.map(|(with, without)| (with / without).ln()).collect()
    }

    /// Above 0 when the speculative instance is faster.
    pub fn log_ratio(&self) -> f64 {
        stats::median(&self.log_ratios()).unwrap_or(0.0)
    }

    /// How sure it is that the speculative instance is faster: 0 to 1.
    pub fn sure(&self) -> f64 {
        chance_above_zero(&self.log_ratios())
    }
}

/// What was measured, and where it crosses.
#[derive(Debug)]
pub struct Search<M> {
    measure: M,
    rules: Rules,
    rungs: BTreeMap<u32, Rung>,
    runs: u32,
}

/// Between which two loads the order changes; `None` beside what was looked at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Crossing {
    /// The highest load at which the speculative instance is faster.
    pub below: Option<u32>,
    /// The next load of the ladder.
    pub above: Option<u32>,
}

impl<M: Measure> Search<M> {
    pub fn new(measure: M, rules: Rules) -> Self {
        assert!(!rules.ladder.is_empty(), "there is at least one load to look at");
        Self { measure, rules, rungs: BTreeMap::new(), runs: 0 }
    }

    /// The whole search, and for the curves a few points beyond it and between far ones.
    pub async fn run(&mut self) -> Result<Crossing, String> {
        let crossing = self.crossing().await?;
        let last = self.rules.ladder.len() - 1;
        let above = crossing.above.map_or(last, |it| self.step_of(it));
        for step in [last, above + (last - above) / 2] {
            self.is_speculative_faster(step).await?;
        }
        while let Some(step) = self.gap() {
            self.is_speculative_faster(step).await?;
        }
        Ok(crossing)
    }

    /// A step between two neighbours of which one has more than twice the load of the other: a
    /// straight line between them can make a curve look a fifth slower than it is.
    fn gap(&self) -> Option<usize> {
        let steps: Vec<usize> = self.rungs.keys().map(|it| self.step_of(*it)).collect();
        let is_far = |pair: &&[usize]| {
            let [near, far] = [pair[0], pair[1]].map(|it| self.rules.ladder[it]);
            near * 2 < far && pair[0] + 1 < pair[1]
        };
        steps.windows(2).find(is_far).map(|pair| pair[0].midpoint(pair[1]))
    }

    /// Whether the threshold `high` still stands: nothing beside it contradicts it for sure.
    pub async fn confirms(&mut self, high: u32) -> Result<bool, String> {
        let above = self.rules.ladder.partition_point(|it| *it <= high);
        let sure = self.rules.sure;
        if 0 < above {
            self.is_speculative_faster(above - 1).await?;
            if self.rungs[&self.rules.ladder[above - 1]].sure() <= 1.0 - sure {
                return Ok(false);
            }
        }
        if above < self.rules.ladder.len() {
            self.is_speculative_faster(above).await?;
            return Ok(self.rungs[&self.rules.ladder[above]].sure() < sure);
        }
        Ok(true)
    }

    async fn crossing(&mut self) -> Result<Crossing, String> {
        let last = self.rules.ladder.len() - 1;
        let at = |this: &Self, step: usize| Some(this.rules.ladder[step]);
        let mut below = 0;
        if !self.is_speculative_faster(0).await? {
            // A tie at the first load says nothing of the next, where speculation may surely be
            // faster; without a look there, chance alone would turn it off for good.
            let is_sure = self.rungs[&self.rules.ladder[0]].sure() <= 1.0 - self.rules.sure;
            if is_sure || last == 0 || !self.is_speculative_faster(1).await? {
                return Ok(Crossing { below: None, above: at(self, 0) });
            }
            below = 1;
        }
        let mut stride = 1;
        let mut above = loop {
            if below == last {
                return Ok(Crossing { below: at(self, last), above: None });
            }
            let next = (below + stride).min(last);
            if !self.is_speculative_faster(next).await? {
                break next;
            }
            (below, stride) = (next, (stride * 2).min(STRIDE_MAX));
        };
        while below + 1 < above {
            let middle = below + (above - below) / 2;
            if self.is_speculative_faster(middle).await? {
                below = middle;
            } else {
                above = middle;
            }
        }
        Ok(Crossing { below: at(self, below), above: at(self, above) })
    }

    async fn is_speculative_faster(&mut self, step: usize) -> Result<bool, String> {
        let in_flight = self.rules.ladder[step];
        if let Some(rung) = self.rungs.get(&in_flight) {
            return Ok(0.0 <= rung.log_ratio());
        }
        let mut rung = Rung::default();
        for repeat in 0..self.rules.repeats_max {
            // Each goes first as often, so that what changes with time favours neither.
            let order = if repeat % 2 == 0 { Role::ALL } else { [Role::ALL[1], Role::ALL[0]] };
            for role in order {
                let total = self.total(role, in_flight).await?;
                match role {
                    Role::Speculative => rung.speculative.push(total),
                    Role::Throughput => rung.throughput.push(total),
                }
            }
            let is_sure = |sure: f64| self.rules.sure <= sure || sure <= 1.0 - self.rules.sure;
            if self.rules.repeats_min <= repeat + 1 && is_sure(rung.sure()) {
                break;
            }
        }
        let is_faster = 0.0 <= rung.log_ratio();
        self.rungs.insert(in_flight, rung);
        Ok(is_faster)
    }

    async fn total(&mut self, role: Role, in_flight: u32) -> Result<f64, String> {
        self.runs += 1;
        some_tokens(role, in_flight, self.measure.total(role, in_flight).await?)
    }

    /// Speed of both at work over the sum of each alone, at the crossing and at most 1: what the
    /// instances share (cores, memory, power) makes it less.
    pub async fn together(&mut self, crossing: Crossing) -> Result<f64, String> {
        let at = crossing.below.or(crossing.above).expect("a search looks at one load at least");
        let mut shares = Vec::new();
        for _ in 0..self.rules.repeats_min {
            let mut alone = [0.0; 2];
            for (role, alone) in Role::ALL.into_iter().zip(&mut alone) {
                *alone = self.total(role, at).await?;
            }
            let both = self.measure.both(at, alone).await?;
            self.runs += 1;
            shares.push(both.iter().sum::<f64>() / alone.iter().sum::<f64>());
        }
        let median = stats::median(&shares).filter(|it| it.is_finite());
        Ok((median.unwrap_or(1.0) * 100.0).round().min(100.0) / 100.0)
    }

    fn step_of(&self, in_flight: u32) -> usize {
        self.rules.ladder.partition_point(|it| *it < in_flight)
    }

    /// Curves and threshold; key and time are the caller's to fill in.
    pub fn file(&self, crossing: Crossing) -> File {
        let points = |of: fn(&Rung) -> &Vec<f64>| -> Points {
            let median = |rung| stats::median(of(rung)).unwrap_or(0.0);
            // A tenth of a token a second is below what repeats differ by.
            self.rungs.iter().map(|(n, it)| (*n, (median(it) * 10.0).round() / 10.0)).collect()
        };
        let high = self.high(crossing);
        let threshold = Threshold {
            high,
            low: self.low(high),
            confidence: (self.confidence(crossing) * 1000.0).round() / 1000.0,
        };
        let mut file = File::of(points(|it| &it.speculative), points(|it| &it.throughput));
        file.threshold = Some(threshold);
        file
    }

    /// Where the ratio between the two loads passes 1, by proportion.
    fn high(&self, crossing: Crossing) -> u32 {
        let (Some(below), Some(above)) = (crossing.below, crossing.above) else {
            return crossing.below.unwrap_or(0);
        };
        let (faster, slower) = (self.rungs[&below].log_ratio(), self.rungs[&above].log_ratio());
        let share = faster / (faster - slower);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a distance between two u32"
        )]
        let beyond = (f64::from(above - below) * share).floor() as u32;
        (below + beyond).min(above - 1)
    }

    /// Far enough below that chance alone does not move the mode back and forth: a quarter, or
    /// where speculation is faster for sure.
    fn low(&self, high: u32) -> u32 {
        let sure = |it: &(&u32, &Rung)| *it.0 <= high && self.rules.sure <= it.1.sure();
        let surely = self.rungs.iter().rev().find(sure).map(|it| *it.0);
        usual_low(high).min(surely.unwrap_or(0))
    }

    /// That below it is the one and above it the other.
    fn confidence(&self, crossing: Crossing) -> f64 {
        let below = crossing.below.map_or(1.0, |it| self.rungs[&it].sure());
        let above = crossing.above.map_or(1.0, |it| 1.0 - self.rungs[&it].sure());
        below * above
    }

    /// One sentence for a person.
    pub fn sentence(&self, crossing: Crossing) -> String {
        let times = |n: u32| self.rungs[&n].log_ratio().exp();
        let mut text = match (crossing.below, crossing.above) {
            (Some(below), Some(above)) => format!(
                "Speculation is {:.2} times as fast at {below} in flight and {:.2} at {above}: \
                 threshold {}, back at {}",
                times(below),
                times(above),
                self.high(crossing),
                self.low(self.high(crossing)),
            ),
            (Some(below), None) => format!(
                "Speculation is faster up to {below} in flight, the most looked at, and still \
                 {:.2} times as fast there",
                times(below)
            ),
            (None, above) => format!(
                "Speculation is never faster: {:.2} times as fast at {} in flight",
                times(above.unwrap_or(1)),
                above.unwrap_or(1)
            ),
        };
        let sure = self.confidence(crossing);
        write!(text, " (confidence {sure:.2}, {} runs).", self.runs).expect("a string takes all");
        if let Some(again) = self.again(crossing) {
            let times = times(again);
            write!(
                text,
                " It is faster again, {times:.2} times, at {again}: one threshold cannot say \
                 that; `marginal` reads the whole curves."
            )
            .expect("a string takes all");
        }
        text
    }

    /// A load that was looked at above the crossing at which speculation is surely faster again: a
    /// second crossing, as where a step of few rows and one of many take about as long.
    fn again(&self, crossing: Crossing) -> Option<u32> {
        let above = crossing.above?;
        let surely = |it: &(&u32, &Rung)| above < *it.0 && self.rules.sure <= it.1.sure();
        self.rungs.iter().find(surely).map(|it| *it.0)
    }

    pub fn runs(&self) -> u32 {
        self.runs
    }
}

#[cfg(test)]
mod tests;
