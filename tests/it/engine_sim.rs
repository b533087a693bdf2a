//! The engine under many random days: whatever the load, the memory and the drafter, each
//! request gets the text it would have got alone.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use engine::backend::Shape;
use engine::batch::ids::{SeqId, TokenId};
use engine::batch::sampling::Sampling;
use engine::batch::step::{Engine, Event, Limits, Request};
use engine::draft::depth::Depth;
use engine::draft::held::Held;
use engine::draft::ngram::Ngram;
use engine::draft::{Ask, Drafter, Proposal, Silent};
use tests::hash_backend::{HashBackend, solo};
use tests::rng::Rng;

const VOCAB: u32 = 5;

/// A request as the workload makes it, and the text it must get.
#[derive(Clone, Debug)]
struct Case {
    arrives: u32,
    seed: u64,
    prompt: Vec<TokenId>,
    text: Vec<TokenId>,
}

/// Knows the text, and lies now and then.
#[derive(Debug)]
struct Oracle {
    cases: Vec<Case>,
    wrong_percent: u32,
    rng: Rng,
}

impl Drafter for Oracle {
    fn propose(&mut self, asks: &[Ask<'_>], proposals: &mut [Proposal]) {
        for (ask, proposal) in asks.iter().zip(proposals) {
            let case = &self.cases[usize::try_from(ask.seq.0).unwrap()];
            let known = ask.tokens.len() - case.prompt.len();
            let truth = case.text[known..].iter().take(ask.wanted as usize);
            let rng = &mut self.rng;
            let lie = |token: TokenId| TokenId((token.0 + 1) % VOCAB);
            let wrong = self.wrong_percent;
            proposal.given.extend(truth.map(|&it| if rng.chance(wrong) { lie(it) } else { it }));
        }
    }

    fn reads_tokens(&self) -> bool {
        true
    }

    fn forget(&mut self, _: SeqId) {}
}

/// Gives far more than anyone asked for.
#[derive(Debug)]
struct Rude(Rng);

impl Drafter for Rude {
    fn propose(&mut self, _: &[Ask<'_>], proposals: &mut [Proposal]) {
        for proposal in proposals {
            proposal.given.extend((0..100).map(|_| TokenId(self.0.within(0, VOCAB - 1))));
        }
    }

    fn reads_tokens(&self) -> bool {
        true
    }

    fn forget(&mut self, _: SeqId) {}
}

/// One day: its requests, the size of the machine and the bounds of the engine.
struct Day {
    cases: Vec<Case>,
    shape: Shape,
    limits: Limits,
    depth: Depth,
}

fn day(seed: u64) -> Day {
    let mut rng = Rng::new(seed);
    let page_tokens = rng.within(1, 6);
    let pages = 48_u32.div_ceil(page_tokens) + rng.within(1, 40);
    let cases = (0..rng.within(1, 12)).map(|_| case(&mut rng)).collect();
    Day {
        cases,
        shape: Shape {
            pages,
            page_tokens,
            vocab: VOCAB,
            rows_max: rng.within(1, 40),
            lanes: rng.within(1, 8),
            held_max: 16,
            ahead_max: 0,
        },
        limits: Limits { waiting_max: 64, tokens_max: 64, prompt_rows_max: rng.within(1, 40) },
        depth: Depth::always(rng.within(0, 16)),
    }
}

fn case(rng: &mut Rng) -> Case {
    let seed = rng.draw();
    let prompt: Vec<_> =
        (0..rng.within(1, 20)).map(|_| TokenId(rng.within(0, VOCAB - 1))).collect();
    let text = solo(seed, &prompt, rng.within(1, 24), VOCAB);
    Case { arrives: rng.within(0, 30), seed, prompt, text }
}

/// What a day cost.
struct Spent {
    steps: u32,
    rows: u64,
    hits: u64,
}

/// Runs a day to its end and checks every text.
fn run(day: &Day, drafter: Box<dyn Drafter>) -> Spent {
    let rows = Rc::new(Cell::new(0));
    let backend = HashBackend::new(day.shape, Rc::clone(&rows));
    let mut engine = Engine::new(day.limits, Box::new(backend), drafter, day.depth.clone());
    let mut texts: BTreeMap<SeqId, Vec<TokenId>> = BTreeMap::new();
    let mut done = 0;
    for step in 0..20_000 {
        for (index, case) in day.cases.iter().enumerate().filter(|(_, it)| it.arrives == step) {
            let id = SeqId(index as u64);
            let new_max = u32::try_from(case.text.len()).unwrap();
            let sampling = Arc::new(Sampling { seed: case.seed, ..Sampling::greedy() });
            let prompt = case.prompt.clone();
            let request = Request {
                id,
                prompt,
                new_max,
                sampling,
                priority: 0,
                speculate: true,
                guide: None,
            };
            engine.submit(request).unwrap();
        }
        let mut events = Vec::new();
        engine.step(&mut events).unwrap();
        for event in events {
            match event {
                Event::Tokens { seq, tokens, .. } => texts.entry(seq).or_default().extend(tokens),
                Event::Done { seq, .. } => {
                    let case = &day.cases[usize::try_from(seq.0).unwrap()];
                    assert_eq!(texts[&seq], case.text, "{seq:?}");
                    done += 1;
                }
            }
        }
        if done == day.cases.len() {
            engine.check_idle();
            return Spent { steps: step, rows: rows.get(), hits: engine.load().counts.prefix_hits };
        }
    }
    panic!("the day never ended");
}

#[test]
fn speculation_never_shows_in_the_text() {
    let (mut silent, mut good, mut ngram) = (0, 0, 0);
    for seed in 0..2_000 {
        let day = day(seed);
        let oracle = |wrong_percent| {
            Box::new(Oracle { cases: day.cases.clone(), wrong_percent, rng: Rng::new(seed) })
        };
        silent += run(&day, Box::new(Silent)).steps;
        good += run(&day, oracle(10)).steps;
        ngram += run(&day, Box::new(Ngram { context: 2 })).steps;
        run(&day, Box::new(Held));
        run(&day, Box::new(Rude(Rng::new(seed))));
        run(&day, oracle(50));
        run(&day, oracle(100));
    }
    println!("steps: silent {silent}, ngram {ngram}, good drafter {good}");
    assert!(good < silent, "drafts that are right must save steps");
}

/// The texts cannot tell whether work was done twice; the rows can.
#[test]
fn a_right_draft_is_computed_once() {
    for seed in 0..500 {
        let mut day = day(seed);
        day.shape.pages = 2_000; // Enough that no one is ever preempted.
        let oracle = Oracle { cases: day.cases.clone(), wrong_percent: 0, rng: Rng::new(seed) };
        let spent = run(&day, Box::new(oracle));
        let needed: usize = day.cases.iter().map(|it| it.prompt.len() + it.text.len() - 1).sum();
        assert_eq!(spent.rows + spent.hits, needed as u64, "seed {seed}");
    }
}
