//! One random day of an engine: its requests, its machine, and a run that checks every text.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::backend::Shape;
use engine::batch::guide::Guide;
use engine::batch::ids::{SeqId, TokenId};
use engine::batch::load::EngineLoad;
use engine::batch::pages::Salt;
use engine::batch::plan::TokenLogprobs;
use engine::batch::sampling::Sampling;
use engine::batch::step::{Engine, Event, Limits, Request};
use engine::draft::depth::Depth;
use engine::draft::held::Held;
use engine::draft::ngram::Ngram;
use engine::draft::{Ask, DRAFTS_MAX, Drafter, Proposal, Silent};
use tests::hash_backend::HashBackend;
use tests::hash_model::{Alone, alone};
use tests::rails::Rails;
use tests::rng::Rng;

/// A request as the workload makes it, and what it must get.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) arrives: u32,
    pub(crate) aborts: Option<u32>,
    pub(crate) prompt: Vec<TokenId>,
    pub(crate) new_max: u32,
    pub(crate) sampling: Arc<Sampling>,
    pub(crate) priority: i32,
    pub(crate) drafts_max: u32,
    pub(crate) guide: Option<Rails>,
    pub(crate) alone: Alone,
}

/// One day: its requests, the size of the machine and the bounds of the engine.
#[derive(Clone, Debug)]
pub(crate) struct Day {
    pub(crate) seed: u64,
    pub(crate) cases: Vec<Case>,
    pub(crate) shape: Shape,
    pub(crate) limits: Limits,
    pub(crate) depth: Depth,
}

/// Who drafts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Silent,
    Ngram,
    /// The backend itself, right this often of a hundred times.
    Held(u32),
    /// Knows the text, and lies this often of a hundred times.
    Oracle(u32),
    /// Gives far more than anyone asked for.
    Rude,
}

/// What was seen of one request.
#[derive(Debug, Default)]
struct Seen {
    tokens: Vec<TokenId>,
    logprobs: Vec<TokenLogprobs>,
    is_gone: bool,
}

impl Case {
    fn request(&self, id: SeqId) -> Request {
        let guide = self.guide.clone().map(|it| Box::new(it) as Box<dyn Guide>);
        Request {
            id,
            prompt: self.prompt.clone(),
            new_max: self.new_max,
            sampling: Arc::clone(&self.sampling),
            priority: self.priority,
            drafts_max: self.drafts_max,
            guide,
            salt: Salt::default(),
        }
    }

    /// A plain request that arrives at once.
    pub(crate) fn plain(prompt: &[TokenId], new_max: u32, shape: &Shape) -> Self {
        let sampling = Sampling::greedy();
        Self {
            arrives: 0,
            aborts: None,
            prompt: prompt.to_vec(),
            new_max,
            alone: alone(prompt, new_max, &sampling, None, shape.vocab),
            sampling: Arc::new(sampling),
            priority: 0,
            drafts_max: DRAFTS_MAX,
            guide: None,
        }
    }

    fn random(rng: &mut Rng, bases: &[Vec<TokenId>], vocab: u32) -> Self {
        let base = &bases[rng.within(0, 2) as usize];
        let mut prompt = base[..rng.within(0, 20) as usize].to_vec();
        prompt.extend((0..rng.within(1, 6)).map(|_| TokenId(rng.within(0, vocab - 1))));
        let sampling = wishes(rng, vocab);
        let guide = rng.chance(25).then(|| {
            let sticks_after = if rng.chance(10) { rng.within(0, 9) } else { 99 };
            let ends_after = rng.within(1, 30) as usize;
            Rails::new(rng.draw(), vocab, ends_after, sticks_after as usize)
        });
        let new_max = rng.within(1, 24);
        let boxed = guide.clone().map(|it| Box::new(it) as Box<dyn Guide>);
        let alone = alone(&prompt, new_max, &sampling, boxed, vocab);
        let arrives = rng.within(0, 15);
        Self {
            arrives,
            aborts: rng.chance(15).then(|| arrives + rng.within(0, 20)),
            prompt,
            new_max,
            sampling: Arc::new(sampling),
            priority: if rng.chance(20) { rng.within(0, 3).cast_signed() - 1 } else { 0 },
            drafts_max: if rng.chance(20) { rng.within(0, 2) } else { DRAFTS_MAX },
            guide,
            alone,
        }
    }
}

