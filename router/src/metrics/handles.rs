//! Counting: handles that were looked up once, so that a request hashes no label.

use std::sync::Arc;
use std::time::Duration;

use super::{Connected, EndpointMetrics, Metrics, Retry};
use crate::config::Role;
use crate::fleet::health::Finding;
use crate::outcome::Outcome;
use crate::policy::Reason;

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
const RETRIES: [&str; 2] = ["unreachable", "stale"];
const CONNECTS: [&str; 3] = ["fresh", "failed", "reused"];
const PROBES: [&str; 4] = ["ready", "not_ready", "refused", "silent"];
const DIRECTIONS: [&str; 2] = ["in", "out"];

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
            retries: RETRIES.map(|it| with(&self.retries, it)),
            connects: CONNECTS.map(|it| with(&self.connects, it)),
            probes: PROBES.map(|it| with(&self.probes, it)),
            bytes_in: with(&self.bytes, DIRECTIONS[0]),
            bytes_out: with(&self.bytes, DIRECTIONS[1]),
            first_token: self.first_token.with_label_values(&[endpoint]),
            between_tokens: self.between_tokens.with_label_values(&[endpoint]),
            request_time: self.request_time.with_label_values(&[endpoint]),
        }
    }

    /// Drops the series of an endpoint that is gone.
    pub fn forget(&self, endpoint: &str) {
        let drop_series = |family: &prometheus::IntCounterVec, labels: &[&str]| {
            // A series that was never made need not be dropped.
            drop(family.remove_label_values(labels));
        };
        for role in Role::ALL {
            for reason in Reason::ALL {
                drop_series(&self.routed, &[endpoint, role.label(), reason.label()]);
            }
        }
        let outcomes = Outcome::ALL.map(Outcome::label);
        let families: [(&prometheus::IntCounterVec, &[&str]); 6] = [
            (&self.responses, &CLASSES),
            (&self.outcomes, &outcomes),
            (&self.retries, &RETRIES),
            (&self.connects, &CONNECTS),
            (&self.probes, &PROBES),
            (&self.bytes, &DIRECTIONS),
        ];
        for (family, labels) in families {
            for label in labels {
                drop_series(family, &[endpoint, label]);
            }
        }
        for family in [&self.first_token, &self.between_tokens, &self.request_time] {
            drop(family.remove_label_values(&[endpoint]));
        }
        drop(self.endpoint_mismatch.remove_label_values(&[endpoint]));
    }

    pub fn arrived(&self) {
        self.requests.inc();
    }

    pub fn refused(&self, code: &'static str) {
        self.refused.with_label_values(&[code]).inc();
    }

    /// How many requests were refused with that code.
    pub fn refusals(&self, code: &str) -> u64 {
        self.refused.with_label_values(&[code]).get()
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
