use super::*;

const DWELL: Duration = Duration::from_secs(1);

#[test]
fn counts_and_remembers_the_mode() {
    let tally = Tally::new(Role::Speculative, 0, DWELL);
    assert_eq!(tally.seen().in_mode(0), DWELL);
    for count in 1..=100 {
        assert!(tally.take(tally.seen(), Role::Speculative, 5));
        assert_eq!(tally.seen().total(), count);
    }
    assert_eq!(tally.seen().in_mode(500), Duration::from_millis(1500));
    assert!(tally.take(tally.seen(), Role::Throughput, 700));
    assert_eq!(tally.seen().mode(), Role::Throughput);
    assert_eq!(tally.seen().in_mode(900), Duration::from_millis(200));
    for _ in 0..101 {
        tally.give();
    }
    assert_eq!(tally.seen().total(), 0);
    assert_eq!(tally.seen().mode(), Role::Throughput);
}

#[test]
fn a_stale_look_reserves_nothing() {
    let tally = Tally::new(Role::Speculative, 0, DWELL);
    let stale = tally.seen();
    assert!(tally.take(stale, Role::Speculative, 0));
    assert!(!tally.take(stale, Role::Speculative, 0));
    // The count is the same again, but something was reserved in between.
    tally.give();
    assert_eq!(tally.seen().total(), stale.total());
    assert!(!tally.take(stale, Role::Speculative, 0));
    assert!(!tally.settle(stale, Role::Throughput, 0));
}

#[test]
fn the_turn_wraps_without_touching_its_neighbours() {
    let tally = Tally::new(Role::Throughput, 77, Duration::ZERO);
    for _ in 0..10_000 {
        assert!(tally.take(tally.seen(), Role::Throughput, 80));
        tally.give();
    }
    assert_eq!(tally.seen().total(), 0);
    assert_eq!(tally.seen().mode(), Role::Throughput);
    assert_eq!(tally.seen().in_mode(100), Duration::from_millis(23));
}

#[test]
#[should_panic(expected = "more requests ended than began")]
fn never_below_zero() {
    Tally::new(Role::Speculative, 0, DWELL).give();
}
