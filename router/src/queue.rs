//! The bounded waiting room: by priority, then by arrival.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use tokio::sync::oneshot;

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

/// When its holder's turn is.
pub type Ticket = (Priority, u64);

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
    waiters: BTreeMap<Ticket, Waiter>,
    next: u64,
}

impl Queue {
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Joins; without room for it the waiter comes back. In a full queue it takes the place of the
    /// last one of lower priority, whose sender is dropped.
    pub fn join(
        &mut self,
        priority: Priority,
        waiter: Waiter,
        len_max: usize,
    ) -> Result<Ticket, Waiter> {
        if len_max <= self.waiters.len() {
            let last = self.waiters.last_key_value().map(|it| *it.0);
            let Some(last) = last.filter(|it| priority < it.0) else { return Err(waiter) };
            self.waiters.remove(&last);
        }
        let ticket = (priority, self.next);
        self.next += 1;
        self.waiters.insert(ticket, waiter);
        Ok(ticket)
    }

    /// Does anybody of that priority or a higher one wait for the same?
    pub fn is_behind(&self, priority: Priority, ask: Ask) -> bool {
        let mut ahead = self.waiters.iter().take_while(|(ticket, _)| ticket.0 <= priority);
        ahead.any(|(_, waiter)| waiter.ask == ask)
    }

    pub fn leave(&mut self, ticket: Ticket) {
        self.waiters.remove(&ticket);
    }

    /// The first waiter that `reserve` finds a place for. What one waiter is refused is not asked
    /// again for others that want the same.
    pub fn grant<T>(
        &mut self,
        mut reserve: impl FnMut(&Waiter) -> Option<T>,
    ) -> Option<(Waiter, T)> {
        // Few things can be asked for, so this holds few.
        let mut refused: SmallVec<[Ask; 6]> = SmallVec::new();
        let mut found = None;
        for (ticket, waiter) in &self.waiters {
            if refused.contains(&waiter.ask) {
                continue;
            }
            if let Some(grant) = reserve(waiter) {
                found = Some((*ticket, grant));
                break;
            }
            if waiter.tried.is_empty() {
                refused.push(waiter.ask);
            }
        }
        let (ticket, grant) = found?;
        let waiter = self.waiters.remove(&ticket).expect("found under the same borrow");
        Some((waiter, grant))
    }
}

#[cfg(test)]
mod tests;
