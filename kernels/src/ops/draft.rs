//! The draft layer's own steps: its input, its guess, the states that later steps start from.

use bytemuck::{Pod, Zeroable};
use half::bf16;

use super::matmul::Matrix;
use super::rows::{Extent, Step};
use super::sample::Logits;
use super::{block_values, blocks_together, whole};
use crate::cuda::{Arg, Buffer, Device, DeviceError, Grid};

/// Hidden states from which rows start: of each page that of the last token that stands in it, f32.
#[derive(Debug)]
pub struct States {
    by_page: Buffer<f32>,
    hidden: usize,
}

impl States {
    pub fn new(device: &Device, pages: usize, hidden: usize) -> Result<Self, DeviceError> {
        Ok(Self { by_page: device.zeros(pages * hidden)?, hidden })
    }

    /// Bytes for each page.
    pub const fn page_bytes(hidden: usize) -> usize {
        hidden * size_of::<f32>()
    }

    /// Keeps, of the states `rows` (rows, hidden) of this step, those that later ones start from.
    pub fn keep(
        &mut self,
        device: &Device,
        step: &mut Step,
        extent: Extent,
        rows: &Buffer<f32>,
    ) -> Result<(), DeviceError> {
        assert!(extent.rows * self.hidden <= rows.len(), "a state for each row");
        let args = step.args(extent);
        let args = [
            Arg::value(&args),
            Arg::Address(rows.read()),
            Arg::Address(self.by_page.write()),
            Arg::U32(whole(self.hidden)),
        ];
        device.launch("keep_states", Grid::new(whole(extent.rows), 128), &args)
    }

    /// The same of rows that waited, `window` of them; `rows` are the states of all.
    pub fn keep_deferred(
        &mut self,
        device: &Device,
        step: &mut Step,
        deferred: &mut Deferred,
        window: Window,
        rows: &Buffer<f32>,
    ) -> Result<(), DeviceError> {
        assert!(window.all() * self.hidden <= rows.len(), "a state for each row");
        let args = step.args(window.extent());
        let of = deferred.args(window);
        let args = [
            Arg::value(&args),
            Arg::value(&of),
            Arg::Address(rows.read()),
            Arg::Address(self.by_page.write()),
            Arg::U32(whole(self.hidden)),
        ];
        device.launch("keep_deferred", Grid::new(whole(window.all()), 128), &args)
    }
}

/// Rows that wait: so many of each of so many steps, in the order of the steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    pub rows: usize,
    pub steps: usize,
}

impl Window {
    pub const fn all(self) -> usize {
        self.rows * self.steps
    }

    fn extent(self) -> Extent {
        Extent { entries: self.rows, rows: self.rows, choosers: 0 }
    }
}

/// Rows of several plain steps of the same sequences, each a token further, until the draft layer
/// takes them up together. Row `r` of step `n` is row `n * rows + r`.
#[derive(Debug)]
pub struct Deferred {
    /// What the target's layers left: of each step (rows, columns) in blocks.
    captured: Buffer<bf16>,
    pub tokens: Buffer<u32>,
    pub positions: Buffer<i32>,
    pub lanes: Buffer<u32>,
    pub sources: Buffer<u32>,
    columns: usize,
}

/// The twin of `Deferred` in `cu/draft.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct DeferredArgs {
    captured: u64,
    tokens: u64,
    positions: u64,
    lanes: u64,
    sources: u64,
    rows: u32,
    columns: u32,
}

impl Deferred {
    /// For up to `rows` rows in all, those of each step rounded up to eights.
    pub fn new(device: &Device, rows: usize, columns: usize) -> Result<Self, DeviceError> {
        Ok(Self {
            captured: device.zeros(block_values(rows, columns))?,
            tokens: device.zeros(rows)?,
            positions: device.zeros(rows)?,
            lanes: device.zeros(rows)?,
            sources: device.zeros(rows)?,
            columns,
        })
    }

    /// [`Step::accept`] of a plain step, one choice a row, whose rows it puts behind those that
    /// wait, of as many steps as the step's words say: fewer than the window has. captured: (rows,
    /// columns) in blocks.
    pub fn accept(
        &mut self,
        device: &Device,
        step: &mut Step,
        choices: &Buffer<u32>,
        captured: &Buffer<bf16>,
        window: Window,
    ) -> Result<(), DeviceError> {
        assert!(window.rows <= choices.len(), "a choice for each row");
        let values = block_values(window.rows, self.columns);
        assert!(values <= captured.len(), "all rows are there");
        assert!(values * window.steps <= self.captured.len() && window.rows <= 256, "they fit");
        let args = step.args(window.extent());
        let own = self.args(window);
        let args = [
            Arg::value(&args),
            Arg::Address(choices.read()),
            Arg::value(&own),
            Arg::Address(captured.read()),
        ];
        let blocks = whole(values.div_ceil(8 * 256));
        device.launch("accept_and_defer", Grid::new(blocks, 256), &args)
    }

