//! How fast one instance is by what is in flight on it, as a table.

use std::sync::Arc;

use router::calibration::Curve;

/// Tokens a second of the whole instance with 0, 1, 2, ... requests; the last holds beyond.
#[derive(Clone, Debug)]
pub struct Speed(Arc<[f64]>);

impl Speed {
    /// Up to `in_flight_max` requests, from a measured curve.
    pub fn of(curve: &Curve, in_flight_max: u32) -> Self {
        Self((0..=in_flight_max).map(|n| curve.at(n)).collect())
    }

    /// On a partition of `share` of what was measured: at any load share^exponent as fast.
    #[must_use]
    pub fn on(&self, share: f64, exponent: f64) -> Self {
        let factor = share.powf(exponent);
        Self(self.0.iter().map(|it| it * factor).collect())
    }

    /// One engine that drafts while that is faster; not drafting costs it `idle_cost` (0 to 1).
    #[must_use]
    pub fn adaptive(speculative: &Self, throughput: &Self, idle_cost: f64) -> Self {
        let both = speculative.0.iter().zip(throughput.0.iter());
        Self(both.map(|(with, without)| with.max(without * (1.0 - idle_cost))).collect())
    }

    pub fn total(&self, in_flight: usize) -> f64 {
        self.0[in_flight.min(self.0.len() - 1)]
    }
}
