//! The only reader of time. Cores take `now` as an argument; the rim asks here.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Time for measuring spans. In a test with a paused runtime it stands still with it.
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Seconds since 1970, for what is shown to people.
#[expect(clippy::disallowed_methods, reason = "this file reads the clock for all others")]
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs())
}
