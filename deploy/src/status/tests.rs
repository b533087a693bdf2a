use super::{Fleet, Policy, Status, describe};

#[test]
fn what_the_router_says_is_shown_in_a_table() {
    let policy: Policy = serde_json::from_str(
        r#"{"kind": "switch", "high": 8, "low": 6, "mode": "speculative", "ready": true,
            "in_mode_seconds": 12.3, "total_in_flight": 3, "waiting": 1, "new_field": 7}"#,
    )
    .unwrap();
    let fleet: Fleet = serde_json::from_str(
        r#"{"endpoints": [
            {"name": "a", "role": "speculative", "address": "127.0.0.1:8101", "in_flight": 3,
             "in_flight_max": 64, "up": true, "resting": false, "draining": false},
            {"name": "b", "role": "throughput", "address": "127.0.0.1:8102", "in_flight": 0,
             "in_flight_max": 64, "up": false, "resting": true, "draining": true}]}"#,
    )
    .unwrap();
    let text = describe(&Status { policy, endpoints: fleet.endpoints });
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "ready; policy switch (above 8: throughput; at 6: speculative)");
    assert_eq!(lines[1], "mode speculative for 12 s; 3 in flight, 1 waiting");
    assert!(lines[4].starts_with("a ") && lines[4].ends_with("3/64  up"), "{text}");
    assert!(lines[5].ends_with("down, draining"), "{text}");
}
