//! The rules of the step loop one by one: who goes first, who drafts, what ends and is refused.

use std::sync::Arc;

use engine::backend::Shape;
use engine::batch::ids::{SeqId, TokenId};
use engine::batch::load::EngineLoad;
use engine::batch::pages::Salt;
use engine::batch::sampling::Sampling;
use engine::batch::step::{Engine, Event, Finish, Limits, Refused, Request};
use engine::draft::depth::Depth;
use engine::draft::held::Held;
use engine::draft::{DRAFTS_MAX, Drafter, Silent};
use tests::hash_backend::HashBackend;
use tests::hash_model::alone;

pub(crate) const VOCAB: u32 = 5;

pub(crate) const SHAPE: Shape = Shape {
    pages: 64,
    page_tokens: 4,
    vocab: VOCAB,
    rows_max: 32,
    lanes: 4,
    held_max: 7,
    ahead_max: 0,
};

const WAITING_MAX: usize = 8;

/// An engine with what it has said so far.
pub(crate) struct Bench {
    pub(crate) engine: Engine,
    events: Vec<Event>,
}

impl Bench {
    pub(crate) fn new(
        shape: Shape,
        prompt_rows_max: u32,
        drafter: Box<dyn Drafter>,
        depth: Depth,
    ) -> Self {
        let limits = Limits { waiting_max: WAITING_MAX, tokens_max: 200, prompt_rows_max };
        let backend = Box::new(HashBackend::new(shape, 100));
        Self::of(Engine::new(limits, backend, drafter, depth))
    }

    pub(crate) fn of(engine: Engine) -> Self {
        Self { engine, events: Vec::new() }
    }

    pub(crate) fn silent(shape: Shape) -> Self {
        Self::new(shape, 16, Box::new(Silent), Depth::none())
    }

    pub(crate) fn submit(&mut self, id: u64, prompt: &[TokenId], new_max: u32) {
        self.engine.submit(request(id, prompt, new_max)).unwrap();
    }

    /// One step; what it said.
    pub(crate) fn step(&mut self) -> &[Event] {
        self.steps(1)
    }

    /// Some steps; what they said.
    pub(crate) fn steps(&mut self, steps: u32) -> &[Event] {
        let seen = self.events.len();
        (0..steps).for_each(|_| self.engine.step(&mut self.events).unwrap());
        &self.events[seen..]
    }

    /// Runs until nobody is left.
    pub(crate) fn drain(&mut self) -> EngineLoad {
        for _ in 0..1000 {
            if self.engine.is_idle() {
                self.engine.check_idle();
                return self.engine.load();
            }
            self.step();
        }
        panic!("never idle");
    }

    /// Ids in the order in which they ended, with what was found of their prompts.
    pub(crate) fn ended(&self) -> Vec<(u64, u32)> {
        let done = |it: &Event| match it {
            Event::Done { seq, cached, .. } => Some((seq.0, *cached)),
            Event::Tokens { .. } => None,
        };
        self.events.iter().filter_map(done).collect()
    }

    /// Why a text ended, if it did.
    pub(crate) fn finish(&self, id: u64) -> Option<Finish> {
        self.events.iter().find_map(|it| match it {
            Event::Done { seq, reason, .. } if seq.0 == id => Some(reason.clone()),
            _ => None,
        })
    }

    pub(crate) fn text(&self, id: u64) -> Vec<TokenId> {
        let tokens = |it: &Event| match it {
            Event::Tokens { seq, tokens, .. } if seq.0 == id => tokens.clone(),
            _ => Vec::new(),
        };
        self.events.iter().flat_map(tokens).collect()
    }
}

pub(crate) fn request(id: u64, prompt: &[TokenId], new_max: u32) -> Request {
    Request {
        id: SeqId(id),
        prompt: prompt.to_vec(),
        new_max,
        sampling: Arc::new(Sampling::greedy()),
        priority: 0,
        drafts_max: DRAFTS_MAX,
        guide: None,
        salt: Salt::default(),
    }
}

/// `len` tokens that no other `start` shares.
pub(crate) fn prompt(start: u32, len: u32) -> Vec<TokenId> {
    (0..len).map(|at| TokenId((start / VOCAB.pow(at % 4) + at / 4) % VOCAB)).collect()
}

