//! One GPU of those that compute a model together, or the only one: its weights and buffers, and
//! its queue. Where there are several, each is told the same steps and comes to the same choices.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use kernels::cuda::{Buffer, Device, DeviceError, Graph, Inbox};
use kernels::ops::attend::Table;
use kernels::ops::bf16;
use kernels::ops::block_values;
use kernels::ops::collective::Collective;
use kernels::ops::draft::Window;
use kernels::ops::rope::Pages;
use kernels::ops::rows::{Extent, NOTHING, PAGE_TOKENS, Step, StepSizes};
use kernels::ops::sample::{self, Choices};

use super::deferred::{self, Waiting};
use super::head::{Extents, Head};
use super::layer::{Room, Scratch};
use super::results::{Outboxes, Sent};
use super::send::{self, Outgoing, Recorded, Tables};
use super::shard::Shard;
use super::shelf::{self, Offer, Shelf, Told};
use super::sizes::{choosers_max, held_max, page_bytes, page_count, positions, shape, words_max};
use super::spans::{Spans, spans_of};
use super::target::{self, Pass, Target};
use super::way::{self, Way};
use super::weights::Source;
use super::{CudaOptions, Dummy, Tensors};
use crate::backend::layer::Sizes;
use crate::backend::{BackendError, Shape};
use crate::batch::plan::{StepChoices, StepPlan};

/// Where a rank computes, what is its part, and the way to the others if there are some.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) device: Arc<Device>,
    pub(super) shard: Shard,
    pub(super) ranks: Option<Collective>,
}

/// A model, or a rank's part of one, on one GPU.
#[derive(Debug)]
pub(super) struct Rank {
    pub(super) shape: Shape,
    pub(super) device: Arc<Device>,
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
    table: Table,
    span_boxes: [Inbox<[u32; 2]>; 2],
    outgoing: Outgoing,
    tables: Tables,
    outboxes: [Outboxes; 2],
    sent: VecDeque<Sent>,
    /// Bytes of a page.
    page_bytes: usize,
    graphs: BTreeMap<Recorded, Graph>,
    records: bool,
    waiting: Waiting,
    /// Stands as long as the weights do.
    pub(super) shared: Option<(Offer, Told)>,
}

fn step(device: &Device, sizes: StepSizes, rates: &[f32]) -> Result<Step, BackendError> {
    let mut step = Step::new(device, sizes)?;
    if !rates.is_empty() {
        step.simulate(device, rates)?;
    }
    Ok(step)
}

impl Rank {
    /// Lays its part of the weights out; random ones without `tensors`. It has no pages yet.
    pub(super) fn new(
        seat: Seat,
        sizes: Dummy<'_>,
        tensors: Tensors<'_>,
        target_ids: &[u32],
        options: &CudaOptions,
    ) -> Result<Self, BackendError> {
        let Dummy { model, head: head_config } = sizes;
        let Seat { device, shard, ranks } = seat;
        let format = options.weights;
        let source = Source { device: &device, tensors: tensors.0, shelf: None, shard, format };
        let positions = positions(options);
        let [rows_max, lanes] = [options.rows_max, options.lanes].map(|it| it as usize);
        let (mut target, shelf) = shelf::target(source, &device, model, options)?;
        let extents = Extents { positions, rows_max, lanes };
        let borrowed = (source, target::head_name(model));
        let head = match head_config {
            Some(config) => {
                let source = Source { tensors: tensors.1, ..source };
                Some(Head::read(source, config, target_ids, borrowed, extents)?)
            }
            None => None,
        };
        if ranks.is_none() {
            target.run_at_once(&device, head.as_ref().map(|it| &it.capture))?;
        }
        let choosers_max = choosers_max(options);
        let mut both = vec![target.sizes];
        both.extend(head_config.map(|it| shard.sizes(Sizes::from(it))));
        let scratch = Scratch::new(&device, rows_max, positions, &both, ranks)?;
        let words_max = words_max(model, options, choosers_max, positions);
        let step_sizes = StepSizes {
            lanes,
            pages: 0,
            pages_max: positions / PAGE_TOKENS,
            rows_max,
            choosers_max,
            drafts_max: options.drafts_max as usize,
            words_max,
        };
        let step = step(&device, step_sizes, &options.simulated)?;
        let outboxes = [(); 2].map(|()| Outboxes::new(&device, choosers_max));
        let [first, second] = outboxes;
        let held_max = head_config.map_or(0, |_| held_max(model, options));
        Ok(Self {
            shape: shape(model, options, held_max),
            room: Room::new(&device, target.sizes, rows_max)?,
            chosen: device.zeros(block_values(choosers_max, model.hidden))?,
            logits: device.zeros(choosers_max * model.vocab)?,
            choices: Choices::new(&device, choosers_max)?,
            spans: [device.zeros(rows_max)?, device.zeros(rows_max)?],
            table: Table::new(&device, lanes)?,
            span_boxes: [Inbox::new(&device, rows_max)?, Inbox::new(&device, rows_max)?],
            outgoing: Outgoing::default(),
            tables: Tables::new(lanes, positions / PAGE_TOKENS),
            outboxes: [first?, second?],
            pages: Pages::new(&device, model.layers, 0, target.sizes.kv_heads, model.head_dim)?,
            page_bytes: page_bytes(model, head_config, shard),
            target,
            head,
            scratch,
            step,
            sent: VecDeque::new(),
            graphs: BTreeMap::new(),
            records: options.records,
            waiting: Waiting::default(),
            shared: shelf.and_then(Shelf::offer),
            device,
        })
    }

