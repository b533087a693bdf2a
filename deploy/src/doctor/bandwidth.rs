//! Reads memory as fast as plain code can: a rough floor of what the machine gives.

use std::hint::black_box;
use std::thread;

use crate::clock;

/// Far beyond any cache that one core has to itself.
const WORDS: usize = (128 << 20) / 8;
const PASSES: usize = 3;

/// Bytes a second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bandwidth {
    pub(super) one: f64,
    pub(super) all: f64,
}

/// By one thread, then by `threads` at once, with at most half of `available` bytes. Takes about a
/// second. `None` where not even one thread could.
pub(super) fn measure(threads: usize, available: u64) -> Option<Bandwidth> {
    let fit = usize::try_from(available / 2 / (8 * WORDS as u64)).unwrap_or(usize::MAX);
    (0 < fit).then(|| Bandwidth { one: read_by(1), all: read_by(threads.clamp(1, fit.min(64))) })
}

fn read_by(threads: usize) -> f64 {
    let buffers: Vec<Vec<u64>> = (0..threads).map(|at| vec![at as u64 + 1; WORDS]).collect();
    let pass = |_| {
        let began = clock::now();
        thread::scope(|scope| {
            for buffer in &buffers {
                scope.spawn(|| black_box(sum(buffer)));
            }
        });
        let seconds = (clock::now() - began).as_secs_f64().max(1e-6);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let bytes = (threads * WORDS * 8) as f64;
        bytes / seconds
    };
    (0..PASSES).map(pass).fold(0.0, f64::max)
}

/// Eight sums, so that none waits for the one before.
fn sum(words: &[u64]) -> u64 {
    let mut sums = [0_u64; 8];
    for eight in words.chunks_exact(8) {
        for (sum, word) in sums.iter_mut().zip(eight) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}
