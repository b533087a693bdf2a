//! A closed loop: so many requests are kept in flight until a number of them is through.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::task::JoinSet;

use super::Run;
use crate::client::{Ask, Client, Target};

/// One run of the loop.
#[derive(Clone, Copy, Debug)]
pub struct Closed {
    pub concurrency: u32,
    pub requests: u32,
}

impl Closed {
    /// Sends `requests` requests, `concurrency` at a time; `ask(i)` makes the i-th.
    pub async fn run<F>(self, client: &Client, target: &Target, ask: F) -> Run
    where
        F: Fn(u32) -> Ask + Send + Sync + 'static,
    {
        let next = Arc::new(AtomicU32::new(0));
        let ask = Arc::new(ask);
        let target = Arc::new(target.clone());
        let mut places = JoinSet::new();
        for _ in 0..self.concurrency {
            let (next, ask, target) = (Arc::clone(&next), Arc::clone(&ask), Arc::clone(&target));
            let client = client.clone();
            places.spawn(async move {
                let mut samples = Vec::new();
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if self.requests <= index {
                        return (samples, client.clock().ms());
                    }
                    let now = client.clock().ms();
                    let mut sample = client.run(&target, &ask(index), now).await;
                    sample.concurrency = self.concurrency;
                    samples.push(sample);
                }
            });
        }
        let mut run = Run { samples: Vec::new(), counted_ms: (0.0, f64::INFINITY) };
        while let Some(place) = places.join_next().await {
            let (samples, empty_ms) = place.expect("a place neither panics nor is cancelled");
            if let Some(first) = samples.first() {
                run.counted_ms.0 = run.counted_ms.0.max(first.sent_ms);
            }
            run.counted_ms.1 = run.counted_ms.1.min(empty_ms);
            run.samples.extend(samples);
        }
        run
    }
}
