//! Counts the requests within, so that the last one out ends the drain.

use tokio::sync::watch;

/// Where requests enter.
#[derive(Clone, Debug)]
pub struct Gate(watch::Sender<usize>);

/// A request within. Dropping it is the only way out.
#[derive(Debug)]
pub struct Pass(watch::Sender<usize>);

impl Default for Gate {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Gate {
    pub fn enter(&self) -> Pass {
        self.0.send_modify(|count| *count += 1);
        Pass(self.0.clone())
    }

    pub fn within(&self) -> usize {
        *self.0.borrow()
    }

    /// Waits until nobody is within.
    pub async fn empty(&self) {
        let mut count = self.0.subscribe();
        // It cannot be closed while this sender lives.
        let _closed = count.wait_for(|it| *it == 0).await;
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
