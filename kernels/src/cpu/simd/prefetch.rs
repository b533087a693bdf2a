//! Asking for weights before they are read.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

/// Groups from the one that is read to the one that is asked for, 3 to 4 KiB.
const AHEAD: usize = 12;

/// Asks for what stands where `bytes` does, but twelve groups later. A core asks by itself only
/// within a page of memory, which is less than a tile.
#[inline(always)]
pub(super) fn prefetch(bytes: &[u8]) {
    for line in 0..bytes.len().div_ceil(64) {
        prefetch_line(bytes.as_ptr().wrapping_add(bytes.len() * AHEAD + 64 * line));
    }
}

/// Asks for the line at `at`, which may be anywhere.
#[inline(always)]
pub(super) fn prefetch_line(at: *const u8) {
    // SAFETY: every x86-64 machine has the instruction, which reads nothing and cannot fault.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
}