#[test]
fn lower_priority_numbers_go_first_and_equal_ones_by_arrival() {
    let mut bench = Bench::silent(Shape { lanes: 1, ..SHAPE });
    for (id, priority) in [(1, 5), (2, 0), (3, 5), (4, -1), (5, 0)] {
        let request = Request { priority, ..request(id, &prompt(2, 6), 2) };
        bench.engine.submit(request).unwrap();
    }
    bench.drain();
    let order: Vec<u64> = bench.ended().into_iter().map(|(id, _)| id).collect();
    assert_eq!(order, [4, 2, 5, 1, 3]);
}

/// A long prompt takes its share of each step and no more, so both sides get on.
#[test]
fn a_long_prompt_and_decoding_share_steps() {
    for ahead_max in [0, 1] {
        let shape = Shape { ahead_max, ..SHAPE };
        let mut bench = Bench::new(shape, 6, Box::new(Silent), Depth::none());
        bench.submit(1, &prompt(1, 3), 60);
        bench.submit(2, &prompt(2, 3), 60);
        bench.step();
        bench.step();
        bench.submit(3, &prompt(3, 120), 1);
        for _ in 0..19 {
            let rows = bench.engine.load().counts.rows;
            let texts = bench.step().iter().filter(|it| matches!(it, Event::Tokens { .. })).count();
            assert_eq!(texts, 2, "each step gives each a token");
            assert_eq!(bench.engine.load().counts.rows - rows, 2 + 6);
        }
        bench.steps(1 + ahead_max);
        assert_eq!(bench.ended(), [(3, 0)]);
    }
}

#[test]
fn an_abort_frees_pages_at_once_with_a_plan_in_flight() {
    let mut bench = Bench::silent(Shape { pages: 6, ahead_max: 1, ..SHAPE });
    bench.submit(1, &prompt(1, 10), 12);
    bench.steps(4);
    assert!(0 < bench.engine.load().pages_used && bench.engine.load().decoding == 1);
    assert!(bench.engine.abort(SeqId(1)) && !bench.engine.abort(SeqId(1)));
    assert_eq!((bench.engine.load().pages_used, bench.engine.load().running), (0, 0));
    assert!(!bench.engine.is_idle(), "its last rows are still on their way");
    let seen = bench.text(1).len();
    bench.submit(2, &prompt(2, 10), 12);
    bench.drain();
    assert_eq!((bench.text(1).len(), bench.text(2).len()), (seen, 12));
    assert!(!bench.engine.abort(SeqId(2)) && !bench.engine.abort(SeqId(9)));
}

#[test]
fn a_waiting_request_can_be_aborted() {
    let mut bench = Bench::silent(Shape { lanes: 1, ..SHAPE });
    bench.submit(1, &prompt(1, 4), 4);
    bench.submit(2, &prompt(2, 4), 4);
    bench.step();
    assert!(bench.engine.abort(SeqId(2)));
    bench.drain();
    assert_eq!(bench.ended(), [(1, 0)]);
}

/// With a plan in flight each step still gives a token: one step more than alone, not twice.
#[test]
fn one_plan_in_flight_keeps_the_pace() {
    for (ahead_max, steps) in [(0, 30), (1, 31)] {
        let mut bench = Bench::silent(Shape { ahead_max, ..SHAPE });
        bench.submit(1, &prompt(1, 8), 30);
        let mut taken = 0;
        while !bench.engine.is_idle() {
            bench.step();
            taken += 1;
        }
        assert_eq!((taken, bench.engine.load().counts.steps), (steps, 30));
    }
}

#[test]
fn what_cannot_run_is_refused() {
    let mut bench = Bench::silent(Shape { pages: 10, ..SHAPE });
    let mut check = |request, expected| assert_eq!(bench.engine.submit(request), expected);
    // Ten pages of four slots, and the last token needs none.
    check(request(1, &prompt(1, 21), 20), Ok(()));
    check(request(2, &prompt(1, 21), 21), Err(Refused::TooLong { tokens_max: 41 }));
    check(request(2, &prompt(1, 21), u32::MAX), Err(Refused::TooLong { tokens_max: 41 }));
    check(request(2, &[], 1), Err(Refused::Empty));
    check(request(2, &prompt(1, 3), 0), Err(Refused::Empty));
    check(request(2, &[TokenId(5)], 1), Err(Refused::UnknownToken(TokenId(5))));
    let max = WAITING_MAX as u64 + u64::from(SHAPE.lanes);
    (3..=max + 1).for_each(|id| check(request(id, &prompt(1, 3), 1), Ok(())));
    check(request(100, &prompt(1, 3), 1), Err(Refused::QueueFull));
    bench.drain();
    assert_eq!(bench.ended().len() as u64, max);
}

