//! Runs requests through an engine over a CPU backend, and notes all that came of them.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use engine::backend::cpu::CpuBackend;
use engine::backend::{Backend, BackendError, Shape};
use engine::batch::guide::Guide;
use engine::batch::ids::{SeqId, TokenId};
use engine::batch::load::EngineLoad;
use engine::batch::pages::Salt;
use engine::batch::plan::{StepChoices, StepPlan, TokenLogprobs};
use engine::batch::sampling::Sampling;
use engine::batch::step::{Engine, Event, Finish, Limits, Request};
use engine::draft::depth::Depth;
use engine::draft::{DRAFTS_MAX, Drafter};

use crate::rails::Rails;

/// A text that is asked for.
#[derive(Clone, Debug)]
pub struct Order {
    pub prompt: Vec<u32>,
    pub new_max: u32,
    pub sampling: Sampling,
    /// Step before which it arrives.
    pub arrives: u32,
    /// Lower goes first.
    pub priority: i32,
    /// Drafts that it may get in one step.
    pub drafts_max: u32,
    /// What the text must match.
    pub guide: Option<Rails>,
}

impl Order {
    /// A greedy text that is asked for at once.
    pub fn new(prompt: Vec<u32>, new_max: u32) -> Self {
        let sampling = Sampling::greedy();
        let drafts_max = DRAFTS_MAX;
        Self { prompt, new_max, sampling, arrives: 0, priority: 0, drafts_max, guide: None }
    }
}

/// What came of an order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Written {
    pub tokens: Vec<u32>,
    /// One for each token, if asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// One for each of the prompt's tokens but the first, if asked for.
    pub prompt: Vec<TokenLogprobs>,
    /// Drafts kept in each step that had some.
    pub kept: Vec<u32>,
    /// Prompt tokens that were found in pages.
    pub cached: u32,
    pub finish: Option<Finish>,
}

/// How an engine is run over a backend.
#[derive(Clone, Debug)]
pub struct Setting {
    /// At most what the backend has.
    pub pages: u32,
    pub rows_max: u32,
    pub lanes: u32,
    pub ahead_max: u32,
    pub prompt_rows_max: u32,
    pub depth: Depth,
}

/// A backend that outlives the engines that run it, one after the other.
#[derive(Clone, Debug)]
pub struct Lent {
    backend: Rc<RefCell<CpuBackend>>,
    shape: Shape,
}

impl Lent {
    pub fn new(backend: CpuBackend) -> Self {
        let shape = backend.shape();
        Self { backend: Rc::new(RefCell::new(backend)), shape }
    }

    /// Lets a closure work on the backend itself, between engines.
    pub fn with<T>(&self, body: impl FnOnce(&mut CpuBackend) -> T) -> T {
        body(&mut self.backend.borrow_mut())
    }

    fn sized(&self, setting: &Setting) -> Self {
        let Setting { pages, rows_max, lanes, ahead_max, .. } = *setting;
        let all = self.shape;
        assert!(pages <= all.pages && rows_max <= all.rows_max && lanes <= all.lanes);
        let shape = Shape { pages, rows_max, lanes, ahead_max, ..all };
        Self { backend: Rc::clone(&self.backend), shape }
    }
}

impl Backend for Lent {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), BackendError> {
        self.backend.borrow_mut().submit(plan)
    }

    fn collect(&mut self, choices: &mut StepChoices) -> Result<(), BackendError> {
        self.backend.borrow_mut().collect(choices)
    }
}

/// Takes the orders as they arrive and runs until all are written.
pub fn write(
    backend: &Lent,
    setting: &Setting,
    drafter: Box<dyn Drafter>,
    orders: &[Order],
) -> Vec<Written> {
    write_counted(backend, setting, drafter, orders).0
}

/// The same, with what the engine counted meanwhile.
pub fn write_counted(
    backend: &Lent,
    setting: &Setting,
    drafter: Box<dyn Drafter>,
    orders: &[Order],
) -> (Vec<Written>, EngineLoad) {
    let limits =
        Limits { waiting_max: 1024, tokens_max: 8192, prompt_rows_max: setting.prompt_rows_max };
    let sized = Box::new(backend.sized(setting));
    let mut engine = Engine::new(limits, sized, drafter, setting.depth.clone());
    let mut written = vec![Written::default(); orders.len()];
    for step in 0..1_000_000 {
        for (index, order) in orders.iter().enumerate().filter(|(_, it)| it.arrives == step) {
            engine.submit(request(index, order)).expect("the queue is long");
        }
        let mut events = Vec::new();
        engine.step(&mut events).expect("a CPU does not fail");
        events.into_iter().for_each(|event| note(event, &mut written));
        if written.iter().all(|it| it.finish.is_some()) {
            while !engine.is_idle() {
                engine.step(&mut Vec::new()).expect("a CPU does not fail");
            }
            engine.check_idle();
            return (written, engine.load());
        }
    }
    panic!("the orders were never all written");
}

fn request(index: usize, order: &Order) -> Request {
    Request {
        id: SeqId(index as u64),
        prompt: order.prompt.iter().copied().map(TokenId).collect(),
        new_max: order.new_max,
        sampling: Arc::new(order.sampling.clone()),
        priority: order.priority,
        drafts_max: order.drafts_max,
        guide: order.guide.clone().map(|it| Box::new(it) as Box<dyn Guide>),
        salt: Salt::default(),
    }
}

fn note(event: Event, written: &mut [Written]) {
    let index = |seq: SeqId| usize::try_from(seq.0).expect("an index");
    match event {
        Event::Tokens { seq, tokens, logprobs, prompt, drafted, kept, .. } => {
            let it = &mut written[index(seq)];
            it.tokens.extend(tokens.iter().map(|it| it.0));
            it.logprobs.extend(logprobs);
            it.prompt.extend(prompt);
            it.kept.extend((0 < drafted).then_some(kept));
        }
        Event::Done { seq, reason, cached } => {
            let it = &mut written[index(seq)];
            it.finish = Some(reason);
            it.cached = cached;
        }
    }
}
