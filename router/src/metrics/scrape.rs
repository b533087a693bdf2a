//! What is read only when somebody asks: gauges from the fleet, then the text.

use std::time::Instant;

use prometheus::{Encoder, TextEncoder};

use super::Metrics;
use crate::config::Role;
use crate::fleet::Fleet;

impl Metrics {
    /// The exposition, with the fleet's state as of `now`.
    pub fn text(&self, fleet: &Fleet, now: Instant) -> String {
        self.sample(fleet, now);
        let mut text = Vec::new();
        let encoded = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        encoded.expect("families encode into memory");
        String::from_utf8(text).expect("the exposition is text")
    }

    fn sample(&self, fleet: &Fleet, now: Instant) {
        let live = fleet.live_owned();
        self.total_in_flight.set(i64::from(fleet.total()));
        self.queue_waiting.set(i64::try_from(fleet.waiting()).unwrap_or(i64::MAX));
        let mode = fleet.mode();
        for role in Role::ALL {
            let labels = &[role.label()];
            self.mode.with_label_values(labels).set(i64::from(role == mode));
            let seconds = std::time::Duration::from_millis(fleet.mode_millis(role, now));
            self.mode_seconds.with_label_values(labels).set(seconds.as_secs_f64());
        }
        if let Some((high, low)) = live.config.policy.thresholds() {
            self.threshold.with_label_values(&["high"]).set(i64::from(high));
            self.threshold.with_label_values(&["low"]).set(i64::from(low));
        } else {
            self.threshold.reset();
        }
        for family in [
            &self.in_flight,
            &self.endpoint_up,
            &self.endpoint_resting,
            &self.endpoint_draining,
            &self.breaker_trips,
        ] {
            family.reset();
        }
        for endpoint in fleet.endpoints() {
            let name = &*endpoint.name;
            let in_flight = |class| self.in_flight.with_label_values(&[name, class]);
            in_flight("work").set(i64::from(endpoint.work()));
            in_flight("light").set(i64::from(endpoint.light()));
            let flag = |family: &prometheus::IntGaugeVec, on: bool| {
                family.with_label_values(&[name]).set(i64::from(on));
            };
            flag(&self.endpoint_up, endpoint.is_up());
            flag(&self.endpoint_resting, !endpoint.is_serving());
            flag(&self.endpoint_draining, endpoint.is_draining());
            let trips = i64::try_from(endpoint.trips()).unwrap_or(i64::MAX);
            self.breaker_trips.with_label_values(&[name]).set(trips);
        }
        let millis = std::time::Duration::from_millis(fleet.millis(now));
        self.uptime.set(millis.as_secs_f64());
    }
}
