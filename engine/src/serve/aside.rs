//! Work whose size clients decide, beside the threads that serve: for some at once, and for a time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task;
use tokio::time::timeout;

use crate::serve::answer::Refusal;

/// Places for such work.
///
/// Nobody can stop a thread that computes, so work that takes too long goes on after its request
/// was refused. It keeps its place until it ends: however many requests start it, no more threads
/// than there are places ever do such work, and while all are taken requests are refused.
#[derive(Debug)]
pub struct Aside {
    places: Arc<Semaphore>,
    time_max: Duration,
}

impl Aside {
    /// `time_max` bounds the wait for a place, and then the work.
    pub fn new(places: usize, time_max: Duration) -> Self {
        Self { places: Arc::new(Semaphore::new(places)), time_max }
    }

    /// Does `work` on what stands in the field `param`.
    pub async fn run<T: Send + 'static>(
        &self,
        param: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let place = timeout(self.time_max, Arc::clone(&self.places).acquire_owned()).await;
        let place = place.map_err(|_| Refusal::Overloaded)?;
        let place = place.expect("nobody closes it");
        let task = task::spawn_blocking(move || {
            let _place = place;
            work()
        });
        match timeout(self.time_max, task).await {
            Ok(done) => done.map_err(|_| Refusal::Failed),
            Err(_) => {
                tracing::warn!(param, "work on a request goes on beyond its time");
                Err(Refusal::field(
                    param,
                    "invalid_value",
                    format!("{param} takes too long to read"),
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests;