pub(crate) fn wishes(rng: &mut Rng, vocab: u32) -> Sampling {
    let mut it = Sampling { seed: rng.draw(), ..Sampling::greedy() };
    let mut token = || TokenId(rng.within(0, vocab - 1));
    let (first, second) = (token(), token());
    if rng.chance(60) {
        it.temperature = [0.3, 0.8, 1.0, 1.7][rng.within(0, 3) as usize];
        it.top_k = if rng.chance(30) { rng.within(1, 4) } else { 0 };
        it.top_p = if rng.chance(30) { 0.8 } else { 1.0 };
        it.min_p = if rng.chance(20) { 0.1 } else { 0.0 };
    }
    if rng.chance(25) {
        it.presence_penalty = 0.4;
        it.frequency_penalty = 0.3;
        it.repetition_penalty = if rng.chance(50) { 1.3 } else { 1.0 };
    }
    if rng.chance(10) {
        it.bias = vec![(first, 2.0)];
    }
    if rng.chance(30) {
        it.stop_tokens = vec![first, second];
        it.outputs_min = rng.within(0, 10);
    }
    it.logprobs = rng.chance(15).then_some(2);
    it
}

impl Day {
    pub(crate) fn random(seed: u64, ahead_max: u32) -> Self {
        let mut rng = Rng::new(seed);
        let vocab = if rng.chance(80) { 5 } else { 37 };
        let page_tokens = rng.within(1, 6);
        let tokens = |rng: &mut Rng| (0..20).map(|_| TokenId(rng.within(0, vocab - 1))).collect();
        let bases: Vec<Vec<TokenId>> = (0..3).map(|_| tokens(&mut rng)).collect();
        let cases = (0..rng.within(1, 12)).map(|_| Case::random(&mut rng, &bases, vocab)).collect();
        let prompt_rows_max = rng.within(1, 40);
        let spare = if rng.chance(70) { rng.within(0, 6) } else { rng.within(0, 60) };
        Self {
            seed,
            cases,
            shape: Shape {
                pages: 50_u32.div_ceil(page_tokens) + spare,
                page_tokens,
                vocab,
                rows_max: rng.within(1, 40),
                lanes: rng.within(1, 8),
                held_max: rng.within(0, 7),
                ahead_max,
            },
            limits: Limits { waiting_max: 64, tokens_max: 64, prompt_rows_max },
            depth: depth(&mut rng),
        }
    }

    fn drafter(&self, kind: Kind, asked: &Rc<RefCell<BTreeSet<SeqId>>>) -> Box<dyn Drafter> {
        let (vocab, rng) = (self.shape.vocab, Rng::new(self.seed));
        match kind {
            Kind::Silent => Box::new(Silent),
            Kind::Held(_) => Box::new(Held),
            Kind::Ngram => Box::new(Ngram { context: 2 }),
            Kind::Rude => Box::new(Rude { vocab, rng }),
            Kind::Oracle(wrong_percent) => {
                let (cases, asked) = (self.cases.clone(), Rc::clone(asked));
                Box::new(Oracle { cases, wrong_percent, vocab, rng, asked })
            }
        }
    }

    /// Runs the day to its end, checks every text and says what it cost.
    pub(crate) fn run(&self, kind: Kind) -> EngineLoad {
        let _told = Told(self.seed, kind, self.shape.ahead_max);
        let right_percent = if let Kind::Held(percent) = kind { percent } else { 0 };
        let backend = HashBackend::new(self.shape, right_percent);
        let rows_fed = backend.rows_fed();
        let asked = Rc::default();
        let drafter = self.drafter(kind, &asked);
        let mut engine = Engine::new(self.limits, Box::new(backend), drafter, self.depth.clone());
        let mut seen: BTreeMap<SeqId, Seen> = BTreeMap::new();
        let mut drafts = (0, 0);
        for step in 0..20_000 {
            self.arrive_and_leave(step, &mut engine, &mut seen);
            let mut events = Vec::new();
            engine.step(&mut events).unwrap();
            for event in events {
                self.check(event, &mut seen, &mut drafts);
            }
            let load = engine.load();
            assert!(load.running <= self.shape.lanes && load.decoding <= load.running);
            assert!(load.pages_used + load.pages_cached <= load.pages_total);
            let gone = seen.values().filter(|it| it.is_gone).count();
            if gone == self.cases.len() && engine.is_idle() {
                engine.check_idle();
                assert_eq!((load.running, load.waiting, load.pages_used), (0, 0, 0));
                assert_eq!((load.drafts.drafted, load.drafts.accepted), drafts);
                assert_eq!(load.drafts.accepted, load.drafts.accepted_at.iter().sum::<u64>());
                assert_eq!(load.counts.rows, rows_fed.load(Ordering::Relaxed));
                assert!(asked.borrow().is_empty(), "a drafter was not told to forget");
                return load;
            }
        }
        panic!("the day never ended");
    }

