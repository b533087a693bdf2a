//! The one place of this crate that reads time.

use tokio::time::Instant;

/// Follows tokio's clock, so that a paused test governs it.
pub(crate) fn now() -> Instant {
    Instant::now()
}
