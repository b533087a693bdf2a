//! The last ten minutes, one sample a second, and the counts of the last minute.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::config::Role;
use crate::fleet::Fleet;
use crate::metrics::Counts;

const SAMPLES_MAX: usize = 600;
/// Samples that still carry counts, for figures of the last minute.
const COUNTED_MAX: usize = 61;

/// One look at the fleet.
#[derive(Debug)]
pub(super) struct Sample {
    pub total: u32,
    pub waiting: usize,
    pub mode: Role,
    pub endpoints: Vec<(Arc<str>, u32, Counts)>,
}

impl Sample {
    pub(super) fn take(fleet: &Fleet) -> Self {
        let endpoints = fleet.endpoints().into_iter();
        Self {
            total: fleet.total(),
            waiting: fleet.waiting(),
            mode: fleet.mode(),
            endpoints: endpoints
                .map(|it| (Arc::clone(&it.name), it.work(), it.metrics.counts()))
                .collect(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct History {
    samples: VecDeque<Sample>,
}

impl History {
    pub(super) fn push(&mut self, sample: Sample) {
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        // Counts are only read for the last minute; the rest would be memory for nothing.
        if let Some(at) = self.samples.len().checked_sub(COUNTED_MAX + 1) {
            for endpoint in &mut self.samples[at].endpoints {
                endpoint.2 = Counts::default();
            }
        }
    }

    /// Oldest first.
    pub(super) fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter()
    }

    /// What an endpoint counted in about the last minute.
    pub(super) fn minute(&self, name: &str) -> Counts {
        let of = |sample: &Sample| {
            let found = sample.endpoints.iter().find(|it| *it.0 == *name);
            found.map(|it| it.2.clone()).unwrap_or_default()
        };
        let first = self.samples.len().saturating_sub(COUNTED_MAX);
        match (self.samples.get(first), self.samples.back()) {
            (Some(earlier), Some(latest)) => of(latest).since(&of(earlier)),
            _ => Counts::default(),
        }
    }
}

#[cfg(test)]
mod tests;