    fn arrive_and_leave(&self, step: u32, engine: &mut Engine, seen: &mut BTreeMap<SeqId, Seen>) {
        for (id, case) in (0..).map(SeqId).zip(&self.cases) {
            if case.arrives == step {
                engine.submit(case.request(id)).unwrap();
                seen.entry(id).or_default();
            }
            if case.aborts == Some(step) {
                let seen = seen.get_mut(&id).expect("it arrived before");
                assert_eq!(engine.abort(id), !seen.is_gone, "here until it is done");
                assert!(case.alone.tokens.starts_with(&seen.tokens));
                seen.is_gone = true;
            }
        }
    }

    fn check(&self, event: Event, seen: &mut BTreeMap<SeqId, Seen>, drafts: &mut (u64, u64)) {
        match event {
            Event::Tokens { seq, tokens, logprobs, drafted, kept, .. } => {
                assert!(kept <= drafted && kept as usize <= tokens.len() && !tokens.is_empty());
                *drafts = (drafts.0 + u64::from(drafted), drafts.1 + u64::from(kept));
                let case = &self.cases[usize::try_from(seq.0).unwrap()];
                assert!(drafted <= case.drafts_max, "it wanted fewer drafts");
                let seen = seen.get_mut(&seq).expect("it arrived");
                assert!(!seen.is_gone, "an event after the end");
                seen.tokens.extend(tokens);
                seen.logprobs.extend(logprobs);
            }
            Event::Done { seq, reason, cached } => {
                let case = &self.cases[usize::try_from(seq.0).unwrap()];
                let seen = seen.get_mut(&seq).expect("it arrived");
                assert!(!std::mem::replace(&mut seen.is_gone, true), "it ended twice");
                assert_eq!(seen.tokens, case.alone.tokens, "{seq:?}");
                assert_eq!(seen.logprobs, case.alone.logprobs, "{seq:?}");
                assert_eq!(reason, case.alone.finish, "{seq:?}");
                assert!(cached.is_multiple_of(self.shape.page_tokens));
                assert!((cached as usize) < case.prompt.len());
            }
        }
    }
}

fn depth(rng: &mut Rng) -> Depth {
    match rng.within(0, 3) {
        0 => Depth::none(),
        1 => Depth::always(rng.within(1, 20)),
        2 => Depth::until(rng.within(1, 6), rng.within(1, 7)),
        _ => Depth::table(&[(1, 7), (3, 4), (5, 1)]).unwrap(),
    }
}

/// Says which day it was when a check fails.
struct Told(u64, Kind, u32);

impl Drop for Told {
    #[expect(clippy::print_stdout, reason = "a day that fails says how to run it again")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("seed {} with {:?}, {} ahead", self.0, self.1, self.2);
        }
    }
}

#[derive(Debug)]
struct Oracle {
    cases: Vec<Case>,
    wrong_percent: u32,
    vocab: u32,
    rng: Rng,
    /// Sequences that asked and were not forgotten.
    asked: Rc<RefCell<BTreeSet<SeqId>>>,
}

impl Drafter for Oracle {
    fn propose(&mut self, asks: &[Ask<'_>], proposals: &mut [Proposal]) {
        for (ask, proposal) in asks.iter().zip(proposals) {
            self.asked.borrow_mut().insert(ask.seq);
            let case = &self.cases[usize::try_from(ask.seq.0).unwrap()];
            let known = ask.tokens.len() - case.prompt.len();
            let truth = case.alone.tokens[known..].iter().take(ask.wanted as usize);
            let (rng, wrong) = (&mut self.rng, self.wrong_percent);
            let lie = |token: TokenId| TokenId((token.0 + 1) % self.vocab);
            proposal.given.extend(truth.map(|&it| if rng.chance(wrong) { lie(it) } else { it }));
        }
    }

    fn reads_tokens(&self) -> bool {
        true
    }

    fn forget(&mut self, seq: SeqId) {
        self.asked.borrow_mut().remove(&seq);
    }
}

#[derive(Debug)]
struct Rude {
    vocab: u32,
    rng: Rng,
}

impl Drafter for Rude {
    fn propose(&mut self, _: &[Ask<'_>], proposals: &mut [Proposal]) {
        for proposal in proposals {
            let last = self.vocab - 1;
            proposal.given.extend((0..100).map(|_| TokenId(self.rng.within(0, last))));
            proposal.held = 100;
        }
    }

    fn reads_tokens(&self) -> bool {
        true
    }

    fn forget(&mut self, _: SeqId) {}
}
