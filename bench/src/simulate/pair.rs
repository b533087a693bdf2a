//! From measured curves to systems: which instances there are, on how much, under which policy.

use std::time::Duration;

use router::calibration::Curve;
use router::config::Role;
use router::policy::Policy;
use router::policy::marginal::Marginal;
use router::policy::spill::Spill;
use router::policy::switch::Switch;

use super::day::{Member, System};
use super::desk::Patience;
use super::ladders::Ladder;
use super::speed::Speed;
use crate::calibration;

/// Requests on one instance, as the router's default has it.
pub const IN_FLIGHT_MAX: u32 = 256;
/// Endpoints of one router at most, in pairs.
pub const PAIRS_MAX: u32 = 32;

/// What can be compared on the same two partitions.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum Strategy {
    Switch,
    Spill,
    Marginal,
    /// The speculative instance alone.
    Speculative,
    /// The throughput instance alone.
    Throughput,
    /// Two engines that draft while that pays, load shared evenly.
    Adaptive,
    /// One such engine on both partitions together.
    One,
}

impl Strategy {
    pub const ALL: [Self; 7] = [
        Self::Switch,
        Self::Spill,
        Self::Marginal,
        Self::Speculative,
        Self::Throughput,
        Self::Adaptive,
        Self::One,
    ];

    pub fn label(self) -> &'static str {
        match self {
            Self::Switch => "switch",
            Self::Spill => "spill",
            Self::Marginal => "marginal",
            Self::Speculative => "speculative",
            Self::Throughput => "throughput",
            Self::Adaptive => "adaptive",
            Self::One => "one",
        }
    }
}

/// How a pair is cut and ruled.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// Share of both partitions that the speculative instance has; curves were measured at a half.
    pub share: f64,
    /// A partition of x times the size is x^exponent times as fast at any load.
    pub exponent: f64,
    /// What not drafting costs an engine that could.
    pub idle_cost: f64,
    pub dwell: Duration,
    pub pairs: u32,
    pub pairs_per_router: u32,
    /// Routers in front of the same pairs.
    pub replicas: u32,
}

impl Default for Cut {
    fn default() -> Self {
        Self {
            share: 0.5,
            exponent: 0.8,
            idle_cost: 0.01,
            dwell: Duration::from_secs(1),
            pairs: 1,
            pairs_per_router: PAIRS_MAX,
            replicas: 1,
        }
    }
}

fn scaled(curve: &Curve, share: f64, exponent: f64) -> Curve {
    let factor = share.powf(exponent);
    let points = (1..=IN_FLIGHT_MAX).map(|n| (n, curve.at(n) * factor)).collect();
    Curve::new(points).expect("a scaled curve is a curve")
}

impl Cut {
    /// (high, low) of one pair.
    pub fn thresholds(&self, ladder: &Ladder) -> (u32, u32) {
        // What was told holds for the partitions it was measured on.
        if let Some(told) = ladder.thresholds
            && self.share == 0.5
        {
            return told;
        }
        let (speculative, throughput) = self.curves(ladder);
        calibration::thresholds(&speculative, &throughput, IN_FLIGHT_MAX)
    }

    fn curves(&self, ladder: &Ladder) -> (Curve, Curve) {
        let shares = (2.0 * self.share, 2.0 * (1.0 - self.share));
        let speculative = scaled(&ladder.speculative, shares.0, self.exponent);
        (speculative, scaled(&ladder.throughput, shares.1, self.exponent))
    }

    pub fn system(&self, ladder: &Ladder, strategy: Strategy) -> System {
        self.system_that_believes(ladder, ladder, strategy)
    }

    /// Routers decide by the first ladder, instances are as fast as the second says.
    pub fn system_that_believes(
        &self,
        believed: &Ladder,
        ladder: &Ladder,
        strategy: Strategy,
    ) -> System {
        // Few routers with as many pairs as one takes, rather than one for each pair.
        let routers = self.pairs.div_ceil(self.pairs_per_router);
        let pairs = self.pairs.div_ceil(routers);
        let of_pair = self.members(ladder, strategy);
        let together = if of_pair.len() == 2 { ladder.together } else { 1.0 };
        let count = usize::try_from(pairs).expect("32 bits fit") * of_pair.len();
        System {
            policy: self.policy(believed, strategy, pairs),
            members: of_pair.into_iter().cycle().take(count).collect(),
            routers,
            replicas: self.replicas,
            patience: Patience::default(),
            together,
        }
    }

    /// Thresholds count the whole fleet of a router, curves one instance.
    fn policy(&self, believed: &Ladder, strategy: Strategy, pairs: u32) -> Policy {
        let (high, low) = self.thresholds(believed);
        let (high, low) = (high.saturating_mul(pairs), low.saturating_mul(pairs));
        match strategy {
            Strategy::Switch => Policy::Switch(Switch { high, low, dwell: self.dwell }),
            Strategy::Spill => Policy::Spill(Spill { high }),
            Strategy::Marginal => {
                let (speculative, throughput) = self.curves(believed);
                let together = believed.together;
                Policy::Marginal(Marginal { speculative, throughput, together })
            }
            Strategy::Speculative => Policy::Pin(Role::Speculative),
            Strategy::Throughput | Strategy::Adaptive | Strategy::One => {
                Policy::Pin(Role::Throughput)
            }
        }
    }

    /// The instances of one pair.
    fn members(&self, ladder: &Ladder, strategy: Strategy) -> Vec<Member> {
        let member = |role, speed| Member { role, in_flight_max: IN_FLIGHT_MAX, speed };
        match strategy {
            Strategy::Adaptive => {
                let half = member(Role::Throughput, self.adaptive(ladder, 1.0));
                vec![half.clone(), half]
            }
            Strategy::One => {
                let whole = member(Role::Throughput, self.adaptive(ladder, 2.0));
                vec![Member { in_flight_max: 2 * IN_FLIGHT_MAX, ..whole }]
            }
            _ => {
                let (speculative, throughput) = self.curves(ladder);
                let speed = |curve| Speed::of(curve, IN_FLIGHT_MAX);
                vec![
                    member(Role::Speculative, speed(&speculative)),
                    member(Role::Throughput, speed(&throughput)),
                ]
            }
        }
    }

    fn adaptive(&self, ladder: &Ladder, size: f64) -> Speed {
        let speculative = Speed::of(&ladder.speculative, 2 * IN_FLIGHT_MAX);
        let throughput = Speed::of(&ladder.throughput, 2 * IN_FLIGHT_MAX);
        Speed::adaptive(&speculative, &throughput, self.idle_cost).on(size, self.exponent)
    }
}