    /// Pages that there is memory for: all the rest is in place.
    pub(super) fn pages_there(&self, options: &CudaOptions) -> Result<u32, BackendError> {
        self.device.synchronize()?;
        page_count(&self.device, self.page_bytes, options)
    }

    /// Takes memory for so many pages.
    pub(super) fn take_pages(
        &mut self,
        pages: u32,
        options: &CudaOptions,
    ) -> Result<(), BackendError> {
        let (device, count) = (&self.device, pages as usize);
        if let Some(head) = &mut self.head {
            head.take_pages(device, count)?;
        }
        let sizes = StepSizes { pages: count, ..self.step.sizes };
        self.step = step(device, sizes, &options.simulated)?;
        let Sizes { kv_heads, head_dim, .. } = self.target.sizes;
        self.pages = Pages::new(device, self.target.depth(), count, kv_heads, head_dim)?;
        self.shape.pages = pages;
        Ok(())
    }

    /// Records the steps that decoding takes with so many drafts, for every batch that has room.
    pub(super) fn record_all(&mut self, depths: &[u32]) -> Result<(), BackendError> {
        let (held_max, rows_max) = (self.shape.held_max, self.step.sizes.rows_max);
        for entries in send::batches(self.shape.lanes as usize) {
            for &depth in depths.iter().filter(|it| **it <= held_max) {
                let (rows, depth) = (1 + depth as usize, depth as usize);
                let keys_max = self.keys_max();
                let way = |keys| {
                    let way = self.target.way((entries, rows), (keys, keys_max));
                    way.with_drafts(depth)
                };
                let ways: BTreeSet<Way> = way::lengths(keys_max).map(way).collect();
                let shapes = ways.into_iter().map(|way| Recorded { entries, rows, depth, way });
                for shape in shapes.filter(|it| it.fits(rows_max)) {
                    self.record(shape)?;
                }
            }
        }
        Ok(())
    }

    /// Runs the whole step once, then records it. The step before must have been queued whole: what
    /// runs here is a step in which no row exists.
    fn record(&mut self, shape: Recorded) -> Result<(), BackendError> {
        self.step.send(&NOTHING)?;
        self.run(shape.extent(), Some(shape), shape.depth, (0, 0))?;
        self.step.take_back(&self.device)?;
        let device = Arc::clone(&self.device);
        let graph = device.capture(|| {
            let queued = self.run(shape.extent(), Some(shape), shape.depth, (0, 0));
            queued.map_err(|error| DeviceError::Failed(error.detail))
        })?;
        self.graphs.insert(shape, graph);
        Ok(())
    }

    /// Rows that may wait of a step, if they may: there is a draft layer, and the step is recorded.
    fn window(&self, recorded: Option<Recorded>) -> Option<Window> {
        let may_wait = recorded.filter(|_| self.records && self.head.is_some());
        may_wait.and_then(|it| deferred::window(it, self.step.sizes.rows_max))
    }

    /// Keys of the longest text that there may be.
    fn keys_max(&self) -> usize {
        self.step.sizes.pages_max * PAGE_TOKENS
    }

    /// How the step that goes out is taken.
    fn way(&self) -> Way {
        let way = self.target.way(self.outgoing.few(), (self.outgoing.keys, self.keys_max()));
        let has_many = self.outgoing.recorded.is_none() && !self.outgoing.many.is_empty();
        Way { at_once: way.at_once && !has_many, ..way }.with_drafts(self.outgoing.depth)
    }

