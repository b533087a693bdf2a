//! From a plan to the words that the device reads.

use kernels::ops::attend::{blocks_of_rows, is_few};
use kernels::ops::rows::{CHAINED, CHOOSES, Entry as RowEntry, Extent, Lists, StepWords, Wish};
use kernels::ops::sample::{LOGPROBS_MAX, STOPS_MAX};

use super::way::Way;
use crate::backend::layer::Sizes;
use crate::batch::plan::{Entry, StepPlan};
use crate::batch::sampling::Sampling;

/// Batches that steps are recorded for: a smaller one is padded.
const BATCHES: &[usize] = &[1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];

/// Steps of one shape: each of so many entries has so many rows, of which it guesses so many.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Recorded {
    pub(super) entries: usize,
    pub(super) rows: usize,
    pub(super) depth: usize,
    pub(super) way: Way,
}

impl Recorded {
    pub(super) fn extent(&self) -> Extent {
        let rows = self.entries * self.rows;
        Extent { entries: self.entries, rows, choosers: rows }
    }

    /// Whether a step of so many rows at most has a place for all of its rows, those that pad it
    /// too.
    pub(super) fn fits(&self, rows_max: usize) -> bool {
        self.extent().rows <= rows_max
    }
}

/// The batches that are recorded for up to `lanes` sequences.
pub(super) fn batches(lanes: usize) -> Vec<usize> {
    let mut batches: Vec<usize> = BATCHES.iter().copied().filter(|it| *it < lanes).collect();
    batches.push(lanes);
    batches
}

/// The plan, ready to go.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    pub(super) words: StepWords,
    /// What it is a case of, if steps of its shape are recorded.
    pub(super) recorded: Option<Recorded>,
    /// How it is taken. Not known here.
    pub(super) way: Way,
    /// Rows of each entry, few or cut into blocks, where it is not.
    pub(super) few: Vec<[u32; 2]>,
    pub(super) many: Vec<[u32; 2]>,
    /// The most rows of those that are few.
    pub(super) few_rows: usize,
    /// Guesses of the entry that has most.
    pub(super) depth: usize,
    /// Keys that the last row of the longest text of few rows sees, if its drafts so far were
    /// refused.
    pub(super) keys: usize,
}

/// Drafts that are made here: only from where the last step of the lane ended, one row on.
fn held(entry: &Entry) -> u32 {
    if entry.fed == 1 && entry.given == 0 { entry.held } else { 0 }
}

/// What the device has of each lane's page table.
#[derive(Debug)]
pub(super) struct Tables {
    lanes: Vec<Vec<u32>>,
    /// Pages of one lane.
    pages_max: usize,
}

impl Tables {
    pub(super) fn new(lanes: usize, pages_max: usize) -> Self {
        Self { lanes: vec![Vec::new(); lanes], pages_max }
    }

    /// Adds the changes to `words`.
    fn update(&mut self, lane: u32, pages: impl Iterator<Item = u32>, words: &mut StepWords) {
        let known = &mut self.lanes[lane as usize];
        let pages_max = self.pages_max;
        for (place, page) in pages.enumerate() {
            assert!(place < pages_max, "a text is not longer than was said");
            match known.get_mut(place) {
                Some(it) if *it == page => continue,
                Some(it) => *it = page,
                None => known.push(page),
            }
            words.patch(lane, u32::try_from(place).expect("pages of a text"), page);
        }
    }
}

/// Which recorded shape a plan is a case of: every entry reads one own token and chooses.
fn recorded(plan: &StepPlan, sizes: Sizes, lanes: usize, rows_max: usize) -> Option<Recorded> {
    let entries = &plan.entries;
    let is_plain = entries.iter().all(|it| it.fed == 1 && it.chooses);
    let rows = entries.iter().map(|it| it.fed + it.given + held(it)).max()? as usize;
    let depth = entries.iter().map(held).max()? as usize;
    if !is_plain || !is_few(rows, sizes.group(), sizes.head_dim) {
        return None;
    }
    let batch = batches(lanes).into_iter().find(|it| entries.len() <= *it)?;
    Some(Recorded { entries: batch, rows, depth, way: Way::default() })
        .filter(|it| it.fits(rows_max))
}

