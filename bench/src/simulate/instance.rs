//! One instance: all its requests advance together, each at an equal part of its speed.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::speed::Speed;

/// One request on its way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    pub id: u64,
    pub arrived_s: f64,
    pub tokens: u32,
    /// Who sent it and waits for it, in a closed loop.
    pub client: Option<u32>,
    /// The router that placed it.
    pub desk: usize,
}

/// A request that runs, in order of when it ends.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Running {
    /// Progress of the instance at which it ends.
    end: f64,
    request: Request,
}

impl Eq for Running {}

impl Ord for Running {
    fn cmp(&self, other: &Self) -> Ordering {
        self.end.total_cmp(&other.end).then(self.request.id.cmp(&other.request.id))
    }
}

impl PartialOrd for Running {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Progress counts the tokens that a request present all the time would have got: then a request
/// ends at a progress known when it comes, and an arrival changes nobody else's.
#[derive(Clone, Debug)]
pub struct Instance {
    speed: Speed,
    running: BinaryHeap<Reverse<Running>>,
    progress: f64,
    /// The time up to which progress is reckoned.
    at_s: f64,
    served: f64,
    /// Share of its speed that it has at the moment.
    pace: f64,
    /// Changes with everything that moves the next end.
    turn: u64,
}

impl Instance {
    pub fn new(speed: Speed) -> Self {
        Self {
            speed,
            running: BinaryHeap::new(),
            progress: 0.0,
            at_s: 0.0,
            served: 0.0,
            pace: 1.0,
            turn: 0,
        }
    }

    pub fn is_busy(&self) -> bool {
        !self.running.is_empty()
    }

    /// Has so much of its speed from now on; true when that is another share than before.
    pub fn set_pace(&mut self, pace: f64, now_s: f64) -> bool {
        if self.pace == pace {
            return false;
        }
        self.advance(now_s);
        self.pace = pace;
        self.turn += 1;
        true
    }

    pub fn admit(&mut self, request: Request, now_s: f64) {
        self.advance(now_s);
        let end = self.progress + f64::from(request.tokens);
        self.running.push(Reverse(Running { end, request }));
        self.turn += 1;
    }

    /// When the next request ends if none comes, and the turn for which that holds.
    pub fn next_end(&self) -> Option<(f64, u64)> {
        let first = self.running.peek()?.0;
        let rate = self.total() / self.running.len() as f64;
        Some((self.at_s + (first.end - self.progress).max(0.0) / rate, self.turn))
    }

    /// Takes out the request that ends now; `None` when things have changed since `turn`.
    pub fn finish(&mut self, turn: u64, now_s: f64) -> Option<Request> {
        if turn != self.turn {
            return None;
        }
        self.advance(now_s);
        let Reverse(done) = self.running.pop()?;
        // No drift: this is what the progress is, whatever the sum of small steps says.
        self.progress = done.end;
        self.turn += 1;
        Some(done.request)
    }

    /// Tokens made until `now_s`.
    pub fn served(&mut self, now_s: f64) -> f64 {
        self.advance(now_s);
        self.served
    }

    fn total(&self) -> f64 {
        self.speed.total(self.running.len()) * self.pace
    }

    fn advance(&mut self, now_s: f64) {
        let count = self.running.len();
        if 0 < count {
            let made = self.total() * (now_s - self.at_s);
            self.served += made;
            self.progress += made / count as f64;
        }
        self.at_s = now_s;
    }
}