    /// Queues everything between the words that were sent and the results.
    fn run(
        &mut self,
        extent: Extent,
        recorded: Option<Recorded>,
        depth: usize,
        spans: (usize, usize),
    ) -> Result<(), BackendError> {
        let window = self.window(recorded);
        let Way { at_once, chunks } = recorded.map_or(self.outgoing.way, |it| it.way);
        let Self { device, target, head, scratch, step, room, pages, logits, choices, .. } = self;
        step.lay(device, extent)?;
        if let Some(head) = head {
            head.guess(device, scratch, target, step, extent, (depth, chunks))?;
        }
        let rows = extent.rows;
        let own = &self.spans;
        let counts = (spans.0, self.outgoing.few_rows, spans.1);
        let spans = spans_of(step, recorded, own, counts, chunks);
        let table = spans.lay_table(device, step, rows, target.sizes, &mut self.table)?;
        let spans = Spans { table, ..spans };
        // Upkeep runs beside the layers behind the last captured one, or beside the logits.
        let captured = match head {
            Some(_) if at_once => target.depth(),
            Some(head) => head.capture.depth(),
            None => 0,
        };
        let capture = head.as_mut().map(|it| &mut it.capture);
        let mut pass = Pass { device, scratch, step, rows, spans, pages, room, capture, at_once };
        target.embed(&mut pass)?;
        target.run(&mut pass, 0..captured)?;
        // Where nothing is guessed every row stands: its state need not wait for what is accepted.
        let all_stand = recorded.is_some_and(|it| it.rows == 1);
        if let Some(head) = head.as_mut().filter(|_| window.is_none()) {
            device.beside(|| {
                head.keep_up(device, target, step, rows, false)?;
                if all_stand { head.keep_states(device, step, extent) } else { Ok(()) }
            })?;
        }
        let spans = Spans { table, ..spans_of(step, recorded, own, counts, chunks) };
        let capture = None;
        let mut pass = Pass { device, scratch, step, rows, spans, pages, room, capture, at_once };
        target.run(&mut pass, captured..target.depth())?;
        let mut x = &room.x;
        if recorded.is_none() {
            let of = (rows, target.sizes.hidden);
            step.gather(device, extent.choosers, x, of, &mut self.chosen)?;
            x = &self.chosen;
        }
        if 0 < extent.choosers {
            let logits = target.logits(device, scratch, x, extent.choosers, logits)?;
            sample::launch(device, step, extent, logits, choices)?;
        }
        if let (Some(head), Some(window)) = (head.as_mut(), window) {
            return head.accept(device, step, &choices.tokens, window);
        }
        step.accept(device, extent, &choices.tokens)?;
        if let Some(head) = head {
            device.join()?;
            if !all_stand {
                head.keep_states(device, step, extent)?;
            }
        }
        Ok(())
    }

    /// Takes up the rows of the draft layer that wait.
    fn catch_up(&mut self) -> Result<(), BackendError> {
        let Self { device, target, head, step, waiting, .. } = self;
        match (head, waiting.end()) {
            (Some(head), Some(window)) => head.catch_up(device, target, step, window),
            _ => Ok(()),
        }
    }

    /// Lets the rows of the draft layer wait where they may; else none wait any longer.
    fn defer(&mut self, plan: &StepPlan, recorded: Option<Recorded>) -> Result<(), BackendError> {
        let window = self.window(recorded);
        if !window.is_some_and(|it| self.waiting.takes(plan, it)) {
            self.catch_up()?;
        }
        if let Some(window) = window {
            self.outgoing.words.defer(self.waiting.add(plan, window));
        }
        Ok(())
    }

    fn launch(&mut self, plan: &StepPlan) -> Result<(), BackendError> {
        let extent = self.outgoing.extent();
        let recorded = self.outgoing.recorded.filter(|_| self.records);
        if let Some(shape) = recorded
            && !self.graphs.contains_key(&shape)
        {
            self.catch_up()?;
            self.record(shape)?;
        }
        self.defer(plan, recorded)?;
        let words = self.outgoing.words.finish();
        if self.step.sizes.words_max < words.len() {
            let detail = format!("a step of {} words is longer than the inbox", words.len());
            return Err(BackendError { detail });
        }
        self.step.send(words)?;
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

    /// As [`crate::backend::Backend::submit`].
    pub(super) fn submit(&mut self, plan: &StepPlan) -> Result<(), BackendError> {
        let vocab = self.target.vocab;
        let is_known = plan.rows.iter().all(|it| (it.0 as usize) < vocab);
        assert!(is_known, "tokens are checked where requests enter");
        let most = (vocab, self.step.sizes.rows_max);
        self.outgoing.fill(plan, &mut self.tables, self.target.sizes, most);
        self.outgoing.way = self.way();
        if let Some(shape) = &mut self.outgoing.recorded {
            shape.way = self.outgoing.way;
        }
        self.launch(plan)?;
        let sent = Sent::new(self.step.expect_results()?, plan, self.outgoing.words.entries());
        let choosers = self.outgoing.extent().choosers;
        self.outboxes[sent.number].fetch(&sent, &self.choices, choosers)?;
        self.sent.push_back(sent);
        // Behind the results, which need not wait for it.
        if self.waiting.is_full() { self.catch_up() } else { Ok(()) }
    }

    /// As [`crate::backend::Backend::collect`].
    pub(super) fn collect(&mut self, choices: &mut StepChoices) -> Result<(), BackendError> {
        choices.clear();
        let sent = self.sent.pop_front().ok_or_else(|| BackendError {
            detail: "collected more steps than submitted".to_owned(),
        })?;
        let words = self.step.result_words();
        let results = self.step.results(sent.number)?;
        self.outboxes[sent.number].read(&sent, results.chunks_exact(words), choices)
    }
}
