//! One router of the simulation: the real policy over counts, and a bounded queue.

use std::collections::VecDeque;
use std::time::Duration;

use router::config::Role;
use router::policy::{Ask, Candidate, Load, Policy, Verdict};

use super::instance::Request;

/// What the router's own configuration says of waiting.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub waiting_max: usize,
    pub wait_s_max: f64,
}

impl Default for Patience {
    fn default() -> Self {
        Self { waiting_max: 1024, wait_s_max: 30.0 }
    }
}

/// What becomes of a request that arrives.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Placed {
    /// On this candidate.
    At(usize),
    Waits,
    Shed,
}

/// Counts in flight by candidate, as a router does.
#[derive(Clone, Debug)]
pub struct Desk {
    policy: Policy,
    candidates: Vec<Candidate>,
    total: u32,
    mode: Role,
    mode_since_s: f64,
    switches: u64,
    waiting: VecDeque<Request>,
    patience: Patience,
}

impl Desk {
    pub fn new(policy: Policy, candidates: Vec<Candidate>, patience: Patience) -> Self {
        let mode = policy.mode(0, Role::Speculative, Duration::MAX);
        Self {
            policy,
            candidates,
            total: 0,
            mode,
            mode_since_s: f64::NEG_INFINITY,
            switches: 0,
            waiting: VecDeque::new(),
            patience,
        }
    }

    pub fn arrive(&mut self, request: Request, now_s: f64) -> Placed {
        if self.waiting.is_empty()
            && let Some(at) = self.reserve(now_s)
        {
            return Placed::At(at);
        }
        if self.patience.waiting_max <= self.waiting.len() {
            return Placed::Shed;
        }
        self.waiting.push_back(request);
        Placed::Waits
    }

    pub fn release(&mut self, candidate: usize) {
        self.candidates[candidate].in_flight -= 1;
        self.total -= 1;
    }

    /// Who has waited too long, if anyone.
    pub fn expired(&mut self, now_s: f64) -> Option<Request> {
        let first = self.waiting.front()?;
        if now_s - first.arrived_s < self.patience.wait_s_max {
            return None;
        }
        self.waiting.pop_front()
    }

    /// Who may go on now, and where.
    pub fn grant(&mut self, now_s: f64) -> Option<(usize, Request)> {
        let first = *self.waiting.front()?;
        let at = self.reserve(now_s)?;
        self.waiting.pop_front();
        Some((at, first))
    }

    pub fn switches(&self) -> u64 {
        self.switches
    }

    fn reserve(&mut self, now_s: f64) -> Option<usize> {
        let in_mode = Duration::try_from_secs_f64(now_s - self.mode_since_s);
        let load = Load {
            total: self.total,
            mode: self.mode,
            in_mode: in_mode.unwrap_or(Duration::MAX),
            candidates: &self.candidates,
        };
        let decision = self.policy.decide(Ask { target: None, light: false }, &load);
        if decision.mode != self.mode {
            (self.mode, self.mode_since_s) = (decision.mode, now_s);
            self.switches += 1;
        }
        let Verdict::Go { at, .. } = decision.verdict else { return None };
        self.candidates[at].in_flight += 1;
        self.total += 1;
        Some(at)
    }
}