impl Outgoing {
    /// Takes up `plan`, of a step of at most `rows_max` rows.
    pub(super) fn fill(
        &mut self,
        plan: &StepPlan,
        tables: &mut Tables,
        sizes: Sizes,
        (vocab, rows_max): (usize, usize),
    ) {
        self.words.clear();
        self.few.clear();
        self.many.clear();
        self.recorded = recorded(plan, sizes, tables.lanes.len(), rows_max);
        self.depth = plan.entries.iter().map(held).max().unwrap_or(0) as usize;
        let end = |it: &Entry| it.start + it.fed + it.given + held(it);
        self.keys = plan.entries.iter().map(end).max().unwrap_or(0) as usize;
        let rows_min = self.recorded.map_or(0, |it| u32::try_from(it.rows).expect("few"));
        let tokens: Vec<u32> = plan.rows.iter().map(|it| it.0).collect();
        let (mut tokens, mut masks) = (tokens.as_slice(), plan.masks.as_slice());
        for entry in &plan.entries {
            let pages = plan.pages[entry.pages.clone()].iter().map(|it| it.0);
            tables.update(entry.lane, pages, &mut self.words);
            let known = tokens.split_off(..entry.rows_known() as usize);
            let words = if entry.masked { entry.choices_max() as usize } else { 0 };
            let mask = masks.split_off(..words * vocab.div_ceil(32));
            let Sampling { bias, stop_tokens, .. } = &*entry.sampling;
            let biases: Vec<(u32, f32)> = bias.iter().map(|(token, it)| (token.0, *it)).collect();
            let stops = stop_tokens.iter().take(STOPS_MAX).map(|it| it.0);
            let lists = Lists {
                tokens: known.expect("the plan has its rows"),
                biases: &biases,
                stops: &stops.collect::<Vec<u32>>(),
                mask: mask.expect("the plan has a mask a row"),
            };
            self.words.push(row_entry(entry), wish(&entry.sampling), lists, rows_min);
        }
        if self.recorded.is_none() {
            self.cut(sizes);
        }
    }

    /// Tells entries of few rows from those that are cut into blocks.
    fn cut(&mut self, sizes: Sizes) {
        let group = sizes.group();
        (self.few_rows, self.keys) = (0, 0);
        for entry in self.words.entries() {
            let rows = entry.fed + entry.drafts;
            if is_few(rows as usize, group, sizes.head_dim) {
                self.few.push([entry.row, rows]);
                self.few_rows = self.few_rows.max(rows as usize);
                self.keys = self.keys.max((entry.start + rows) as usize);
            } else {
                self.many.extend(blocks_of_rows(entry.row, rows, group));
            }
        }
    }

    /// Entries of few rows, and rows of one.
    pub(super) fn few(&self) -> (usize, usize) {
        let own = (self.few.len(), self.few_rows);
        self.recorded.map_or(own, |it| (it.entries, it.rows))
    }

    pub(super) fn extent(&self) -> Extent {
        let exact = Extent {
            entries: self.words.entries().len(),
            rows: self.words.rows(),
            choosers: self.words.choosers(),
        };
        self.recorded.map_or(exact, |it| it.extent())
    }
}

fn row_entry(entry: &Entry) -> RowEntry {
    let flags = [(entry.chained, CHAINED), (entry.chooses, CHOOSES)];
    RowEntry {
        lane: entry.lane,
        start: entry.start,
        fed: entry.fed,
        drafts: entry.given + held(entry),
        held: held(entry),
        flags: flags.into_iter().filter(|(is, _)| *is).map(|(_, flag)| flag).sum(),
        outputs_start: entry.outputs_start,
        ..RowEntry::default()
    }
}

fn wish(sampling: &Sampling) -> Wish {
    let most = u32::try_from(LOGPROBS_MAX).expect("few");
    Wish {
        seed: sampling.seed,
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        presence: sampling.presence_penalty,
        frequency: sampling.frequency_penalty,
        repetition: sampling.repetition_penalty,
        outputs_min: sampling.outputs_min,
        logprobs: sampling.logprobs.map(|it| it.min(most)),
    }
}

#[cfg(test)]
mod tests;
