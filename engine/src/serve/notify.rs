//! Tells systemd, if it started this process, how it stands.

use sd_notify::NotifyState;

use crate::runner::pulse::Pulse;

pub fn ready() {
    tell(&[NotifyState::Ready]);
}

pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Feeds the watchdog for as long as the loop moves or rests; does nothing without a watchdog.
pub async fn feed(pulse: Pulse) {
    let Some(interval) = sd_notify::watchdog_enabled() else {
        return std::future::pending().await;
    };
    let mut ticks = tokio::time::interval(interval / 3);
    let mut before = pulse.beat();
    loop {
        ticks.tick().await;
        if pulse.lives_since(before) {
            tell(&[NotifyState::Watchdog]);
        }
        before = pulse.beat();
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot tell systemd");
    }
}
