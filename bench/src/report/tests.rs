use super::{Results, Texts, plot, table};
use crate::cell::{Cell, Place, Promise};
use crate::load::Run;
use crate::machine::Origin;
use crate::sample::{Outcome, Sample};

fn sample(target: &str, prompt: u32, text: &str) -> Sample {
    Sample {
        target: target.to_owned(),
        concurrency: 1,
        round: 0,
        prompt,
        due_ms: 0.0,
        sent_ms: 0.0,
        first_ms: Some(10.0),
        end_ms: 1000.0,
        prompt_tokens: 1,
        tokens: 100,
        accepted: None,
        text: text.to_owned(),
        outcome: Outcome::Done,
        status: 200,
        endpoint: None,
        reason: None,
    }
}

/// Two targets at two loads in two rounds; `slow` has half of what `fast` has.
pub(crate) fn results() -> Results {
    let mut cells = Vec::new();
    for (target, requests) in [("fast", 2), ("slow", 1)] {
        for load in [1_u32, 8] {
            for round in 0..2 {
                let place =
                    Place { target: target.to_owned(), load: load.to_string(), at: 0.0, round };
                let samples = (0..requests).map(|it| sample(target, it, "t")).collect();
                let run = Run { samples, counted_ms: (0.0, 1000.0) };
                cells.push(Cell::of(place, &run, &Promise::default()));
            }
        }
    }
    Results {
        origin: Origin::now(),
        targets: vec!["fast".to_owned(), "slow".to_owned()],
        loads: vec!["1".to_owned(), "8".to_owned()],
        cells,
        samples: vec![sample("fast", 0, "t"), sample("slow", 0, "t"), sample("slow", 1, "t")],
    }
}

#[test]
fn texts_are_compared_where_there_are_two() {
    let of = |texts: &[(u32, &str)]| {
        let samples: Vec<Sample> = texts.iter().map(|(at, text)| sample("a", *at, text)).collect();
        let found = Texts::of(&samples);
        (found.compared, found.differing)
    };
    assert_eq!(of(&[]), (0, 0));
    assert_eq!(of(&[(0, "x"), (1, "y")]), (0, 0));
    assert_eq!(of(&[(0, "x"), (0, "x"), (1, "y"), (1, "z"), (1, "y")]), (2, 1));
    let mut broken = vec![sample("a", 0, "x"), sample("a", 0, "y")];
    broken[1].outcome = Outcome::Broken;
    assert_eq!(Texts::of(&broken), Texts::default());
}

#[test]
fn the_table_says_whose_texts_differ() {
    let mut results = results();
    assert!(table(&results).contains(", 0 of them differ.\n"));
    let texts = [("slow", 0, "u"), ("slow", 0, "v"), ("slow", 1, "t"), ("fast", 1, "u")];
    results.samples.extend(texts.map(|(target, prompt, text)| sample(target, prompt, text)));
    let text = table(&results);
    assert!(text.contains("2 of them differ (from the first seen: fast 1, slow 1).\n"), "{text}");
}

#[test]
fn the_table_has_a_column_for_each_target_and_a_row_for_each_load() {
    let text = table(&results());
    assert!(
        text.starts_with("| load | fast | slow |\n|---|---|---|\n| 1 | 200 / 100 (±0 %) | 100 /")
    );
    assert!(text.contains("3 requests, 0 failed. Texts: 1 prompts"));
    assert!(
        text.contains("\n| 8 | slow | 10 / 10 | 10.0 / 10.0 | 100 | - | 0 / 0 / 0 | 0.0 | - |")
    );
}

#[test]
fn a_picture_needs_two_closed_loads() {
    let mut results = results();
    let picture = plot::by_concurrency(&results, "total tok/s", |it| it.total).unwrap();
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    for part in ["total tok/s", "fast", "slow", "polyline", "requests in flight"] {
        assert!(picture.contains(part), "{part}");
    }
    results.loads = vec!["8".to_owned(), "poisson:3".to_owned()];
    assert!(plot::by_concurrency(&results, "total tok/s", |it| it.total).is_none());
}

#[test]
fn a_figure_with_failures_behind_it_says_so() {
    let mut results = results();
    results.cells.iter_mut().filter(|it| it.place.target == "slow").for_each(|it| it.shed = 2);
    let text = table(&results);
    assert!(text.contains("\n| 1 | 200 / 100 (±0 %) | 100 / 100 (±0 %, 4 failed) |"), "{text}");
}
