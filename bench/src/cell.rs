//! One target under one load in one round, as numbers.

use serde::Serialize;

use crate::load::Run;
use crate::sample::{Outcome, Sample};
use crate::stats;

/// What a service promises; without a bound everything that ended is good.
#[derive(Clone, Copy, Debug, Default)]
pub struct Promise {
    pub ttft_ms_max: Option<f64>,
    pub tpot_ms_max: Option<f64>,
}

impl Promise {
    pub fn is_kept(&self, sample: &Sample) -> bool {
        let within = |value: Option<f64>, max: Option<f64>| match (value, max) {
            (_, None) => true,
            (Some(value), Some(max)) => value <= max,
            // One token has no time a token after the first.
            (None, Some(_)) => sample.tokens <= 1,
        };
        sample.outcome == Outcome::Done
            && within(sample.ttft_ms(), self.ttft_ms_max)
            && within(sample.tpot_ms(), self.tpot_ms_max)
    }
}

/// Which step of a sweep it was.
#[derive(Clone, Debug, Serialize)]
pub struct Place {
    pub target: String,
    /// As written: a number in flight, or a shape of arrivals.
    pub load: String,
    /// Requests in flight, or a second: where it stands on an axis.
    pub at: f64,
    pub round: u32,
}

/// What was measured there.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    #[serde(flatten)]
    pub place: Place,
    /// Tokens a second of all requests together.
    pub total: f64,
    /// The same of those that kept the promise.
    pub good: f64,
    /// Median of tokens a second of one request.
    pub each: f64,
    pub ttft_ms: f64,
    pub ttft_ms_p99: f64,
    pub tpot_ms: f64,
    pub tpot_ms_p99: f64,
    /// Tokens a round of speculation, where metrics tell it.
    pub round_tokens: Option<f64>,
    pub requests: usize,
    pub shed: usize,
    pub errors: usize,
    pub broken: usize,
    /// How late this client sent, 99th percentile: its own limit, contained in all latencies.
    pub late_ms_p99: f64,
    /// Processor time that this client used, in cores; `None` where the system does not tell.
    pub client_cores: Option<f64>,
}

impl Cell {
    pub fn of(place: Place, run: &Run, promise: &Promise) -> Self {
        let part = |value: fn(&Sample) -> Option<f64>, part: f64| {
            let values: Vec<f64> = run.samples.iter().filter_map(value).collect();
            stats::quantile(&values, part).unwrap_or(0.0)
        };
        Self {
            place,
            total: run.tokens_per_second(),
            good: run.tokens_per_second_of(|it| promise.is_kept(it)),
            each: part(Sample::rate, 0.5),
            ttft_ms: part(Sample::ttft_ms, 0.5),
            ttft_ms_p99: part(Sample::ttft_ms, 0.99),
            tpot_ms: part(Sample::tpot_ms, 0.5),
            tpot_ms_p99: part(Sample::tpot_ms, 0.99),
            round_tokens: None,
            requests: run.samples.len(),
            shed: run.count(Outcome::Shed),
            errors: run.count(Outcome::Error),
            broken: run.count(Outcome::Broken),
            late_ms_p99: part(|it| Some(it.sent_ms - it.due_ms), 0.99),
            client_cores: None,
        }
    }

    pub fn failures(&self) -> usize {
        self.shed + self.errors + self.broken
    }

    /// For the person who waits.
    pub fn line(&self) -> String {
        let Place { target, load, round, .. } = &self.place;
        format!(
            "round {round}  {load:>4}  {target:<12} {:8.1} tok/s  {:7.1} each  ttft {:6.0} ms  \
             {} failed",
            self.total,
            self.each,
            self.ttft_ms,
            self.failures()
        )
    }
}

#[cfg(test)]
mod tests;
