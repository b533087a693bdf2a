//! The fleet, the policy and the last minutes as JSON.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::history::History;
use crate::config::Role;
use crate::fleet::Fleet;
use crate::metrics::Counts;
use crate::outcome::Outcome;

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
            "models": state.models(),
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
        "replicas": live.config.replicas,
        "high": thresholds.map(|it| it.0),
        "low": thresholds.map(|it| it.1),
        "mode": fleet.mode().label(),
        "in_mode_seconds": fleet.in_mode(now).as_secs_f64(),
        "total_in_flight": fleet.total(),
        "waiting": fleet.waiting(),
        "ready": fleet.is_ready(),
    })
}

/// Everything that the page shows. `wall` is the time since 1970.
pub(super) fn whole(fleet: &Fleet, history: &History, now: Instant, wall: Duration) -> Value {
    let throughput_mode = history.samples().map(|it| u8::from(it.mode == Role::Throughput));
    let mut value = json!({
        "at": wall.as_secs_f64(),
        "policy": policy(fleet, now),
        "history": {
            "total": history.samples().map(|it| it.total).collect::<Vec<_>>(),
            "waiting": history.samples().map(|it| it.waiting).collect::<Vec<_>>(),
            "throughput_mode": throughput_mode.collect::<Vec<_>>(),
        },
    });
    let mut endpoints = self::fleet(fleet)["endpoints"].take();
    for endpoint in endpoints.as_array_mut().into_iter().flatten() {
        let name = endpoint["name"].as_str().unwrap_or_default().to_owned();
        endpoint["minute"] = minute(&history.minute(&name));
        let in_flight = history
            .samples()
            .map(|sample| sample.endpoints.iter().find(|it| *it.0 == *name).map_or(0, |it| it.1));
        endpoint["in_flight_history"] = in_flight.collect::<Vec<_>>().into();
    }
    value["endpoints"] = endpoints;
    value
}

fn minute(counts: &Counts) -> Value {
    let shares = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)];
    let millis = |it: Option<f64>| it.map(|it| (it * 1e5).round() / 100.0);
    let first = shares.map(|(name, share)| (name, millis(counts.first_token(share))));
    let between = shares.map(|(name, share)| (name, millis(counts.between_tokens(share))));
    let table = |rows: [(&str, Option<f64>); 3]| -> Map<String, Value> {
        rows.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect()
    };
    let outcomes: Map<String, Value> = Outcome::ALL
        .into_iter()
        .filter(|it| counts.outcome(*it) != 0)
        .map(|it| (it.label().to_owned(), counts.outcome(it).into()))
        .collect();
    json!({
        "routed": counts.routed,
        "outcomes": outcomes,
        "first_token_ms": table(first),
        "between_tokens_ms": table(between),
    })
}
