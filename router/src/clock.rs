//! The only reader of time: everything else takes `now` as an argument.

use std::time::{Instant, SystemTime};

/// The instant of tokio's clock, so that paused tests and the simulator govern it.
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// The wall clock, for logs only.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
pub fn wall() -> SystemTime {
    SystemTime::now()
}
