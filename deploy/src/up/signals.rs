//! Ctrl-C, SIGTERM and a closed terminal, as one wish to stop.

use std::fs;
use std::future::pending;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What is listened to.
#[derive(Debug)]
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` where a closed terminal is no wish to stop.
    hang_up: Option<Signal>,
}

impl Signals {
    /// A closed terminal that was ignored when this program began stays so: `nohup` means it. A
    /// script's `&` has Ctrl-C ignored too, but who sends that by name wants an end.
    pub(super) fn listen() -> Result<Self, String> {
        let listen = |kind| signal(kind).map_err(|it| format!("cannot listen to signals: {it}"));
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hang_up = SignalKind::hangup();
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: (!is_ignored(hang_up, &status)).then(|| listen(hang_up)).transpose()?,
        })
    }

    pub(super) async fn next(&mut self) {
        let hang_up = async {
            match &mut self.hang_up {
                Some(it) => it.recv().await,
                None => pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = hang_up => {}
        }
    }
}

/// As the system shows the set of ignored signals: bit n - 1 for signal n.
fn is_ignored(kind: SignalKind, status: &str) -> bool {
    let set = status.lines().find_map(|it| it.strip_prefix("SigIgn:"));
    let set = set.and_then(|it| u64::from_str_radix(it.trim(), 16).ok()).unwrap_or(0);
    set >> (kind.as_raw_value() - 1) & 1 == 1
}
