//! A request's way in: at once where there is room, else through the queue.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::lease::Lease;
use super::{Arrival, Fleet, Live, Refusal};
use crate::clock;
use crate::queue::{Priority, Queue, Ticket, Waiter};

impl Fleet {
    /// Waits for a place. Whoever came earlier, with the same priority or a higher one, is first;
    /// a retry has waited for its turn already. Gives the place and how long that took.
    pub async fn admit(
        self: &Arc<Self>,
        live: &Live,
        arrival: Arrival,
        now: Instant,
    ) -> Result<(Lease, Duration), Refusal> {
        let mut refusal = Refusal::Overloaded;
        let is_next = arrival.ask.light || !arrival.tried.is_empty() || self.waiting() == 0;
        if is_next {
            match self.reserve(live, arrival.ask, &arrival.tried, now) {
                Ok(lease) => return Ok((lease, Duration::ZERO)),
                Err(found) => refusal = found,
            }
        }
        if arrival.until <= now {
            return Err(refusal);
        }
        let (sender, receiver) = oneshot::channel();
        let waiter = Waiter { ask: arrival.ask, tried: arrival.tried, sender };
        let seat = match self.join(live, arrival.priority, waiter, now) {
            Ok(Entry::Waits(seat)) => seat,
            Ok(Entry::Goes(lease)) => return Ok((lease, Duration::ZERO)),
            Err(found) => return Err(if is_next { refusal } else { found }),
        };
        // A place may have come free between the refusal and the joining.
        self.grant();
        let granted = tokio::time::timeout_at(arrival.until.into(), receiver).await;
        let waited = clock::now().saturating_duration_since(now);
        self.metrics.waited(waited);
        drop(seat);
        match granted {
            Ok(Ok(lease)) => Ok((lease, waited)),
            Ok(Err(_displaced)) => Err(Refusal::Overloaded),
            Err(_elapsed) => Err(if self.is_able() { Refusal::Overloaded } else { Refusal::Down }),
        }
    }

    /// Joins the queue. Those who fill it may all wait for something else, so what has room goes
    /// at once: it is not turned away, and turns nobody out.
    fn join(
        self: &Arc<Self>,
        live: &Live,
        priority: Priority,
        waiter: Waiter,
        now: Instant,
    ) -> Result<Entry, Refusal> {
        let len_max = live.config.queue.waiting_max;
        let mut refusal = Refusal::Overloaded;
        let mut queue = self.queue();
        if len_max <= queue.len() && !queue.is_behind(priority, waiter.ask) {
            match self.reserve(live, waiter.ask, &waiter.tried, now) {
                Ok(lease) => return Ok(Entry::Goes(lease)),
                Err(found) => refusal = found,
            }
        }
        let ticket = queue.join(priority, waiter, len_max);
        self.waiting.store(queue.len(), Ordering::SeqCst);
        drop(queue);
        let ticket = ticket.map_err(|_| refusal)?;
        Ok(Entry::Waits(Seat { fleet: Arc::clone(self), ticket }))
    }

    /// Gives free places to those who wait.
    pub(crate) fn wake(self: &Arc<Self>) {
        if self.waiting() != 0 {
            self.grant();
        }
    }

    pub(super) fn grant(self: &Arc<Self>) {
        let live = self.live_owned();
        loop {
            let now = clock::now();
            let mut queue = self.queue();
            let found = queue.grant(|it| self.reserve(&live, it.ask, &it.tried, now).ok());
            self.waiting.store(queue.len(), Ordering::SeqCst);
            // Outside the lock, since a lease that nobody takes wakes the next.
            drop(queue);
            let Some((waiter, lease)) = found else { return };
            drop(waiter.sender.send(lease));
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the queue has for one who comes to it.
#[derive(Debug)]
enum Entry {
    Goes(Lease),
    Waits(Seat),
}

/// A place in the queue, left by drop.
#[derive(Debug)]
struct Seat {
    fleet: Arc<Fleet>,
    ticket: Ticket,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut queue = self.fleet.queue();
        queue.leave(self.ticket);
        self.fleet.waiting.store(queue.len(), Ordering::SeqCst);
    }
}
