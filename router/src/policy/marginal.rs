//! Sends the next request where it adds most tokens a second, by measured curves.

use super::{Candidate, Reason, Verdict};
use crate::calibration::Curve;
use crate::config::Role;

/// One curve for each role: total tokens a second of one instance by requests in flight on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Marginal {
    pub speculative: Curve,
    pub throughput: Curve,
    /// Speed of both instances of a pair at work over the sum of each alone; 1 when they share
    /// nothing.
    pub together: f64,
}

impl Marginal {
    pub(super) fn place(&self, candidates: &[Candidate]) -> Verdict {
        if candidates.is_empty() {
            return Verdict::Down;
        }
        let mut best: Option<(usize, f64, f64)> = None;
        for (at, candidate) in candidates.iter().enumerate() {
            if !candidate.has_room() {
                continue;
            }
            let curve = self.curve(candidate.role);
            let after = candidate.in_flight.saturating_add(1);
            let gain = self.gain(candidate, candidates);
            // Where curves are flat the request goes where it will itself be fastest.
            let own = curve.at(after) / f64::from(after);
            let is_better = best.is_none_or(|(_, best_gain, best_own)| {
                best_gain < gain || (best_gain == gain && best_own < own)
            });
            if is_better {
                best = Some((at, gain, own));
            }
        }
        match best {
            Some((at, ..)) => Verdict::Go { at, reason: Reason::Marginal },
            None => Verdict::Full,
        }
    }

    /// Tokens a second that one more request adds. The first request of an idle role also slows
    /// the other role down: as if all were the pair of its busiest instance.
    fn gain(&self, candidate: &Candidate, candidates: &[Candidate]) -> f64 {
        let gain = self.curve(candidate.role).gain(candidate.in_flight);
        let busy = |it: &&Candidate| 0 < it.in_flight;
        if candidates.iter().filter(busy).any(|it| it.role == candidate.role) {
            return gain;
        }
        let speed = |it: &Candidate| self.curve(it.role).at(it.in_flight);
        let other = candidates.iter().filter(busy).map(speed).fold(0.0, f64::max);
        if other == 0.0 { gain } else { self.together * (other + gain) - other }
    }

    fn curve(&self, role: Role) -> &Curve {
        match role {
            Role::Speculative => &self.speculative,
            Role::Throughput => &self.throughput,
        }
    }
}