    /// `out`: what was captured of all rows of the window, (rows, columns) in blocks.
    pub fn gather(
        &mut self,
        device: &Device,
        window: Window,
        out: &mut Buffer<bf16>,
    ) -> Result<(), DeviceError> {
        assert!(block_values(window.all(), self.columns) <= out.len(), "a place for each row");
        let own = self.args(window);
        let args = [Arg::value(&own), Arg::Address(out.write())];
        device.launch("gather_deferred", Grid::new(whole(window.all()), 128), &args)
    }

    fn args(&mut self, window: Window) -> DeferredArgs {
        assert!(window.all() <= self.tokens.len(), "no more rows than there is memory for");
        DeferredArgs {
            captured: self.captured.write(),
            tokens: self.tokens.write(),
            positions: self.positions.write(),
            lanes: self.lanes.write(),
            sources: self.sources.write(),
            rows: whole(window.rows),
            columns: whole(self.columns),
        }
    }
}

/// What the input of the draft layer is made with.
#[derive(Clone, Copy, Debug)]
pub struct InputNorms<'a> {
    pub table: &'a Matrix,
    /// (hidden) each.
    pub token: &'a Buffer<f32>,
    pub state: &'a Buffer<f32>,
    pub eps: f32,
    /// Whether the residual of the draft layer is the normed state.
    pub keep_normed: bool,
}

/// Where the rows of a draft layer come from.
#[derive(Clone, Copy, Debug)]
pub struct InputRows<'a> {
    pub tokens: &'a Buffer<u32>,
    /// Where each row's state is; `None` if in the stream already.
    pub sources: Option<&'a Buffer<u32>>,
    /// (rows, hidden): states that this step made.
    pub states: &'a Buffer<f32>,
    pub rows: usize,
}

/// The twin of `DraftInput` in `cu/draft.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct InputArgs {
    table: u64,
    token_norm: u64,
    state_norm: u64,
    rows: u64,
    by_page: u64,
    tokens: u64,
    sources: u64,
    stream: u64,
    out: u64,
    hidden: u32,
    keep_normed: u32,
    eps: f32,
    padding: u32,
}

/// `out[r] = [norm(embedding of token r); norm(state before r)]`, (rows, 2 hidden) in
/// blocks; `stream[r]` is the residual, (rows, hidden).
pub fn input(
    device: &Device,
    norms: InputNorms<'_>,
    states: &States,
    rows: InputRows<'_>,
    stream: &mut Buffer<f32>,
    out: &mut Buffer<bf16>,
) -> Result<(), DeviceError> {
    let hidden = norms.table.inputs();
    assert_eq!(hidden, states.hidden, "tokens and states have one width");
    assert!(hidden.is_multiple_of(4) && hidden == norms.token.len() && hidden == norms.state.len());
    assert!(rows.rows <= rows.tokens.len(), "a token for each row");
    assert!(rows.sources.is_none_or(|it| rows.rows <= it.len()), "a source for each row");
    assert!(rows.rows * hidden <= stream.len(), "a residual for each row");
    assert!(block_values(rows.rows, 2 * hidden) <= out.len(), "an input for each row");
    let args = InputArgs {
        table: norms.table.table(),
        token_norm: norms.token.read(),
        state_norm: norms.state.read(),
        rows: rows.states.read(),
        by_page: states.by_page.read(),
        tokens: rows.tokens.read(),
        sources: rows.sources.map_or(0, Buffer::read),
        stream: stream.write(),
        out: out.write(),
        hidden: whole(hidden),
        keep_normed: u32::from(norms.keep_normed),
        eps: norms.eps,
        padding: 0,
    };
    device.launch("draft_input", Grid::new(whole(rows.rows), 256), &[Arg::value(&args)])
}

/// Takes the likeliest of each entry's logits (entries, drafts' vocabulary) as its draft number
/// `depth`, and makes it the next row of the entry's chain; on every rank the same. It may read the
/// step and the chain before the kernel before has ended: another has to stand between it and what
/// wrote them.
pub fn guess(
    device: &Device,
    step: &mut Step,
    extent: Extent,
    logits: Logits<'_>,
    target_ids: &Buffer<u32>,
    depth: usize,
) -> Result<(), DeviceError> {
    let Logits { rows, vocab, slices } = logits;
    assert_eq!(vocab, target_ids.len(), "a token for each");
    assert!(extent.entries * vocab <= rows.len(), "logits for each entry");
    assert!(depth < step.sizes.drafts_max, "no deeper than the step's sizes");
    let args = step.args(extent);
    let (args, target_ids) = (Arg::value(&args), Arg::Address(target_ids.read()));
    let depth = Arg::U32(whole(depth));
    let mut grid = Grid::new(whole(extent.entries), 512);
    let Some(mut slices) = slices else {
        let args = [args, Arg::Address(rows.read()), target_ids, Arg::U32(whole(vocab)), depth];
        let together = blocks_together(device, extent.entries);
        grid.blocks = (together, whole(extent.entries), 1);
        return device.launch_clusters("draft_guess", grid, (together, 1, 1), &args);
    };
    let of_ranks = slices.args(extent.entries, vocab);
    let args = [args, Arg::value(&of_ranks), target_ids, depth];
    device.launch("draft_guess_slices", grid, &args)
}
