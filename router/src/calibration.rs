//! The calibration file: tokens a second by requests in flight, and the threshold they imply.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::config::Role;

pub use self::key::{Identity, Key};

mod key;

const REQUESTS_MAX: u32 = 1 << 16;

/// Total tokens a second of one instance by requests in flight on it; grows in its first number.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve(Vec<(u32, f64)>);

impl Curve {
    /// Errors say which rule the points break.
    pub fn new(points: Vec<(u32, f64)>) -> Result<Self, String> {
        if points.is_empty() {
            return Err("has no points".to_owned());
        }
        if points[0].0 == 0 {
            return Err("starts at 0 requests; its first point must be at 1 or more".to_owned());
        }
        if points.iter().any(|it| REQUESTS_MAX < it.0) {
            return Err(format!("goes beyond {REQUESTS_MAX} requests"));
        }
        if !points.windows(2).all(|pair| pair[0].0 < pair[1].0) {
            return Err("must grow in requests from point to point".to_owned());
        }
        if !points.iter().all(|it| it.1.is_finite() && 0.0 <= it.1) {
            return Err("has a speed that is not a number of at least 0".to_owned());
        }
        Ok(Self(points))
    }

    /// Tokens a second with `in_flight` requests: linear between points, flat beyond the last.
    pub fn at(&self, in_flight: u32) -> f64 {
        let mut before = (0, 0.0);
        for &(requests, speed) in &self.0 {
            if in_flight <= requests {
                let share = f64::from(in_flight - before.0) / f64::from(requests - before.0);
                return before.1 + (speed - before.1) * share;
            }
            before = (requests, speed);
        }
        before.1
    }

    /// The most that further requests bring on average, from `in_flight` on: the slope of the
    /// curve's upper hull. What noise makes of neighbouring points hides nothing beyond them.
    pub fn gain(&self, in_flight: u32) -> f64 {
        let here = self.at(in_flight);
        let next = self.at(in_flight.saturating_add(1)) - here;
        let beyond = self.0.iter().filter(|it| in_flight < it.0);
        let slopes =
            beyond.map(|&(requests, speed)| (speed - here) / f64::from(requests - in_flight));
        slopes.fold(next, f64::max)
    }

    /// What one of so many equal routers sees of it: requests and speed, both divided.
    pub fn share(self, replicas: u32) -> Self {
        if replicas == 1 {
            return self;
        }
        // Corners that fall between two counts are kept by the counts around them.
        let around = |it: &(u32, f64)| [(it.0 / replicas).max(1), it.0.div_ceil(replicas)];
        let mut counts: Vec<u32> = self.0.iter().flat_map(around).collect();
        counts.sort_unstable();
        counts.dedup();
        let point = |n: u32| (n, self.at(n.saturating_mul(replicas)) / f64::from(replicas));
        Self(counts.into_iter().map(point).collect())
    }

    fn requests_max(&self) -> u32 {
        self.0.last().map_or(0, |it| it.0)
    }
}

/// What the file says.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    pub key: Key,
    pub curves: BTreeMap<Role, Curve>,
    /// (high, low), as written or as the curves imply.
    pub thresholds: Option<(u32, u32)>,
    /// How sure the written thresholds are, from 0 to 1; 1 where the file does not say.
    pub confidence: f64,
    /// Speed of both instances at work over the sum of each alone; 1 when they share nothing.
    pub together: f64,
}

#[derive(Deserialize)]
struct File {
    format: u32,
    #[serde(default)]
    key: Key,
    #[serde(default)]
    curves: BTreeMap<String, Vec<(u32, f64)>>,
    threshold: Option<Thresholds>,
    #[serde(default = "shares_nothing")]
    together: f64,
}

fn shares_nothing() -> f64 {
    1.0
}

#[derive(Deserialize)]
struct Thresholds {
    high: u32,
    low: Option<u32>,
    confidence: Option<f64>,
}

impl Calibration {
    /// Reads the file's text. Fields that this version does not know are left alone.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: File = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if file.format != 1 {
            return Err(format!("format is {}; this version reads 1", file.format));
        }
        let mut curves = BTreeMap::new();
        for (name, points) in file.curves {
            let Some(role) = Role::parse(&name) else {
                return Err(format!("curves.{name}: not a role (speculative, throughput)"));
            };
            let curve = Curve::new(points).map_err(|why| format!("curves.{name}: {why}"))?;
            curves.insert(role, curve);
        }
        let confidence = file.threshold.as_ref().and_then(|it| it.confidence).unwrap_or(1.0);
        if !(0.0..=1.0).contains(&confidence) {
            return Err("threshold.confidence is not a number from 0 to 1".to_owned());
        }
        let thresholds = match file.threshold {
            Some(it) => Some((it.high, it.low.unwrap_or(usual_low(it.high)))),
            None => crossing(&curves).map(|high| (high, usual_low(high))),
        };
        if thresholds.is_some_and(|(high, low)| high < low) {
            return Err("threshold.low is above threshold.high".to_owned());
        }
        if !(0.0..=1.0).contains(&file.together) {
            return Err("together is not a number from 0 to 1".to_owned());
        }
        Ok(Self { key: file.key, curves, thresholds, confidence, together: file.together })
    }
}

/// Where nothing else is said: three quarters of the upper threshold.
pub fn usual_low(high: u32) -> u32 {
    high - high.div_ceil(4)
}

/// The largest number of requests at which the speculative instance alone is at least as fast,
/// having been so at every smaller number.
fn crossing(curves: &BTreeMap<Role, Curve>) -> Option<u32> {
    let speculative = curves.get(&Role::Speculative)?;
    let throughput = curves.get(&Role::Throughput)?;
    let requests_max = speculative.requests_max().max(throughput.requests_max());
    let is_faster = |&n: &u32| throughput.at(n) <= speculative.at(n);
    let count = (1..=requests_max).take_while(is_faster).count();
    u32::try_from(count).ok()
}

#[cfg(test)]
mod tests;
