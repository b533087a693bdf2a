//! What is known of one endpoint, for as long as anything uses it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderValue;
use smallvec::SmallVec;

use super::breaker::{Admission, Breaker, Report};
use super::health::Health;
use crate::config::{BreakerRules, EndpointSpec};
use crate::metrics::{EndpointMetrics, Metrics};

/// Distinguishes endpoints for as long as the router runs; a name that comes back keeps its own.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct EndpointId(pub u32);

/// Endpoints that a request could not reach.
pub type Tried = SmallVec<[EndpointId; 4]>;

/// The state of an endpoint. It is matched by name, so it outlives reloads, also one that drops
/// the endpoint and one that brings it back while old requests still run.
#[derive(Debug)]
pub struct Endpoint {
    pub id: EndpointId,
    pub name: Arc<str>,
    /// The name, as answers show it.
    pub label: HeaderValue,
    pub metrics: EndpointMetrics,
    all_metrics: Arc<Metrics>,
    work: AtomicU32,
    light: AtomicU32,
    up: AtomicBool,
    draining: AtomicBool,
    /// Nothing has failed of late, so the breaker need not be asked.
    calm: AtomicBool,
    breaker: Mutex<Breaker>,
    health: Mutex<Health>,
    /// When its slow start began; 0 is "not starting".
    ramp_from_ms: AtomicU64,
    /// When it last sent a byte of an answer.
    flowed_ms: AtomicU64,
    /// The models it said it serves, in order.
    models: Mutex<Vec<String>>,
}

/// An endpoint as one configuration has it.
#[derive(Debug)]
pub struct Member {
    pub spec: EndpointSpec,
    pub state: Arc<Endpoint>,
}

impl Endpoint {
    pub fn new(id: EndpointId, name: Arc<str>, all_metrics: Arc<Metrics>) -> Self {
        Self {
            id,
            label: HeaderValue::from_str(&name).expect("names are checked to be plain"),
            metrics: all_metrics.endpoint(&name),
            all_metrics,
            name,
            work: AtomicU32::new(0),
            light: AtomicU32::new(0),
            up: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            calm: AtomicBool::new(true),
            breaker: Mutex::new(Breaker::new()),
            health: Mutex::new(Health::default()),
            ramp_from_ms: AtomicU64::new(0),
            flowed_ms: AtomicU64::new(0),
            models: Mutex::new(Vec::new()),
        }
    }

    /// Requests for tokens that it holds.
    pub fn work(&self) -> u32 {
        self.work.load(Ordering::SeqCst)
    }

    /// Other requests that it holds.
    pub fn light(&self) -> u32 {
        self.light.load(Ordering::SeqCst)
    }

    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub fn set_draining(&self, draining: bool) {
        self.draining.store(draining, Ordering::Relaxed);
    }

    /// Takes note that it is sending.
    pub fn note_flow(&self, now_ms: u64) {
        self.flowed_ms.store(now_ms, Ordering::Relaxed);
    }

    pub fn flowed_ms(&self) -> u64 {
        self.flowed_ms.load(Ordering::Relaxed)
    }

    pub fn models(&self) -> Vec<String> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_models(&self, models: Vec<String>) {
        *self.models.lock().unwrap_or_else(PoisonError::into_inner) = models;
    }

    /// Changes what is known of its health, and whether requests may go there.
    pub fn with_health<T>(&self, now_ms: u64, change: impl FnOnce(&mut Health) -> T) -> T {
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        let was_up = health.is_up();
        let answer = change(&mut health);
        if !was_up && health.is_up() && health.has_been_down() {
            self.ramp_from_ms.store(now_ms.max(1), Ordering::Relaxed);
        }
        self.up.store(health.is_up(), Ordering::Relaxed);
        answer
    }

    /// How many requests it may hold now: fewer than configured for a while after it came back.
    pub fn in_flight_max(&self, configured: u32, slow_start: Duration, now_ms: u64) -> u32 {
        let from = self.ramp_from_ms.load(Ordering::Relaxed);
        if from == 0 {
            return configured;
        }
        let ramp_ms = u64::try_from(slow_start.as_millis()).unwrap_or(u64::MAX).max(1);
        let elapsed_ms = now_ms.saturating_sub(from);
        if ramp_ms <= elapsed_ms {
            self.ramp_from_ms.store(0, Ordering::Relaxed);
            return configured;
        }
        let share = u64::from(configured) * elapsed_ms / ramp_ms;
        u32::try_from(share).unwrap_or(configured).max(1)
    }

    pub fn admission(&self, now: Instant) -> Admission {
        if self.calm.load(Ordering::Relaxed) {
            return Admission::Yes;
        }
        self.breaker().admission(now)
    }

    pub fn is_serving(&self) -> bool {
        self.calm.load(Ordering::Relaxed) || self.breaker().is_serving()
    }

    pub fn trips(&self) -> u64 {
        self.breaker().trips()
    }

    pub(super) fn try_begin(&self, now: Instant) -> bool {
        self.breaker().try_begin(now)
    }

    pub(super) fn report(&self, report: Report, trial: bool, rules: &BreakerRules, now: Instant) {
        if report != Report::Failed && self.calm.load(Ordering::Relaxed) {
            return;
        }
        let mut breaker = self.breaker();
        breaker.report(report, trial, rules, now);
        self.calm.store(breaker.is_calm(), Ordering::Relaxed);
    }

    fn breaker(&self) -> std::sync::MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more request for tokens, if it still holds `expected`.
    pub(super) fn claim(&self, expected: u32) -> bool {
        let next = expected + 1;
        self.work.compare_exchange(expected, next, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub(super) fn unclaim(&self) {
        let before = self.work.fetch_sub(1, Ordering::SeqCst);
        assert!(before != 0, "more requests ended than began");
    }

    pub(super) fn claim_light(&self) {
        self.light.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn unclaim_light(&self) {
        let before = self.light.fetch_sub(1, Ordering::SeqCst);
        assert!(before != 0, "more light requests ended than began");
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.all_metrics.forget(&self.name);
    }
}
