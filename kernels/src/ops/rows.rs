//! One step as the device sees it: what the host sends, and what it is laid out into.

use bytemuck::{Pod, Zeroable};

use half::bf16;

use super::{block_values, whole};
use crate::cuda::{Arg, Buffer, Device, DeviceError, Grid};

mod mail;
mod words;

use mail::{Mail, MailArgs};
pub use words::{Lists, NOTHING, StepWords, Wish};

/// Tokens of a page.
pub const PAGE_TOKENS: usize = 16;
/// Threads that lay a step: with the fewest, the words of a small one are asked for at once.
const LAY_THREADS_MIN: usize = 256;
const LAY_THREADS_MAX: usize = 1024;
/// No row, lane, token or page.
pub const NONE: u32 = u32::MAX;

/// Starts where the lane's last entry ended, with the token that it chose.
pub const CHAINED: u32 = 1;
/// A token is chosen after its last own row and after each draft that is kept.
pub const CHOOSES: u32 = 2;

/// One sequence's rows in a step. The twin of `Entry` in `cu/rows.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct Entry {
    pub lane: u32,
    /// Its first row in the step.
    pub row: u32,
    /// Position of that row, unless chained.
    pub start: u32,
    pub fed: u32,
    pub drafts: u32,
    /// How many of the drafts are made on the device.
    pub held: u32,
    pub flags: u32,
    /// Its first place among the rows that choose.
    pub choice: u32,
    pub outputs_start: u32,
    /// Where the inbox has the tokens of its rows that the host knows.
    pub tokens: u32,
    /// Where the inbox has its sampling.
    pub wish: u32,
}

/// Sizes that are fixed when a backend starts.
#[derive(Clone, Copy, Debug)]
pub struct StepSizes {
    /// Sequences at once; the device has one lane more, for rows that do not exist.
    pub lanes: usize,
    /// Pages of all sequences, and of one.
    pub pages: usize,
    pub pages_max: usize,
    pub rows_max: usize,
    pub choosers_max: usize,
    /// Drafts of one entry.
    pub drafts_max: usize,
    /// Words of the longest step that the host sends.
    pub words_max: usize,
}

/// A step laid out, and what stays on the device from step to step.
#[derive(Debug)]
pub struct Step {
    pub sizes: StepSizes,
    inbox: Buffer<u32>,
    mail: Mail,
    entries: Buffer<Entry>,
    pub lane_tokens: Buffer<u32>,
    pub lane_lens: Buffer<u32>,
    pub pages: Buffer<u32>,
    /// The token whose row stands in each slot: (pages, 16).
    pub page_tokens: Buffer<u32>,
    pub tokens: Buffer<u32>,
    pub positions: Buffer<i32>,
    pub lanes: Buffer<u32>,
    row_entries: Buffer<u32>,
    pub sources: Buffer<u32>,
    pub chooser_rows: Buffer<u32>,
    /// Of each entry: first row, rows.
    pub spans: Buffer<[u32; 2]>,
    pub chain_tokens: Buffer<u32>,
    pub chain_positions: Buffer<i32>,
    pub chain_lanes: Buffer<u32>,
    pub chain_sources: Buffer<u32>,
    /// One row for each entry: row `e` of a chain.
    pub chain_spans: Buffer<[u32; 2]>,
    ends: Buffer<u32>,
    /// How likely the draft at each place is kept, where that is only pretended.
    simulated: Option<Buffer<f32>>,
}

/// The twin of `Step` in `cu/rows.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(super) struct StepArgs {
    inbox: u64,
    entries: u64,
    lane_tokens: u64,
    lane_lens: u64,
    pages: u64,
    page_tokens: u64,
    tokens: u64,
    positions: u64,
    lanes: u64,
    row_entries: u64,
    sources: u64,
    chooser_rows: u64,
    spans: u64,
    chain_tokens: u64,
    chain_positions: u64,
    chain_lanes: u64,
    chain_sources: u64,
    ends: u64,
    mail: MailArgs,
    simulated: u64,
    entries_max: u32,
    rows_max: u32,
    choosers_max: u32,
    pages_max: u32,
    scratch_lane: u32,
    result_words: u32,
}

/// How much of a step is laid out: what the host sent, padded to these.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    pub entries: usize,
    pub rows: usize,
    pub choosers: usize,
}

impl Step {
    pub fn new(device: &Device, sizes: StepSizes) -> Result<Self, DeviceError> {
        let StepSizes { lanes, pages_max, rows_max, choosers_max, words_max, .. } = sizes;
        let identity: Vec<[u32; 2]> = (0..whole(lanes)).map(|it| [it, 1]).collect();
        Ok(Self {
            sizes,
            // Whole lines are written.
            inbox: device.zeros(words_max.next_multiple_of(4))?,
            mail: Mail::new(device, words_max, lanes * (2 + sizes.drafts_max))?,
            entries: device.zeros(lanes)?,
            lane_tokens: device.zeros(lanes + 1)?,
            lane_lens: device.zeros(lanes + 1)?,
            pages: device.zeros((lanes + 1) * pages_max)?,
            page_tokens: device.zeros(sizes.pages * PAGE_TOKENS)?,
            tokens: device.zeros(rows_max)?,
            positions: device.zeros(rows_max)?,
            lanes: device.zeros(rows_max)?,
            row_entries: device.zeros(rows_max)?,
            sources: device.zeros(rows_max)?,
            chooser_rows: device.zeros(choosers_max)?,
            spans: device.zeros(lanes)?,
            chain_tokens: device.zeros(lanes)?,
            chain_positions: device.zeros(lanes)?,
            chain_lanes: device.zeros(lanes)?,
            chain_sources: device.zeros(lanes)?,
            chain_spans: device.upload(&identity)?,
            ends: device.zeros(lanes)?,
            simulated: None,
        })
    }

