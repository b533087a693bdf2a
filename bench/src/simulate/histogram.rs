//! Quantiles of very many values in little memory: buckets that each span one per cent.

const BUCKETS: usize = 4096;
/// The lower end of the first bucket.
const LEAST: f64 = 1e-6;
const STEP: f64 = 1.01;

/// Counts of positive values; a quantile is right to one per cent.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    sum: f64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], sum: 0.0 }
    }
}

impl Histogram {
    pub fn add(&mut self, value: f64) {
        let at = (value.max(LEAST) / LEAST).ln() / STEP.ln();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at least 0, and a cast saturates"
        )]
        let bucket = (at as usize).min(BUCKETS - 1);
        self.counts[bucket] += 1;
        self.sum += value;
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// 0 of nothing.
    pub fn mean(&self) -> f64 {
        self.sum / self.count().max(1) as f64
    }

    /// The value below which `part` of all lie; 0 of nothing.
    pub fn quantile(&self, part: f64) -> f64 {
        let wanted = part * self.count() as f64;
        let mut below = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            below += count;
            if *count != 0 && wanted <= below as f64 {
                return LEAST * STEP.powf(bucket as f64 + 0.5);
            }
        }
        0.0
    }
}
