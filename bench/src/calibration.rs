//! The calibration file as it is written: what was measured, and the threshold that follows.

use std::collections::BTreeMap;

use router::calibration::{Calibration, Curve};
use router::config::Role;
use serde::{Deserialize, Serialize};

/// Points of a curve: requests in flight on one instance, total tokens a second.
pub type Points = Vec<(u32, f64)>;

/// What the figures hold for.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Key {
    pub model: String,
    pub quantisation: String,
    pub device: String,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Threshold {
    pub high: u32,
    pub low: u32,
    /// How sure it is that the instances differ as told on both sides of `high`; 0 to 1.
    pub confidence: f64,
}

/// The whole file; ARCHITECTURE.md has an example.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct File {
    pub format: u32,
    #[serde(default)]
    pub key: Key,
    /// UTC, to the second.
    #[serde(default)]
    pub measured: String,
    pub curves: BTreeMap<String, Points>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<Threshold>,
    /// Speed of both instances at work over the sum of each alone: below 1 where they share
    /// cores, memory or power.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub together: Option<f64>,
    /// (decoding requests at most, drafts); beyond the last none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depth: Vec<(u32, u32)>,
}

impl File {
    /// Curves alone.
    pub fn of(speculative: Points, throughput: Points) -> Self {
        let named = |role: Role, points| (role.label().to_owned(), points);
        Self {
            format: 1,
            key: Key::default(),
            measured: String::new(),
            curves: BTreeMap::from([
                named(Role::Speculative, speculative),
                named(Role::Throughput, throughput),
            ]),
            threshold: None,
            together: None,
            depth: Vec::new(),
        }
    }

    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("names are strings and speeds are finite") + "\n"
    }

    /// The file as the router reads it.
    pub fn read_by_router(&self) -> Result<Calibration, String> {
        Calibration::parse(&self.text())
    }
}

/// (high, low) as the router derives them from two curves that are looked at up to
/// `in_flight_max`.
pub fn thresholds(speculative: &Curve, throughput: &Curve, in_flight_max: u32) -> (u32, u32) {
    let points = |curve: &Curve| (1..=in_flight_max).map(|n| (n, curve.at(n))).collect();
    let read = File::of(points(speculative), points(throughput)).read_by_router();
    read.expect("points of a curve make a curve").thresholds.expect("both curves are there")
}
