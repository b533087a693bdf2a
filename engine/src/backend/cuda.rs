//! The CUDA backend: a step is a few launches, or one replay of recorded work; what it yields is
//! read late.
//!
//! Lengths, tokens and page tables live on the device, so the next step can be queued before the
//! last one's choices are read. Drafts are made, verified and accepted there; the host learns how
//! many tokens stand.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use kernels::cuda::{Buffer, Card, Device, DeviceError, Facts, Graph, Inbox};
use kernels::ops::bf16;
use kernels::ops::block_values;
use kernels::ops::rope::Pages;
use kernels::ops::rows::{Extent, PAGE_TOKENS, Step, StepSizes};
use kernels::ops::sample::{self, Choices};

use self::head::{Extents, Head};
use self::layer::{Room, Scratch, Spans};
use self::results::{Outboxes, Sent};
use self::send::{Outgoing, Recorded, Tables};
pub use self::shelf::Told;
use self::shelf::{Offer, Shelf};
use self::sizes::{check, held_max, page_count, positions, shape, words_max};
use self::target::{Pass, Target};
use self::weights::Source;
use crate::backend::layer::Sizes;
use crate::backend::{Backend, BackendError, Shape};
use crate::batch::plan::{StepChoices, StepPlan};
use crate::model::{self, HeadConfig, Model, ModelConfig};

mod head;
mod layer;
mod results;
mod send;
mod shelf;
mod sizes;
mod target;
mod weights;

/// How the backend is to be laid out.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    pub card: Card,
    /// Where kernels that were compiled at start are kept.
    pub cache: Option<PathBuf>,
    pub memory: KvMemory,
    /// Longest text, in tokens; and the longest that there must be room for.
    pub context_max: u32,
    pub context_min: u32,
    pub rows_max: u32,
    pub lanes: u32,
    /// Drafts of one entry, whoever makes them.
    pub drafts_max: u32,
    /// How likely the draft at each place is kept, where that is only pretended; else empty.
    pub simulated: Vec<f32>,
    /// Whether steps are recorded and replayed, or launched one by one.
    pub records: bool,
    /// Folder through which engines of the same model on the same card share its weights.
    pub share: Option<PathBuf>,
}

/// Memory for keys and values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KvMemory {
    Bytes(u64),
    /// Of what is free once the weights are there.
    Fraction(f64),
    Pages(u32),
}

/// Sizes of a model and its draft head with random weights: for speed tests.
#[derive(Clone, Copy, Debug)]
pub struct Dummy<'a> {
    pub model: &'a ModelConfig,
    pub head: Option<&'a HeadConfig>,
}

/// Tensors of the model and of the draft head; none for random ones.
type Tensors<'a> = (Option<&'a TensorMap>, Option<&'a TensorMap>);
type TensorMap = BTreeMap<String, model::Tensor>;

/// A model on one GPU.
#[derive(Debug)]
pub struct CudaBackend {
    shape: Shape,
    device: Arc<Device>,
    target: Target,
    head: Option<Head>,
    pages: Pages,
    scratch: Scratch,
    room: Room,
    step: Step,
    /// (choosers, hidden) in blocks: the rows that choose, where they are not all.
    chosen: Buffer<bf16>,
    logits: Buffer<f32>,
    choices: Choices,
    spans: [Buffer<[u32; 2]>; 2],
    span_boxes: [Inbox<[u32; 2]>; 2],
    outgoing: Outgoing,
    tables: Tables,
    inboxes: [Inbox<u32>; 2],
    outboxes: [Outboxes; 2],
    sent: VecDeque<Sent>,
    graphs: BTreeMap<Recorded, Graph>,
    records: bool,
    submitted: usize,
    /// Stands as long as the weights do.
    shared: Option<(Offer, Told)>,
}

impl From<DeviceError> for BackendError {
    fn from(error: DeviceError) -> Self {
        Self { detail: error.to_string() }
    }
}

/// Memory that one page takes, with the draft layer's part when there is a head.
pub fn kv_bytes_per_page(model: &ModelConfig, head: Option<&HeadConfig>) -> usize {
    let values = model.layers * Pages::page_values(model.kv_heads, model.head_dim);
    let tokens = PAGE_TOKENS * size_of::<u32>();
    values * size_of::<bf16>() + head.map_or(0, head::page_bytes) + tokens
}

fn step(device: &Device, sizes: StepSizes, rates: &[f32]) -> Result<Step, BackendError> {
    let mut step = Step::new(device, sizes)?;
    if !rates.is_empty() {
        step.simulate(device, rates)?;
    }
    Ok(step)
}

