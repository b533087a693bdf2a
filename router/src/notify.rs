//! Tells systemd how things stand, and proves to it that requests are being served.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sd_notify::NotifyState;

/// A serving thread that has not moved for this long is stuck.
const STUCK: Duration = Duration::from_secs(5);
const BEAT_EVERY: Duration = Duration::from_millis(500);

/// Says one thing; without systemd nobody hears it.
pub fn say(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot notify");
    }
}

pub fn ready() {
    say(&[NotifyState::Ready]);
}

pub fn stopping() {
    say(&[NotifyState::Stopping]);
}

/// Frames a reload, as `Type=notify-reload` asks.
pub async fn reloading(reload: impl Future<Output = ()>) {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => say(&[NotifyState::Reloading, now]),
        Err(_) => say(&[NotifyState::Reloading]),
    }
    reload.await;
    ready();
}

/// The heartbeats of the serving threads.
#[derive(Debug)]
pub struct Beats(Vec<AtomicU64>);

impl Beats {
    pub fn new(threads: usize) -> Arc<Self> {
        Arc::new(Self((0..threads).map(|_| AtomicU64::new(0)).collect()))
    }

    /// Beats for one thread until dropped. The first one also feeds the watchdog, as long as
    /// every thread has moved of late: an event loop that hangs is then restarted.
    pub async fn beat(self: Arc<Self>, thread: usize, now_ms: impl Fn() -> u64) {
        let watchdog = sd_notify::watchdog_enabled().filter(|_| thread == 0);
        let every = watchdog.map_or(BEAT_EVERY, |it| (it / 3).min(BEAT_EVERY));
        let mut ticks = tokio::time::interval(every);
        loop {
            ticks.tick().await;
            let now = now_ms();
            self.0[thread].store(now, Ordering::Relaxed);
            if watchdog.is_some() && self.all_moved(now) {
                say(&[NotifyState::Watchdog]);
            }
        }
    }

    fn all_moved(&self, now_ms: u64) -> bool {
        let stuck_ms = u64::try_from(STUCK.as_millis()).unwrap_or(u64::MAX);
        self.0.iter().all(|it| now_ms.saturating_sub(it.load(Ordering::Relaxed)) < stuck_ms)
    }
}

#[cfg(test)]
mod tests;
