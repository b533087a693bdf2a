//! The engine under many random days: whatever the load, the memory and the drafter, each
//! request gets the text it would have got alone.

use engine::batch::load::EngineLoad;

use crate::engine_day::{Day, Kind};

const DAYS: u64 = 600;

/// What many days cost together.
#[derive(Debug, Default)]
struct Total {
    steps: u64,
    rows: u64,
    hits: u64,
    preemptions: u64,
    drafted: u64,
    accepted: u64,
    switches: u64,
}

impl Total {
    fn add(&mut self, load: EngineLoad) {
        let EngineLoad { counts, drafts, .. } = load;
        self.steps += counts.steps;
        self.rows += counts.rows;
        self.hits += counts.prefix_hits;
        self.preemptions += counts.preemptions;
        self.drafted += drafts.drafted;
        self.accepted += drafts.accepted;
        self.switches += drafts.switches.up + drafts.switches.down;
    }
}

/// Runs all days and checks every text of them.
fn days(kind: Kind, ahead: u32) -> Total {
    let mut total = Total::default();
    (0..DAYS).for_each(|seed| total.add(Day::random(seed, ahead).run(kind)));
    assert!(0 < total.hits && 0 < total.preemptions, "tight memory, shared starts: {total:?}");
    total
}

/// The same days with a plan in flight: the texts are the same, and steps are saved where drafts
/// are right.
fn check(kind: Kind, ahead: u32) {
    let plain = days(Kind::Silent, ahead);
    let drafted = days(kind, ahead);
    assert_eq!(plain.drafted, 0);
    assert!(0 < drafted.drafted && 0 < drafted.switches);
    assert!(drafted.steps < plain.steps, "{} < {}", drafted.steps, plain.steps);
}

#[test]
fn held_drafts_do_not_show_in_the_text() {
    check(Kind::Held(60), 0);
    days(Kind::Held(0), 0);
    days(Kind::Held(100), 0);
}

#[test]
fn held_drafts_do_not_show_with_a_plan_in_flight() {
    check(Kind::Held(60), 1);
    days(Kind::Held(0), 1);
    days(Kind::Held(100), 1);
}

#[test]
fn given_drafts_do_not_show_in_the_text() {
    check(Kind::Oracle(10), 0);
    for kind in [Kind::Oracle(50), Kind::Oracle(100), Kind::Ngram, Kind::Rude] {
        days(kind, 0);
    }
}

/// A drafter that reads tokens is never run ahead of them.
#[test]
fn given_drafts_do_not_show_where_a_plan_may_be_in_flight() {
    for kind in [Kind::Oracle(10), Kind::Ngram, Kind::Rude] {
        days(kind, 1);
    }
}
