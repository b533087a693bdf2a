//! The bounded waiting room: by priority, then by arrival.

use std::collections::BTreeMap;

use tokio::sync::oneshot;

use crate::config::Role;
use crate::fleet::endpoint::Tried;
use crate::fleet::lease::Lease;
use crate::policy::Ask;

/// Who goes first.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Priority {
    High,
    #[default]
    Normal,
    Low,
}

impl Priority {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "high" => Some(Self::High),
            "normal" => Some(Self::Normal),
            "low" => Some(Self::Low),
            _ => None,
        }
    }
}

/// A place in the queue.
pub type Place = (Priority, u64);

/// A request that waits.
#[derive(Debug)]
pub struct Waiter {
    pub ask: Ask,
    /// Endpoints that it could not reach.
    pub tried: Tried,
    pub sender: oneshot::Sender<Lease>,
}

#[derive(Debug, Default)]
pub struct Queue {
    waiters: BTreeMap<Place, Waiter>,
    next: u64,
}

impl Queue {
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Joins, unless there is no room for it. In a full queue it takes the place of the last one
    /// of lower priority, whose sender is dropped.
    pub fn join(&mut self, priority: Priority, waiter: Waiter, len_max: usize) -> Option<Place> {
        if len_max <= self.waiters.len() {
            let last = *self.waiters.last_key_value()?.0;
            if last.0 <= priority {
                return None;
            }
            self.waiters.remove(&last);
        }
        let place = (priority, self.next);
        self.next += 1;
        self.waiters.insert(place, waiter);
        Some(place)
    }

    pub fn leave(&mut self, place: Place) {
        self.waiters.remove(&place);
    }

    /// The first waiter that `reserve` finds a place for. What one waiter is refused is not asked
    /// again for others that want the same.
    pub fn grant<T>(
        &mut self,
        mut reserve: impl FnMut(&Waiter) -> Option<T>,
    ) -> Option<(Waiter, T)> {
        let mut refused: [bool; 3] = [false; 3];
        let mut found = None;
        for (place, waiter) in &self.waiters {
            let wish = wish_index(waiter.ask.target);
            if refused[wish] {
                continue;
            }
            if let Some(grant) = reserve(waiter) {
                found = Some((*place, grant));
                break;
            }
            refused[wish] |= waiter.tried.is_empty();
        }
        let (place, grant) = found?;
        let waiter = self.waiters.remove(&place).expect("found under the same borrow");
        Some((waiter, grant))
    }
}

fn wish_index(target: Option<Role>) -> usize {
    match target {
        None => 0,
        Some(Role::Speculative) => 1,
        Some(Role::Throughput) => 2,
    }
}

#[cfg(test)]
mod tests;
