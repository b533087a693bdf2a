//! Ways of sending requests: so many at once, or at given times.

use crate::sample::{Outcome, Sample};

pub mod closed;
pub mod open;

/// What a load saw.
#[derive(Debug)]
pub struct Run {
    pub samples: Vec<Sample>,
    /// When tokens count. Closed: while all places were taken, from the last first request sent to
    /// the first place left empty. Open: while requests came.
    pub counted_ms: (f64, f64),
}

impl Run {
    /// Tokens a second while they count.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens_per_second_of(|_| true)
    }

    /// The same of some requests only.
    pub fn tokens_per_second_of(&self, of: impl Fn(&Sample) -> bool) -> f64 {
        let (start, end) = self.counted_ms;
        let samples = self.samples.iter().filter(|it| of(it));
        // Folded from plain zero: the sum of nothing is minus zero, which tables would show.
        let tokens = samples.map(|it| it.tokens_within(start, end)).fold(0.0, |sum, it| sum + it);
        if start < end { tokens * 1e3 / (end - start) } else { 0.0 }
    }

    pub fn count(&self, outcome: Outcome) -> usize {
        self.samples.iter().filter(|it| it.outcome == outcome).count()
    }

    pub fn failures(&self) -> usize {
        self.samples.len() - self.count(Outcome::Done)
    }
}
