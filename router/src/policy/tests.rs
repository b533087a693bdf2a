use std::time::Duration;

use proptest::prelude::*;

use super::marginal::Marginal;
use super::spill::Spill;
use super::switch::Switch;
use super::*;
use crate::calibration::Curve;

const DWELL: Duration = Duration::from_secs(1);
const WORK: Ask = Ask { target: None, light: false };

fn switch(high: u32, low: u32) -> Policy {
    Policy::Switch(Switch { high, low, dwell: DWELL })
}

fn marginal() -> Policy {
    let speculative = Curve::new(vec![(1, 96.0), (4, 240.0), (8, 300.0), (16, 280.0)]).unwrap();
    let throughput = Curve::new(vec![(1, 54.0), (16, 640.0), (64, 773.0)]).unwrap();
    Policy::Marginal(Marginal { speculative, throughput, together: 1.0 })
}

fn candidate(role: Role, in_flight: u32, in_flight_max: u32) -> Candidate {
    Candidate { role, in_flight, in_flight_max, weight_milli: 1000 }
}

fn pair(speculative: u32, throughput: u32) -> Vec<Candidate> {
    vec![candidate(Role::Speculative, speculative, 10), candidate(Role::Throughput, throughput, 10)]
}

/// The choice as "role reason", for a fleet in `mode` since long ago.
fn check(policy: &Policy, ask: Ask, mode: Role, candidates: &[Candidate], expected: &str) {
    let total = candidates.iter().map(|it| it.in_flight).sum();
    let load = Load { total, mode, in_mode: Duration::MAX, candidates };
    let found = match policy.decide(ask, &load).verdict {
        Verdict::Go { at, reason } => {
            format!("{} {}", candidates[at].role.label(), reason.label())
        }
        Verdict::Full => "full".to_owned(),
        Verdict::Down => "down".to_owned(),
    };
    assert_eq!(found, expected, "{policy:?} {ask:?} {mode:?} {candidates:?}");
}

#[test]
fn switch_sends_new_requests_to_one_side() {
    let policy = switch(4, 2);
    check(&policy, WORK, Role::Speculative, &pair(0, 0), "speculative below");
    check(&policy, WORK, Role::Speculative, &pair(3, 0), "speculative below");
    check(&policy, WORK, Role::Speculative, &pair(4, 0), "throughput above");
    // Below the threshold and above the lower one, the mode stays what it was.
    check(&policy, WORK, Role::Throughput, &pair(2, 0), "throughput above");
    check(&policy, WORK, Role::Throughput, &pair(1, 0), "speculative below");
}

#[test]
fn spill_fills_the_speculative_side_first() {
    let policy = Policy::Spill(Spill { high: 4 });
    check(&policy, WORK, Role::Speculative, &pair(3, 9), "speculative below");
    check(&policy, WORK, Role::Speculative, &pair(4, 0), "throughput overflow");
    check(&policy, WORK, Role::Speculative, &pair(4, 10), "speculative overflow");
    check(&policy, WORK, Role::Speculative, &pair(10, 10), "full");
}

#[test]
fn pin_and_override_wait_for_their_role_and_leave_it_only_when_it_is_down() {
    let asked = Ask { target: Some(Role::Throughput), light: false };
    for (policy, ask, reason) in [
        (Policy::Pin(Role::Throughput), WORK, "pinned"),
        (switch(4, 2), asked, "override"),
        (marginal(), asked, "override"),
    ] {
        let mode = Role::Speculative;
        check(&policy, ask, mode, &pair(0, 9), &format!("throughput {reason}"));
        check(&policy, ask, mode, &pair(0, 10), "full");
        check(&policy, ask, mode, &pair(0, 0)[..1], "speculative failover");
        check(&policy, ask, mode, &[], "down");
    }
}

#[test]
fn one_role_down_or_full_means_the_other() {
    let policy = switch(4, 2);
    check(&policy, WORK, Role::Speculative, &pair(0, 0)[1..], "throughput failover");
    check(&policy, WORK, Role::Throughput, &pair(9, 0)[..1], "speculative failover");
    check(&policy, WORK, Role::Throughput, &pair(9, 10), "speculative overflow");
    check(&policy, WORK, Role::Throughput, &pair(10, 10), "full");
    check(&policy, WORK, Role::Throughput, &[], "down");
}

#[test]
fn light_requests_follow_the_mode_and_need_no_room() {
    let light = Ask { target: None, light: true };
    for policy in [switch(4, 2), Policy::Spill(Spill { high: 4 }), marginal()] {
        check(&policy, light, Role::Speculative, &pair(10, 10), "speculative light");
        check(&policy, light, Role::Throughput, &pair(10, 10), "throughput light");
        check(&policy, light, Role::Throughput, &pair(1, 1)[..1], "speculative failover");
    }
    let load = Load { total: 99, mode: Role::Speculative, in_mode: DWELL, candidates: &pair(9, 9) };
    assert_eq!(switch(4, 2).decide(light, &load).mode, Role::Speculative);
}

#[test]
fn marginal_goes_where_one_more_adds_most() {
    let policy = marginal();
    check(&policy, WORK, Role::Speculative, &pair(0, 0), "speculative marginal");
    check(&policy, WORK, Role::Speculative, &pair(1, 0), "throughput marginal");
    check(&policy, WORK, Role::Speculative, &pair(1, 5), "speculative marginal");
    check(&policy, WORK, Role::Speculative, &pair(10, 5), "throughput marginal");
    check(&policy, WORK, Role::Speculative, &pair(10, 10), "full");
}