impl CudaBackend {
    /// Lays out weights and pages. The model itself is not needed after that.
    pub fn new(
        model: &Model,
        head: Option<&model::Head>,
        options: &CudaOptions,
    ) -> Result<Self, BackendError> {
        let sizes = Dummy { model: &model.config, head: head.map(|it| &it.config) };
        let ids = head.map_or(&[][..], |it| &it.target_ids);
        let tensors = (Some(&model.tensors), head.map(|it| &it.tensors));
        Self::build(sizes, tensors, ids, options)
    }

    /// Random weights of the given sizes.
    pub fn dummy(sizes: Dummy<'_>, options: &CudaOptions) -> Result<Self, BackendError> {
        let ids: Vec<u32> =
            sizes.head.map_or(Vec::new(), |it| (0..).take(it.draft_vocab).collect());
        Self::build(sizes, (None, None), &ids, options)
    }

    fn build(
        sizes: Dummy<'_>,
        tensors: Tensors<'_>,
        target_ids: &[u32],
        options: &CudaOptions,
    ) -> Result<Self, BackendError> {
        let Dummy { model, head: head_config } = sizes;
        check(model, head_config, options)?;
        let device = Arc::new(Device::open(&options.card, options.cache.as_deref())?);
        let source = Source { device: &device, tensors: tensors.0, shelf: None };
        let held_max = head_config.map_or(0, |_| held_max(model, options));
        let positions = positions(options);
        let [rows_max, lanes, drafts_max] =
            [options.rows_max, options.lanes, options.drafts_max].map(|it| it as usize);
        let (target, shelf) = shelf::target(source, &device, model, options)?;
        let extents = Extents { positions, rows_max, lanes };
        let borrowed = (source, target::head_name(model));
        let mut head = match head_config {
            Some(config) => {
                let source = Source { tensors: tensors.1, ..source };
                Some(Head::read(source, config, target_ids, borrowed, extents)?)
            }
            None => None,
        };
        let choosers_max = lanes * (1 + drafts_max);
        let mut both = vec![target.sizes];
        both.extend(head_config.map(Sizes::from));
        let scratch = Scratch::new(&device, rows_max, positions, &both)?;
        let room = Room::new(&device, target.sizes, rows_max)?;
        let words_max = words_max(model, options, choosers_max, positions);
        let chosen = device.zeros(block_values(choosers_max, model.hidden))?;
        let logits = device.zeros(choosers_max * model.vocab)?;
        let spans = [device.zeros(rows_max)?, device.zeros(rows_max)?];
        // What is left is for keys and values.
        device.synchronize()?;
        let pages = page_count(&device, sizes, options)?;
        if let Some(head) = &mut head {
            head.take_pages(&device, pages as usize)?;
        }
        let step_sizes = StepSizes {
            lanes,
            pages: pages as usize,
            pages_max: positions / PAGE_TOKENS,
            rows_max,
            choosers_max,
            drafts_max,
            words_max,
        };
        let step = step(&device, step_sizes, &options.simulated)?;
        let memory =
            Pages::new(&device, model.layers, pages as usize, model.kv_heads, model.head_dim)?;
        let outboxes = [(); 2].map(|()| Outboxes::new(&device, step.results.len(), choosers_max));
        let [first, second] = outboxes;
        Ok(Self {
            shape: shape(model, options, pages, held_max),
            target,
            head,
            pages: memory,
            scratch,
            room,
            chosen,
            logits,
            choices: Choices::new(&device, choosers_max)?,
            spans,
            span_boxes: [Inbox::new(&device, rows_max)?, Inbox::new(&device, rows_max)?],
            outgoing: Outgoing::default(),
            tables: Tables::new(lanes, positions / PAGE_TOKENS),
            inboxes: [Inbox::new(&device, words_max)?, Inbox::new(&device, words_max)?],
            outboxes: [first?, second?],
            step,
            sent: VecDeque::new(),
            graphs: BTreeMap::new(),
            records: options.records,
            submitted: 0,
            shared: shelf.and_then(Shelf::offer),
            device,
        })
    }

    pub fn facts(&self) -> &Facts {
        self.device.facts()
    }

    /// What came of sharing the weights; `None` if they are this process's alone.
    pub fn shared(&self) -> Option<Told> {
        self.shared.as_ref().map(|it| it.1)
    }

    /// Records the steps that decoding takes with so many drafts, for every batch.
    pub fn record_all(&mut self, depths: &[u32]) -> Result<(), BackendError> {
        let held_max = self.shape.held_max;
        for entries in send::batches(self.shape.lanes as usize) {
            for &depth in depths.iter().filter(|it| **it <= held_max) {
                let depth = depth as usize;
                self.record(Recorded { entries, rows: 1 + depth, depth })?;
            }
        }
        Ok(())
    }

