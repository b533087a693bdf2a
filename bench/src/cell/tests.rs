use super::{Cell, Place, Promise};
use crate::load::Run;
use crate::sample::{Outcome, Sample, failures_told};

fn sample(first_ms: f64, end_ms: f64, outcome: Outcome) -> Sample {
    Sample {
        target: "a".to_owned(),
        concurrency: 2,
        round: 0,
        prompt: 0,
        due_ms: 0.0,
        sent_ms: 5.0,
        first_ms: Some(first_ms),
        end_ms,
        prompt_tokens: 3,
        tokens: 11,
        accepted: None,
        text: String::new(),
        outcome,
        status: 200,
        endpoint: None,
        reason: None,
    }
}

fn cell(promise: Promise) -> Cell {
    let samples = vec![
        sample(100.0, 200.0, Outcome::Done),
        sample(400.0, 900.0, Outcome::Done),
        Sample { first_ms: None, tokens: 0, ..sample(0.0, 10.0, Outcome::Shed) },
    ];
    let place = Place { target: "a".to_owned(), load: "2".to_owned(), at: 2.0, round: 0 };
    Cell::of(place, &Run { samples, counted_ms: (0.0, 1000.0) }, &promise)
}

#[test]
fn only_what_kept_the_promise_is_good() {
    for (ttft_ms_max, tpot_ms_max, good) in [
        (None, None, 22.0),
        (Some(100.0), None, 11.0),
        (None, Some(10.0), 11.0),
        (Some(1000.0), Some(50.0), 22.0),
        (Some(50.0), Some(50.0), 0.0),
    ] {
        let found = cell(Promise { ttft_ms_max, tpot_ms_max });
        assert_eq!((found.good, found.total), (good, 22.0));
    }
}

#[test]
fn medians_lateness_and_failures_are_counted() {
    let found = cell(Promise::default());
    assert_eq!((found.ttft_ms, found.tpot_ms, found.late_ms_p99), (250.0, 30.0, 5.0));
    assert_eq!((found.requests, found.shed, found.errors, found.broken), (3, 1, 0, 0));
    assert_eq!(found.failures(), 1);
    assert!(found.line().contains("22.0 tok/s"));
}

#[test]
fn failures_are_told_by_their_cause() {
    let failed = |outcome, status| Sample { status, ..sample(0.0, 1.0, outcome) };
    let mut samples = vec![sample(0.0, 1.0, Outcome::Done)];
    assert_eq!(failures_told(&samples), None);
    samples.extend([
        failed(Outcome::Shed, 429),
        failed(Outcome::Shed, 429),
        failed(Outcome::Error, 0),
        failed(Outcome::Broken, 200),
    ]);
    let told = "4 of 5 requests failed (no answer: 1, no proper end: 1, status 429: 2)";
    assert_eq!(failures_told(&samples).unwrap(), told);
}

#[test]
fn all_tokens_count_where_they_come_at_once() {
    let at_once = sample(500.0, 500.0, Outcome::Done);
    assert_eq!(at_once.tokens_within(0.0, 1000.0), 11.0);
    assert_eq!(at_once.tokens_within(600.0, 1000.0), 0.0);
}