/// What the second instance brings is less when it slows the first one down; once both are at work,
/// that is paid for.
#[test]
fn marginal_starts_the_second_instance_when_both_together_are_faster() {
    let Policy::Marginal(marginal) = marginal() else { panic!() };
    let policy = |together| Policy::Marginal(Marginal { together, ..marginal.clone() });
    let second_at = |together| {
        let goes = |n: &u32| {
            let candidates = pair(*n, 0);
            let load = Load {
                total: *n,
                mode: Role::Speculative,
                in_mode: DWELL,
                candidates: &candidates,
            };
            let Verdict::Go { at, .. } = policy(together).decide(WORK, &load).verdict else {
                panic!()
            };
            candidates[at].role == Role::Throughput
        };
        (1..=10).find(goes)
    };
    assert_eq!([1.0, 0.9, 0.5].map(second_at), [Some(1), Some(4), Some(10)]);
    // Nothing is shared with an idle instance.
    check(&policy(0.0), WORK, Role::Speculative, &pair(0, 0), "speculative marginal");
    check(&policy(0.0), WORK, Role::Speculative, &pair(1, 5), "speculative marginal");
}

/// Measured points are off by some per cent, so a curve may seem to fall and then rise again.
#[test]
fn marginal_looks_beyond_a_dip() {
    let speculative = Curve::new(vec![(1, 96.0), (2, 150.0), (3, 148.0), (4, 210.0)]).unwrap();
    let throughput = Curve::new(vec![(1, 54.0), (2, 74.0), (3, 84.0)]).unwrap();
    let policy = Policy::Marginal(Marginal { speculative, throughput, together: 1.0 });
    check(&policy, WORK, Role::Speculative, &pair(2, 1), "speculative marginal");
    check(&policy, WORK, Role::Speculative, &pair(3, 1), "speculative marginal");
    check(&policy, WORK, Role::Speculative, &pair(4, 2), "throughput marginal");
}

#[test]
fn weights_share_a_role() {
    let mut candidates = vec![
        Candidate { weight_milli: 3000, ..candidate(Role::Speculative, 0, 100) },
        candidate(Role::Speculative, 0, 100),
    ];
    let policy = Policy::Pin(Role::Speculative);
    for total in 0..40 {
        let load = Load { total, mode: Role::Speculative, in_mode: DWELL, candidates: &candidates };
        let Verdict::Go { at, .. } = policy.decide(WORK, &load).verdict else { panic!() };
        candidates[at].in_flight += 1;
    }
    assert_eq!((candidates[0].in_flight, candidates[1].in_flight), (30, 10));
}

fn any_policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        (0_u32..40, 0_u32..40).prop_map(|(a, b)| switch(a.max(b), a.min(b))),
        (0_u32..40).prop_map(|high| Policy::Spill(Spill { high })),
        Just(marginal()),
        prop::sample::select(&Role::ALL[..]).prop_map(Policy::Pin),
    ]
}

fn any_candidate() -> impl Strategy<Value = Candidate> {
    let role = prop::sample::select(&Role::ALL[..]);
    (role, 0_u32..12, 1_u32..12, 1_u32..5000).prop_map(|(role, in_flight, max, weight_milli)| {
        Candidate { role, in_flight, in_flight_max: max, weight_milli }
    })
}

fn any_ask() -> impl Strategy<Value = Ask> {
    let target = prop::option::of(prop::sample::select(&Role::ALL[..]));
    (target, any::<bool>()).prop_map(|(target, light)| Ask { target, light })
}

proptest! {
    #[test]
    fn every_policy_keeps_the_caps_and_only_refuses_when_it_must(
        policy in any_policy(),
        ask in any_ask(),
        candidates in prop::collection::vec(any_candidate(), 0..6),
        mode in prop::sample::select(&Role::ALL[..]),
        in_mode_ms in 0_u64..3000,
    ) {
        let total = candidates.iter().map(|it| it.in_flight).sum();
        let in_mode = Duration::from_millis(in_mode_ms);
        let load = Load { total, mode, in_mode, candidates: &candidates };
        let decision = policy.decide(ask, &load);
        prop_assert_eq!(decision, policy.decide(ask, &load));
        match decision.verdict {
            Verdict::Go { at, .. } => {
                let chosen = candidates[at];
                prop_assert!(ask.light || chosen.in_flight < chosen.in_flight_max);
                let wanted = candidates.iter().any(|it| Some(it.role) == ask.target);
                prop_assert!(!wanted || Some(chosen.role) == ask.target);
            }
            Verdict::Full => {
                let is_strict = ask.target.is_some() || matches!(policy, Policy::Pin(_));
                let is_full = |it: &Candidate| it.in_flight_max <= it.in_flight;
                prop_assert!(is_strict || candidates.iter().all(is_full));
                prop_assert!(!ask.light && !candidates.is_empty());
            }
            Verdict::Down => prop_assert!(candidates.is_empty()),
        }
        if ask.light {
            prop_assert_eq!(decision.mode, mode);
        }
    }

    /// Whatever the load does, the mode changes at most once within a dwell, and never while the
    /// load stays between the thresholds.
    #[test]
    fn oscillating_load_changes_the_mode_at_most_once_a_dwell(
        steps in prop::collection::vec((0_u32..16, 1_u64..400), 1..200),
    ) {
        let policy = switch(8, 6);
        let (mut now_ms, mut mode, mut since_ms) = (10_000_u64, Role::Speculative, 0_u64);
        for (total, step_ms) in steps {
            now_ms += step_ms;
            let next = policy.mode(total, mode, Duration::from_millis(now_ms - since_ms));
            if next != mode {
                prop_assert!(1000 <= now_ms - since_ms);
                prop_assert!(total <= 6 || 8 < total);
                (mode, since_ms) = (next, now_ms);
            }
        }
    }
}
