//! An open loop: requests are sent when they are due, whatever became of those before.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Run;
use crate::arrivals::{Arrivals, Shape};
use crate::client::{Ask, Client, Target};

/// One run of the loop.
#[derive(Clone, Debug)]
pub struct Open {
    pub shape: Shape,
    pub seconds: f64,
    /// What this client keeps open at most. Beyond it requests are sent late, and since latency
    /// counts from when they were due, nothing of the delay is omitted.
    pub in_flight_max: usize,
    pub seed: u64,
}

impl Open {
    /// Sends what is due within the time, and waits for all answers; `ask(i)` makes the i-th.
    pub async fn run<F>(self, client: &Client, target: &Target, ask: F) -> Run
    where
        F: Fn(u32) -> Ask,
    {
        let places = Arc::new(Semaphore::new(self.in_flight_max));
        let target = Arc::new(target.clone());
        let start_ms = client.clock().ms();
        let mut run =
            Run { samples: Vec::new(), counted_ms: (start_ms, start_ms + self.seconds * 1e3) };
        let mut running = JoinSet::new();
        let times = Arrivals::new(self.shape, self.seed).take_while(|it| *it < self.seconds);
        for (index, at_s) in (0..).zip(times) {
            let due_ms = start_ms + at_s * 1e3;
            sleep(Duration::from_secs_f64((due_ms - client.clock().ms()).max(0.0) / 1e3)).await;
            let place = Arc::clone(&places).acquire_owned().await.expect("nobody closes it");
            let (client, target, ask) = (client.clone(), Arc::clone(&target), ask(index));
            running.spawn(async move {
                let sample = client.run(&target, &ask, due_ms).await;
                drop(place);
                sample
            });
            while let Some(done) = running.try_join_next() {
                run.samples.push(done.expect("a request neither panics nor is cancelled"));
            }
        }
        while let Some(done) = running.join_next().await {
            run.samples.push(done.expect("a request neither panics nor is cancelled"));
        }
        run
    }
}

#[cfg(test)]
pub(crate) mod tests;
