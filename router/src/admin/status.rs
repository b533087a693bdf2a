//! The fleet and the policy as JSON.

use std::time::Instant;

use serde_json::{Value, json};

use crate::fleet::Fleet;

/// One object for each endpoint.
pub(super) fn fleet(fleet: &Fleet) -> Value {
    let live = fleet.live_owned();
    let endpoints = live.members.iter().map(|member| {
        let (spec, state) = (&member.spec, &member.state);
        json!({
            "name": &*spec.name,
            "role": spec.role.label(),
            "kind": spec.kind.label(),
            "address": spec.target.authority(),
            "in_flight": state.work(),
            "light": state.light(),
            "in_flight_max": spec.in_flight_max,
            "weight": f64::from(spec.weight_milli) / 1000.0,
            "up": state.is_up(),
            "resting": !state.is_serving(),
            "draining": state.is_draining(),
        })
    });
    json!({ "endpoints": endpoints.collect::<Vec<_>>() })
}

/// The policy, its thresholds and where it stands.
pub(super) fn policy(fleet: &Fleet, now: Instant) -> Value {
    let live = fleet.live_owned();
    let policy = &live.config.policy;
    let thresholds = policy.thresholds();
    json!({
        "kind": policy.name(),
        "high": thresholds.map(|it| it.0),
        "low": thresholds.map(|it| it.1),
        "mode": fleet.mode().label(),
        "in_mode_seconds": fleet.in_mode(now).as_secs_f64(),
        "total_in_flight": fleet.total(),
        "waiting": fleet.waiting(),
        "ready": fleet.is_ready(),
    })
}