    /// Drafts are kept by chance from now on: with the probability that `rates` has for their
    /// place, and never beyond. For speed tests only.
    pub fn simulate(&mut self, device: &Device, rates: &[f32]) -> Result<(), DeviceError> {
        let mut rates = rates.to_vec();
        rates.resize(self.sizes.drafts_max.max(1), 0.0);
        self.simulated = Some(device.upload(&rates)?);
        Ok(())
    }

    pub fn result_words(&self) -> usize {
        2 + self.sizes.drafts_max
    }

    pub(super) fn args(&mut self, extent: Extent) -> StepArgs {
        let Extent { entries, rows, choosers } = extent;
        let sizes = self.sizes;
        assert!(entries <= sizes.lanes && rows <= sizes.rows_max, "beyond the step's sizes");
        assert!(choosers <= sizes.choosers_max, "beyond the step's sizes");
        StepArgs {
            inbox: self.inbox.write(),
            entries: self.entries.write(),
            lane_tokens: self.lane_tokens.write(),
            lane_lens: self.lane_lens.write(),
            pages: self.pages.write(),
            page_tokens: self.page_tokens.write(),
            tokens: self.tokens.write(),
            positions: self.positions.write(),
            lanes: self.lanes.write(),
            row_entries: self.row_entries.write(),
            sources: self.sources.write(),
            chooser_rows: self.chooser_rows.write(),
            spans: self.spans.write(),
            chain_tokens: self.chain_tokens.write(),
            chain_positions: self.chain_positions.write(),
            chain_lanes: self.chain_lanes.write(),
            chain_sources: self.chain_sources.write(),
            ends: self.ends.write(),
            mail: self.mail.args(),
            simulated: self.simulated.as_ref().map_or(0, Buffer::read),
            entries_max: whole(entries),
            rows_max: whole(rows),
            choosers_max: whole(choosers),
            pages_max: whole(sizes.pages_max),
            scratch_lane: whole(sizes.lanes),
            result_words: whole(2 + sizes.drafts_max),
        }
    }

    /// Sends the words of a step: what is laid next. Waits for the results of the step before last.
    pub fn send(&mut self, words: &[u32]) -> Result<(), DeviceError> {
        self.mail.send(words, &mut self.inbox)
    }

    /// Lays out the step that was sent; each once, in their order.
    pub fn lay(&mut self, device: &Device, extent: Extent) -> Result<(), DeviceError> {
        let args = self.args(extent);
        let most = extent.entries.max(extent.rows).max(extent.choosers);
        let threads = most.next_multiple_of(32).clamp(LAY_THREADS_MIN, LAY_THREADS_MAX);
        device.launch("lay_step", Grid::new(1, whole(threads)), &[Arg::value(&args)])
    }

    /// Waits until the step that was sent last is over, in which nothing was, and gives its turn to
    /// the next: that must not answer where results of the step before may be unread.
    pub fn take_back(&mut self, device: &Device) -> Result<(), DeviceError> {
        self.mail.take_back(device)
    }

    /// All of the step that was sent last is queued: [`Self::results`] of what this gives are its.
    pub fn expect_results(&mut self) -> Result<usize, DeviceError> {
        self.mail.expect()
    }

    /// Waits for the results of one of the last two steps. Of each entry: number of tokens, then
    /// tokens, `result_words()` in all.
    pub fn results(&mut self, number: usize) -> Result<&[u32], DeviceError> {
        self.mail.results(number)
    }

    /// Keeps the drafts that `choices`, one for each chooser, confirm; writes the results.
    pub fn accept(
        &mut self,
        device: &Device,
        extent: Extent,
        choices: &Buffer<u32>,
    ) -> Result<(), DeviceError> {
        assert!(extent.choosers <= choices.len(), "a choice for each chooser");
        let args = self.args(extent);
        let grid = Grid::new(whole(extent.entries.div_ceil(64)), 64);
        device.launch("accept", grid, &[Arg::value(&args), Arg::Address(choices.read())])
    }

    /// `out[i, :] = x[chooser_rows[i], :]`, in blocks; zeros where there is no row. x: (rows,
    /// columns).
    pub fn gather(
        &self,
        device: &Device,
        choosers: usize,
        x: &Buffer<bf16>,
        (rows, columns): (usize, usize),
        out: &mut Buffer<bf16>,
    ) -> Result<(), DeviceError> {
        assert!(block_values(choosers, columns) <= out.len(), "a place for each row");
        assert!(block_values(rows, columns) <= x.len(), "the rows are there");
        assert!(choosers <= self.chooser_rows.len(), "no more than there are");
        let args = [
            Arg::Address(x.read()),
            Arg::Address(self.chooser_rows.read()),
            Arg::Address(out.write()),
            Arg::U32(whole(columns)),
            Arg::U32(whole(rows.div_ceil(8))),
        ];
        device.launch("gather_rows", Grid::new(whole(choosers), 128), &args)
    }
}

#[cfg(test)]
mod tests;
