//! The only place that reads time.

use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SecondsFormat};
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

/// The date and time in UTC to the second, as `2026-11-29T20:00:00Z`.
#[expect(clippy::disallowed_methods, reason = "this file reads the clock for all others")]
pub fn utc() -> String {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(elapsed.as_secs()).unwrap_or(i64::MAX);
    let time = DateTime::from_timestamp(seconds, 0).unwrap_or_default();
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// Nanoseconds of the clock that all programs of a machine share.
#[expect(clippy::disallowed_methods, reason = "this file reads the clock for all others")]
pub fn unix_ns() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}