/// Free lanes are as good as places to wait, and taken ones are not.
#[test]
fn as_many_are_taken_as_can_run_and_wait() {
    for waiting_max in [0, 2] {
        let limits = Limits { waiting_max, tokens_max: 200, prompt_rows_max: 16 };
        let backend = Box::new(HashBackend::new(SHAPE, 100));
        let engine = Engine::new(limits, backend, Box::new(Silent), Depth::none());
        let mut bench = Bench::of(engine);
        let max = u64::from(SHAPE.lanes) + waiting_max as u64;
        (0..max).for_each(|id| bench.submit(id, &prompt(1, 3), 2));
        for step in [false, true] {
            if step {
                bench.step();
            }
            let refused = bench.engine.submit(request(100, &prompt(1, 3), 2));
            assert_eq!(refused, Err(Refused::QueueFull), "{waiting_max} {step}");
        }
        bench.drain();
        assert_eq!(bench.ended().len() as u64, max);
        bench.submit(100, &prompt(1, 3), 2);
    }
}

/// Only decoding requests count for the depth, and who wants no drafts gets none.
#[test]
fn the_depth_follows_the_decoding_requests() {
    let mut bench = Bench::new(SHAPE, 2, Box::new(Held), Depth::until(2, 3));
    let drafted = |events: &[Event]| -> Vec<(u64, u32)> {
        let drafted = |it: &Event| match it {
            Event::Tokens { seq, drafted, .. } => Some((seq.0, *drafted)),
            Event::Done { .. } => None,
        };
        events.iter().filter_map(drafted).collect()
    };
    bench.submit(1, &prompt(1, 2), 90);
    bench.engine.submit(Request { drafts_max: 1, ..request(2, &prompt(2, 2), 90) }).unwrap();
    bench.steps(2);
    // Two long prompts do not count.
    bench.submit(3, &prompt(3, 40), 9);
    bench.submit(4, &prompt(4, 40), 9);
    (0..14).for_each(|_| assert_eq!(drafted(bench.step()), [(1, 3), (2, 1)]));
    assert_eq!(bench.engine.load().depth, 3);
    while bench.engine.load().decoding < 3 {
        bench.step();
    }
    assert_eq!(drafted(bench.step())[0], (1, 0));
    assert_eq!((bench.engine.load().depth, bench.engine.load().drafts.switches.down), (0, 1));
    // The load is gone again, and so the depth is back.
    while bench.engine.load().depth == 0 {
        bench.step();
    }
    assert_eq!(bench.engine.load().drafts.switches.up, 1);
}

/// Tokens after a stop in the middle of a round are not there, and a stop beats the length.
#[test]
fn a_stop_cuts_its_round() {
    let prompt = prompt(11, 5);
    let all = alone(&prompt, 20, &Sampling::greedy(), None, VOCAB).tokens;
    for at in 0..20_usize {
        let first = all.iter().position(|it| *it == all[at]).unwrap();
        let sampling = Sampling { stop_tokens: vec![all[at]], ..Sampling::greedy() };
        let mut bench = Bench::new(SHAPE, 16, Box::new(Held), Depth::always(7));
        let new_max = u32::try_from(first + 1).unwrap();
        for (id, new_max) in [(1, 20), (2, new_max)] {
            let sampling = Arc::new(sampling.clone());
            bench.engine.submit(Request { sampling, ..request(id, &prompt, new_max) }).unwrap();
        }
        bench.drain();
        for id in 1..=2 {
            assert_eq!(bench.text(id), all[..=first]);
            assert_eq!(bench.finish(id), Some(Finish::Stop(all[at])));
        }
    }
}
