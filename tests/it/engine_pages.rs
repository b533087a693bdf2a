//! What the step loop finds in pages, and that nothing is computed twice.

use engine::backend::Shape;
use engine::batch::step::Finish;
use engine::draft::Silent;
use engine::draft::depth::Depth;
use engine::draft::held::Held;

use crate::engine_day::{Case, Day, Kind};
use crate::engine_rules::{Bench, SHAPE, prompt};

/// The texts cannot tell whether work was done twice; the rows can.
#[test]
fn every_token_is_computed_once() {
    for seed in 0..300 {
        for (kind, ahead) in
            [(Kind::Silent, 0), (Kind::Silent, 1), (Kind::Held(100), 0), (Kind::Held(100), 1)]
        {
            let mut day = Day::random(seed, ahead);
            day.shape.pages = 2_000; // Enough that no one is ever preempted.
            for case in &mut day.cases {
                // A text that stops by surprise has its next row on the way.
                *case = Case { arrives: case.arrives, ..Case::plain(&case.prompt, 24, &day.shape) };
            }
            let load = day.run(kind);
            let needed: usize =
                day.cases.iter().map(|it| it.prompt.len() + it.alone.tokens.len() - 1).sum();
            let found = load.counts.rows + load.counts.prefix_hits;
            assert_eq!(found, needed as u64, "seed {seed}, {kind:?}, {ahead} ahead");
        }
    }
}

#[test]
fn a_right_draft_is_computed_once() {
    for seed in 0..300 {
        let mut day = Day::random(seed, 0);
        day.shape.pages = 2_000;
        for case in &mut day.cases {
            case.aborts = None;
            if let Finish::Stuck(_) = case.alone.finish {
                *case = Case::plain(&case.prompt, 9, &day.shape);
            }
        }
        let load = day.run(Kind::Oracle(0));
        let needed: usize =
            day.cases.iter().map(|it| it.prompt.len() + it.alone.tokens.len() - 1).sum();
        assert_eq!(load.counts.rows + load.counts.prefix_hits, needed as u64, "seed {seed}");
    }
}

#[test]
fn a_prompt_finds_all_full_pages_of_an_earlier_one() {
    for len in 1..=21 {
        let mut bench = Bench::silent(SHAPE);
        bench.submit(1, &prompt(7, len), 3);
        bench.drain();
        bench.submit(2, &prompt(7, len), 3);
        let load = bench.drain();
        let found = (len - 1) / 4 * 4;
        assert_eq!(bench.ended(), [(1, 0), (2, found)]);
        let queries = u64::from(2 * len);
        assert_eq!((load.counts.prefix_queries, load.counts.prefix_hits), (queries, found.into()));
        assert_eq!(load.counts.rows, u64::from(len + 2 + len - found + 2));
        assert_eq!(bench.text(1), bench.text(2));
    }
}

/// What was written is found as well: the next turn of a chat reads only what is new.
#[test]
fn the_next_turn_finds_the_last_answer() {
    for depth in [0, 3] {
        let mut bench = Bench::new(SHAPE, 16, Box::new(Held), Depth::always(depth));
        bench.submit(1, &prompt(3, 10), 15);
        bench.drain();
        let mut turn = prompt(3, 10);
        turn.extend(bench.text(1));
        turn.extend(prompt(9, 5));
        bench.submit(2, &turn, 1);
        bench.drain();
        // Of 25 tokens the last was never fed: 24 are six pages.
        assert_eq!(bench.ended()[1], (2, 24));
    }
}

/// Many with one prompt at once read it once: the others wait for the pages of the first.
#[test]
fn a_burst_reads_its_prompt_once() {
    for (rows_max, prompt_rows_max) in [(32, 32), (32, 5), (7, 7)] {
        for ahead_max in [0, 1] {
            let shape = Shape { rows_max, ahead_max, ..SHAPE };
            let mut bench = Bench::new(shape, prompt_rows_max, Box::new(Silent), Depth::none());
            (0..4).for_each(|id| bench.submit(id, &prompt(7, 23), 2));
            let load = bench.drain();
            assert_eq!(load.counts.prompt_rows, 23 + 3 * 3, "{rows_max} {prompt_rows_max}");
            assert_eq!(load.counts.prefix_hits, 3 * 20);
        }
    }
}

/// Drafts do not push the pages of earlier prompts out.
#[test]
fn drafts_leave_the_cache_alone() {
    let hits = |depth| {
        let shape = Shape { pages: 40, ..SHAPE };
        let mut bench = Bench::new(shape, 16, Box::new(Held), Depth::always(depth));
        for turn in 0..3 {
            for chat in 0..4 {
                bench.submit(turn * 4 + chat, &prompt(u32::try_from(chat).unwrap(), 21), 17);
            }
            bench.drain();
        }
        bench.engine.load().counts.prefix_hits
    };
    assert_eq!(hits(0), 2 * 4 * 20);
    assert_eq!(hits(7), hits(0));
}
