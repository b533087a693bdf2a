use super::*;

#[test]
fn a_mode_that_does_not_fit_the_role_is_named() {
    for (role, mode, fits) in [
        (Role::Speculative, Some("eagle3"), true),
        (Role::Speculative, Some("ngram"), true),
        (Role::Speculative, Some("baseline"), false),
        (Role::Speculative, None, true),
        (Role::Throughput, Some("baseline"), true),
        (Role::Throughput, Some("eagle3"), false),
        (Role::Throughput, None, true),
    ] {
        assert_eq!(mode_mismatch(role, mode).is_none(), fits, "{role:?} {mode:?}");
    }
}

#[test]
fn load_reports_old_and_new_are_read() {
    let rich = r#"{"server_load": 3, "running": 2, "waiting": 1, "kv_usage": 0.5,
        "mode": "eagle3", "model": "m", "draining": false}"#;
    let mode = |text| serde_json::from_str::<LoadReport>(text).unwrap().mode;
    assert_eq!(mode(rich).as_deref(), Some("eagle3"));
    assert_eq!(mode(r#"{"server_load": 7}"#), None);
}
