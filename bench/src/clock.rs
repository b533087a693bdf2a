//! The only place that reads time.

use tokio::time::Instant;

/// Milliseconds since a fixed start, for everything that is written down.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    pub fn ms(&self) -> f64 {
        (Instant::now() - self.start).as_secs_f64() * 1e3
    }
}
