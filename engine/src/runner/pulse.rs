//! A sign of life of the thread that owns the loop, for the watchdog.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the turns of the loop; an odd count means that it waits for work.
#[derive(Clone, Debug, Default)]
pub struct Pulse(Arc<AtomicU64>);

/// What was seen of a pulse.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beat(u64);

impl Pulse {
    pub fn turn(&self) {
        self.0.fetch_add(2, Ordering::Relaxed);
    }

    pub fn rest(&self) {
        self.0.fetch_or(1, Ordering::Relaxed);
    }

    pub fn wake(&self) {
        self.0.fetch_and(!1, Ordering::Relaxed);
    }

    pub fn beat(&self) -> Beat {
        Beat(self.0.load(Ordering::Relaxed))
    }

    /// Whether the loop has moved since `before`, or rests.
    pub fn lives_since(&self, before: Beat) -> bool {
        let now = self.beat();
        now != before || now.0 % 2 == 1
    }
}

#[cfg(test)]
mod tests;