    /// Runs the whole step once, then records it. The step before must have been queued whole: what
    /// runs here is a step in which no row exists.
    fn record(&mut self, shape: Recorded) -> Result<(), BackendError> {
        let nothing = [0, 0, 0, 0, 8, 8, 8, 8];
        self.device.write(&mut self.step.inbox, 0, &nothing)?;
        self.run(shape.extent(), Some(shape), shape.depth, (0, 0))?;
        self.device.synchronize()?;
        let device = Arc::clone(&self.device);
        let graph = device.capture(|| {
            let queued = self.run(shape.extent(), Some(shape), shape.depth, (0, 0));
            queued.map_err(|error| DeviceError::Failed(error.detail))
        })?;
        self.graphs.insert(shape, graph);
        Ok(())
    }

    /// Queues everything between the words that were sent and the results.
    fn run(
        &mut self,
        extent: Extent,
        recorded: Option<Recorded>,
        depth: usize,
        spans: (usize, usize),
    ) -> Result<(), BackendError> {
        let Self { device, target, head, scratch, step, room, pages, logits, choices, .. } = self;
        step.lay(device, extent)?;
        if let Some(head) = head {
            head.guess(device, scratch, target, step, extent, depth)?;
        }
        let spans = match recorded {
            Some(shape) => Spans {
                few: &step.spans,
                few_len: shape.entries,
                few_rows: shape.rows,
                many: &self.spans[1],
                many_len: 0,
            },
            None => Spans {
                few: &self.spans[0],
                few_len: spans.0,
                few_rows: self.outgoing.few_rows,
                many: &self.spans[1],
                many_len: spans.1,
            },
        };
        let rows = extent.rows;
        let captured = head.as_ref().map_or(0, |it| it.capture.depth());
        let capture = head.as_mut().map(|it| &mut it.capture);
        let mut pass = Pass { device, scratch, step, rows, spans, pages, room, capture };
        target.embed(&mut pass)?;
        target.run(&mut pass, 0..captured)?;
        if let Some(head) = head.as_mut() {
            device.beside(|| head.keep_up(device, target, step, rows))?;
        }
        let mut pass = Pass { device, scratch, step, rows, spans, pages, room, capture: None };
        target.run(&mut pass, captured..target.depth())?;
        let mut x = &room.x;
        if recorded.is_none() {
            let of = (rows, target.sizes.hidden);
            step.gather(device, extent.choosers, x, of, &mut self.chosen)?;
            x = &self.chosen;
        }
        if 0 < extent.choosers {
            target.logits(device, scratch, x, extent.choosers, logits)?;
            sample::launch(device, step, extent, logits, target.vocab, choices)?;
        }
        step.accept(device, extent, &choices.tokens)?;
        if let Some(head) = head {
            device.join()?;
            head.keep_states(device, step, extent)?;
        }
        Ok(())
    }

    fn launch(&mut self) -> Result<(), BackendError> {
        let extent = self.outgoing.extent();
        let recorded = self.outgoing.recorded.filter(|_| self.records);
        if let Some(shape) = recorded
            && !self.graphs.contains_key(&shape)
        {
            self.record(shape)?;
        }
        let words = self.outgoing.words.finish();
        if self.step.sizes.words_max < words.len() {
            let detail = format!("a step of {} words is longer than the inbox", words.len());
            return Err(BackendError { detail });
        }
        self.inboxes[self.submitted % 2].send(&mut self.step.inbox, words)?;
        if let Some(shape) = recorded {
            return Ok(self.graphs[&shape].launch()?);
        }
        if self.outgoing.recorded.is_none() {
            let [few, many] = &mut self.span_boxes;
            few.send(&mut self.spans[0], &self.outgoing.few)?;
            many.send(&mut self.spans[1], &self.outgoing.many)?;
        }
        let spans = (self.outgoing.few.len(), self.outgoing.many.len());
        let (shape, depth) = (self.outgoing.recorded, self.outgoing.depth);
        self.run(extent, shape, depth, spans)
    }
}

impl Backend for CudaBackend {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), BackendError> {
        let vocab = self.target.vocab;
        let is_known = plan.rows.iter().all(|it| (it.0 as usize) < vocab);
        assert!(is_known, "tokens are checked where requests enter");
        self.outgoing.fill(plan, &mut self.tables, self.target.sizes, vocab);
        self.launch()?;
        let outbox = self.submitted % 2;
        self.submitted += 1;
        let choosers = self.outgoing.extent().choosers;
        let laid = self.outgoing.words.entries();
        let sent = Sent::new(outbox, plan, laid);
        let results = laid.len() * self.step.result_words();
        self.outboxes[outbox].fetch(
            &sent,
            (&self.step.results, results),
            &self.choices,
            choosers,
        )?;
        self.sent.push_back(sent);
        Ok(())
    }

    fn collect(&mut self, choices: &mut StepChoices) -> Result<(), BackendError> {
        choices.clear();
        let sent = self.sent.pop_front().ok_or_else(|| BackendError {
            detail: "collected more steps than submitted".to_owned(),
        })?;
        self.outboxes[sent.outbox].read(&sent, self.step.result_words(), choices)
    }
}
