//! Ctrl-C, SIGTERM and a closed terminal, as one wish to stop.

use std::fs;
use std::future::pending;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What is listened to; `None` stays as it was.
#[derive(Debug)]
pub(super) struct Signals([Option<Signal>; 3]);

impl Signals {
    /// What was ignored when this program began stays so: `nohup`, and a shell's `&`, mean it.
    pub(super) fn listen() -> Result<Self, String> {
        let ignored = ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default());
        let listen = |kind: SignalKind| {
            let bit = 1_u64 << (kind.as_raw_value() - 1);
            let heard = (ignored & bit == 0).then(|| signal(kind)).transpose();
            heard.map_err(|it| format!("cannot listen to signals: {it}"))
        };
        Ok(Self([
            listen(SignalKind::interrupt())?,
            listen(SignalKind::terminate())?,
            listen(SignalKind::hangup())?,
        ]))
    }

    pub(super) async fn next(&mut self) {
        let [interrupt, terminate, hang_up] = &mut self.0;
        tokio::select! {
            () = told(interrupt) => {}
            () = told(terminate) => {}
            () = told(hang_up) => {}
        }
    }
}

async fn told(signal: &mut Option<Signal>) {
    match signal {
        Some(it) => drop(it.recv().await),
        None => pending().await,
    }
}

/// The set of signals that are ignored, as the system shows it: bit n - 1 for signal n.
fn ignored(status: &str) -> u64 {
    let set = status.lines().find_map(|it| it.strip_prefix("SigIgn:"));
    set.and_then(|it| u64::from_str_radix(it.trim(), 16).ok()).unwrap_or(0)
}
