//! The one word that the decision turns on: how many are in flight, which mode, since when.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::config::Role;

const TOTAL_BITS: u32 = 20;
const TOTAL_MASK: u64 = (1 << TOTAL_BITS) - 1;
const TURN_BITS: u32 = 11;
const TURN_MASK: u64 = (1 << TURN_BITS) - 1;
const MODE_BIT: u64 = 1 << (TOTAL_BITS + TURN_BITS);
const SINCE_SHIFT: u32 = 32;

/// Requests for tokens in flight, the mode, and the millisecond of its last change (which wraps
/// after 49 days: harmless, a dwell then counts anew).
///
/// Every reservation is one compare-and-swap of the whole word. A turn number in it makes sure
/// that nothing was reserved between the look and the swap, so a decision is never stale.
#[derive(Debug)]
pub struct Tally(AtomicU64);

/// The word as seen at one instant.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Seen(u64);

impl Tally {
    /// Starts with nothing in flight, in `mode`, which may change at once.
    pub fn new(mode: Role, now_ms: u64, dwell: Duration) -> Self {
        let dwell_ms = u64::try_from(dwell.as_millis()).unwrap_or(u64::MAX);
        Self(AtomicU64::new(word(0, 0, mode, now_ms.wrapping_sub(dwell_ms))))
    }

    pub fn seen(&self) -> Seen {
        Seen(self.0.load(Ordering::SeqCst))
    }

    /// Counts one more and sets the mode, if nothing changed since `seen`.
    #[must_use]
    pub fn take(&self, seen: Seen, mode: Role, now_ms: u64) -> bool {
        assert!(seen.total() < u32::MAX >> (32 - TOTAL_BITS), "a million requests in flight");
        self.swap(seen, seen.total() + 1, mode, now_ms)
    }

    /// Sets the mode, if nothing changed since `seen`.
    #[must_use]
    pub fn settle(&self, seen: Seen, mode: Role, now_ms: u64) -> bool {
        self.swap(seen, seen.total(), mode, now_ms)
    }

    /// Counts one less.
    pub fn give(&self) {
        let before = self.0.fetch_sub(1, Ordering::SeqCst);
        assert!(before & TOTAL_MASK != 0, "more requests ended than began");
    }

    fn swap(&self, seen: Seen, total: u32, mode: Role, now_ms: u64) -> bool {
        let since = if mode == seen.mode() { seen.0 >> SINCE_SHIFT } else { now_ms };
        let next = word(total, seen.turn() + 1, mode, since);
        self.0.compare_exchange(seen.0, next, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

fn word(total: u32, turn: u64, mode: Role, since_ms: u64) -> u64 {
    let mode = if mode == Role::Throughput { MODE_BIT } else { 0 };
    u64::from(total) | (turn & TURN_MASK) << TOTAL_BITS | mode | since_ms << SINCE_SHIFT
}

impl Seen {
    pub fn total(self) -> u32 {
        u32::try_from(self.0 & TOTAL_MASK).expect("masked to 20 bits")
    }

    pub fn mode(self) -> Role {
        if self.0 & MODE_BIT == 0 { Role::Speculative } else { Role::Throughput }
    }

    /// How long the mode has held.
    pub fn in_mode(self, now_ms: u64) -> Duration {
        let elapsed = (now_ms << SINCE_SHIFT).wrapping_sub(self.0 & !0xffff_ffff) >> SINCE_SHIFT;
        Duration::from_millis(elapsed)
    }

    fn turn(self) -> u64 {
        self.0 >> TOTAL_BITS & TURN_MASK
    }
}

#[cfg(test)]
mod tests;
