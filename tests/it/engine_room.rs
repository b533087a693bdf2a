//! Memory is short: who is let in, who gives up rows and pages, and who waits instead.

use engine::backend::Shape;
use engine::batch::guide::Guide;
use engine::batch::sampling::Sampling;
use engine::batch::step::{Engine, Event, Limits, Request};
use engine::draft::depth::Depth;
use engine::draft::held::Held;
use tests::hash_backend::HashBackend;
use tests::hash_model::alone;
use tests::rails::Rails;

use crate::engine_rules::{Bench, SHAPE, VOCAB, prompt, request};

/// The last in order gives up its pages, and nobody loses a token.
#[test]
fn the_last_in_order_is_preempted() {
    for ahead_max in [0, 1] {
        let mut bench = Bench::silent(Shape { pages: 14, ahead_max, ..SHAPE });
        for (id, priority, start) in [(1, 1, 1), (2, 0, 2), (3, 0, 3)] {
            let request = Request { priority, ..request(id, &prompt(start, 8), 20) };
            bench.engine.submit(request).unwrap();
        }
        let load = bench.drain();
        assert!(0 < load.counts.preemptions);
        let order: Vec<u64> = bench.ended().into_iter().map(|(id, _)| id).collect();
        assert_eq!(order, [2, 3, 1], "{ahead_max}");
        for (id, start) in [(1, 1), (2, 2), (3, 3)] {
            let alone = alone(&prompt(start, 8), 20, &Sampling::greedy(), None, VOCAB);
            assert_eq!(bench.text(id), alone.tokens);
        }
    }
}

/// Far more requests than the pages hold at once, whoever drafts and however far ahead.
#[test]
fn a_crowd_gets_through_a_small_pool() {
    for (ahead_max, depth) in [(0, 0), (0, 5), (1, 0), (1, 5)] {
        let shape = Shape { pages: 8, lanes: 6, ahead_max, ..SHAPE };
        let limits = Limits { waiting_max: 16, tokens_max: 200, prompt_rows_max: 8 };
        let backend = Box::new(HashBackend::new(shape, 70));
        let engine = Engine::new(limits, backend, Box::new(Held), Depth::always(depth));
        let mut bench = Bench::of(engine);
        for start in 0..16 {
            bench.submit(start.into(), &prompt(start, 5 + start % 4), 24);
        }
        let load = bench.drain();
        assert!(0 < load.counts.preemptions, "{ahead_max} ahead, depth {depth}");
        for start in 0..16 {
            let prompt = prompt(start, 5 + start % 4);
            let alone = alone(&prompt, 24, &Sampling::greedy(), None, VOCAB);
            assert_eq!(bench.text(start.into()), alone.tokens);
        }
    }
}

/// Nobody is let in who would have to leave at once: a page for the next token of each who runs
/// is kept beside what the newcomer's text fills. So no row is fed twice.
#[test]
fn a_request_waits_for_pages_that_it_can_keep() {
    for (pages, together) in [(4, false), (5, true)] {
        let mut bench = Bench::silent(Shape { pages, ..SHAPE });
        bench.submit(1, &prompt(1, 7), 5);
        bench.step();
        bench.submit(2, &prompt(2, 5), 4);
        bench.step();
        let load = bench.engine.load();
        assert_eq!((load.running, load.waiting), if together { (2, 0) } else { (1, 1) });
        let load = bench.drain();
        assert_eq!(load.counts.preemptions, 0, "{pages}");
        assert_eq!(load.counts.rows, (7 + 4) + (5 + 3), "{pages}");
    }
}

/// Its last token may be on the way, and with it the page that another needs.
#[test]
fn who_may_be_at_the_end_is_not_preempted() {
    for (new_max, preemptions) in [(5, 0), (6, 1)] {
        let mut bench = Bench::silent(Shape { pages: 4, ahead_max: 1, ..SHAPE });
        bench.submit(1, &prompt(1, 4), 9);
        bench.submit(2, &prompt(2, 4), new_max);
        let load = bench.drain();
        assert_eq!(load.counts.preemptions, preemptions, "{new_max}");
        // Preempted, it finds one of its pages again and reads the five tokens that follow.
        assert_eq!(load.counts.rows, (4 + 8) + (4 + 4) + preemptions * 5);
    }
}

/// The first gets its page as soon as what is on its way was read, however long the others could
/// go on with the pages they have.
#[test]
fn the_first_does_not_wait_for_pages_of_others() {
    let shape = Shape { pages: 3, page_tokens: 16, ahead_max: 1, ..SHAPE };
    let mut bench = Bench::new(shape, 16, Box::new(Held), Depth::always(7));
    bench.submit(1, &prompt(1, 10), 35);
    // Slow beside the first, it still has most of its page when the first has filled two.
    bench.engine.submit(Request { drafts_max: 0, ..request(2, &prompt(2, 2), 25) }).unwrap();
    bench.step();
    while bench.engine.load().running == 2 {
        let of_first = |it: &Event| matches!(it, Event::Tokens { seq, .. } if seq.0 == 1);
        assert!(bench.steps(2).iter().any(of_first), "it stood still for two steps");
    }
    assert_eq!(bench.engine.load().counts.preemptions, 1);
    bench.drain();
}

/// A guide is asked for the row of a text that then gives up its pages: what it said is forgotten
/// with the row, and said again when the text is back.
#[test]
fn a_stuck_guide_waits_with_its_preempted_text() {
    for sticks_after in 0..30 {
        let shape = Shape { pages: 40, page_tokens: 1, ..SHAPE };
        let mut bench = Bench::new(shape, 1, Box::new(Held), Depth::none());
        let rails = Rails::new(3, VOCAB, 99, sticks_after);
        let guide = || Some(Box::new(rails.clone()) as Box<dyn Guide>);
        let guided = Request { guide: guide(), priority: 1, ..request(2, &prompt(2, 3), 30) };
        bench.engine.submit(guided).unwrap();
        bench.submit(1, &prompt(1, 3), 30);
        bench.steps(2);
        bench.submit(3, &prompt(3, 25), 2);
        bench.drain();
        for (id, len, new_max, guide) in [(1, 3, 30, None), (2, 3, 30, guide()), (3, 25, 2, None)] {
            let prompt = prompt(u32::try_from(id).unwrap(), len);
            let alone = alone(&prompt, new_max, &Sampling::greedy(), guide, VOCAB);
            assert_eq!((bench.text(id), bench.finish(id)), (alone.tokens, Some(alone.finish)));
        }
    }
}

/// All but one token of its prompt are in pages, so it chooses at once, and its guide cannot say
/// what: it ends, and others do not notice.
#[test]
fn a_guide_that_is_stuck_at_once_ends_its_text_alone() {
    for ahead_max in [0, 1] {
        let mut bench = Bench::silent(Shape { ahead_max, ..SHAPE });
        bench.submit(1, &prompt(1, 5), 3);
        bench.drain();
        bench.submit(2, &prompt(2, 3), 9);
        bench.step();
        let guide = Rails::new(3, VOCAB, 99, 0);
        let guide = || Some(Box::new(guide.clone()) as Box<dyn Guide>);
        bench.engine.submit(Request { guide: guide(), ..request(3, &prompt(1, 5), 3) }).unwrap();
        bench.drain();
        for (id, start, len, new_max, guide) in [(2, 2, 3, 9, None), (3, 1, 5, 3, guide())] {
            let alone = alone(&prompt(start, len), new_max, &Sampling::greedy(), guide, VOCAB);
            assert_eq!((bench.text(id), bench.finish(id)), (alone.tokens, Some(alone.finish)));
        }
    }
}
