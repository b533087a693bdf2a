//! Reads counts back, for the page that shows the last minute.

use prometheus::Histogram;
use prometheus::core::Metric;

use super::{BETWEEN_TOKENS_S, EndpointMetrics, FIRST_TOKEN_S};
use crate::outcome::Outcome;

/// What one endpoint has counted since the start; two of them make a span of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    pub routed: u64,
    /// By `Outcome::ALL`.
    pub outcomes: Vec<u64>,
    first_token: Vec<u64>,
    between_tokens: Vec<u64>,
}

impl EndpointMetrics {
    pub fn counts(&self) -> Counts {
        Counts {
            routed: self.routed.iter().flatten().map(prometheus::IntCounter::get).sum(),
            outcomes: self.outcomes.iter().map(prometheus::IntCounter::get).collect(),
            first_token: buckets(&self.first_token),
            between_tokens: buckets(&self.between_tokens),
        }
    }
}

/// How many observations fell at or below each edge.
fn buckets(histogram: &Histogram) -> Vec<u64> {
    let metric = histogram.metric();
    metric.get_histogram().get_bucket().iter().map(|it| it.cumulative_count()).collect()
}

impl Counts {
    #[cfg(test)]
    pub fn of_routed(routed: u64) -> Self {
        Self { routed, ..Self::default() }
    }

    /// What was counted after `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let less = |now: &[u64], before: &[u64]| -> Vec<u64> {
            let before = before.iter().copied().chain(std::iter::repeat(0));
            now.iter().zip(before).map(|(now, before)| now.saturating_sub(before)).collect()
        };
        Self {
            routed: self.routed.saturating_sub(earlier.routed),
            outcomes: less(&self.outcomes, &earlier.outcomes),
            first_token: less(&self.first_token, &earlier.first_token),
            between_tokens: less(&self.between_tokens, &earlier.between_tokens),
        }
    }

    pub fn outcome(&self, outcome: Outcome) -> u64 {
        self.outcomes.get(outcome as usize).copied().unwrap_or(0)
    }

    /// Seconds to the first token that a share of the requests did not exceed.
    pub fn first_token(&self, share: f64) -> Option<f64> {
        quantile(&self.first_token, FIRST_TOKEN_S, share)
    }

    /// Seconds between tokens that a share of them did not exceed.
    pub fn between_tokens(&self, share: f64) -> Option<f64> {
        quantile(&self.between_tokens, BETWEEN_TOKENS_S, share)
    }
}

/// Linear within its bucket, as Prometheus estimates it; None without observations below the
/// last edge.
fn quantile(cumulative: &[u64], edges: &[f64], share: f64) -> Option<f64> {
    let total = *cumulative.last()?;
    if total == 0 {
        return None;
    }
    #[expect(clippy::cast_precision_loss, reason = "an estimate for the eye")]
    let (wanted, count) = (total as f64 * share, |at: usize| cumulative[at] as f64);
    let at = (0..cumulative.len()).find(|at| wanted <= count(*at))?;
    let (low, below) = if at == 0 { (0.0, 0.0) } else { (edges[at - 1], count(at - 1)) };
    let within = count(at) - below;
    let part = if within == 0.0 { 1.0 } else { (wanted - below) / within };
    Some(low + (edges[at] - low) * part)
}

#[cfg(test)]
mod tests;
