//! Counts the requests within, so that the last one out ends the drain.

use std::time::Instant;

use tokio::sync::watch;

use crate::serve::overdue::{Events, Overdue, Timed};

/// Where requests enter.
#[derive(Clone, Debug)]
pub struct Gate {
    within: watch::Sender<usize>,
    pub overdue: Overdue,
}

/// A request within. Dropping it is the only way out.
#[derive(Debug)]
pub struct Pass(Gate);

impl Default for Gate {
    fn default() -> Self {
        Self { within: watch::Sender::new(0), overdue: Overdue::default() }
    }
}

impl Gate {
    pub fn enter(&self) -> Pass {
        self.within.send_modify(|count| *count += 1);
        Pass(self.clone())
    }

    pub fn within(&self) -> usize {
        *self.within.borrow()
    }

    /// Waits until nobody is within.
    pub async fn empty(&self) {
        let mut count = self.within.subscribe();
        // It cannot be closed while this sender lives.
        let _closed = count.wait_for(|it| *it == 0).await;
    }
}

impl Pass {
    /// The events of an answer, within until they end or `until` has come.
    pub fn bind(self, events: Events, until: Instant) -> Timed<Self> {
        self.0.overdue.clone().bind(events, self, until)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.within.send_modify(|count| *count -= 1);
    }
}
