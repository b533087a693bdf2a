//! Counting: handles that were looked up once, so that a request hashes no label.

use std::sync::Arc;
use std::time::Duration;

use super::{Connected, EndpointMetrics, Metrics, Retry};
use crate::config::Role;
use crate::fleet::health::Finding;
use crate::outcome::Outcome;
use crate::policy::Reason;

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

impl Metrics {
    /// The handles of the endpoint of that name.
    pub fn endpoint(&self, endpoint: &str) -> EndpointMetrics {
        let routed = Role::ALL.map(|role| {
            Reason::ALL.map(|reason| {
                self.routed.with_label_values(&[endpoint, role.label(), reason.label()])
            })
        });
        let with = |family: &prometheus::IntCounterVec, label: &str| {
            family.with_label_values(&[endpoint, label])
        };
        EndpointMetrics {
            routed,
            responses: CLASSES.map(|it| with(&self.responses, it)),
            outcomes: Outcome::ALL.map(|it| with(&self.outcomes, it.label())),
            retries: ["unreachable", "stale"].map(|it| with(&self.retries, it)),
            connects: ["fresh", "failed", "reused"].map(|it| with(&self.connects, it)),
            probes: ["ready", "not_ready", "refused", "silent"].map(|it| with(&self.probes, it)),
            bytes_in: with(&self.bytes, "in"),
            bytes_out: with(&self.bytes, "out"),
            first_token: self.first_token.with_label_values(&[endpoint]),
            between_tokens: self.between_tokens.with_label_values(&[endpoint]),
            request_time: self.request_time.with_label_values(&[endpoint]),
        }
    }

    pub fn arrived(&self) {
        self.requests.inc();
    }

    pub fn refused(&self, code: &'static str) {
        self.refused.with_label_values(&[code]).inc();
    }

    pub fn waited(&self, wait: Duration) {
        self.queue_wait.observe(wait.as_secs_f64());
    }

    pub fn transition(&self, to: Role) {
        self.transitions.with_label_values(&[to.label()]).inc();
    }

    pub fn counterfactual(&self, target: Role) {
        self.counterfactual.with_label_values(&["spill", target.label()]).inc();
    }

    pub fn reloaded(&self, result: &'static str) {
        self.reloads.with_label_values(&[result]).inc();
        self.config_valid.set(i64::from(result == "ok"));
    }

    pub fn mismatch(self: &Arc<Self>, endpoint: &str, differs: bool) {
        self.endpoint_mismatch.with_label_values(&[endpoint]).set(i64::from(differs));
    }
}

impl EndpointMetrics {
    pub fn routed(&self, target: Role, reason: Reason) {
        self.routed[target as usize][reason as usize].inc();
    }

    pub fn responded(&self, status: u16) {
        let class = usize::from(status / 100).clamp(1, CLASSES.len());
        self.responses[class - 1].inc();
    }

    pub fn ended(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].inc();
    }

    pub fn retried(&self, why: Retry) {
        self.retries[why as usize].inc();
    }

    pub fn connected(&self, result: Connected) {
        self.connects[result as usize].inc();
    }

    pub fn probed(&self, finding: Finding) {
        let index = match finding {
            Finding::Ready => 0,
            Finding::NotReady => 1,
            Finding::Refused => 2,
            Finding::Silent { .. } => 3,
        };
        self.probes[index].inc();
    }
}
