//! A step on its way to the device: entries, their wishes and lists, in one run of words.

use bytemuck::{Pod, Zeroable};

use super::{CHOOSES, Entry, NONE};
use crate::ops::whole;

/// Words before what the header points to: numbers, places, and how many steps' rows wait.
const HEADER: usize = 9;
const DEFERRED_AT: usize = 8;

/// A step of nothing.
pub const NOTHING: [u32; HEADER] = [0, 0, 0, 0, 9, 9, 9, 9, 0];

/// How a token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wish {
    pub seed: u64,
    /// 0 takes the likeliest.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    pub presence: f32,
    pub frequency: f32,
    /// 1 is off.
    pub repetition: f32,
    pub outputs_min: u32,
    /// How many of the likeliest to report.
    pub logprobs: Option<u32>,
}

impl Wish {
    /// The likeliest token, nothing else.
    pub fn greedy() -> Self {
        Self {
            seed: 0,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence: 0.0,
            frequency: 0.0,
            repetition: 1.0,
            outputs_min: 0,
            logprobs: None,
        }
    }
}

/// The twin of `Wish` in `cu/sample.cuh`: lists are a length and a place in the inbox.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(super) struct WishWords {
    seed: [u32; 2],
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    presence: f32,
    frequency: f32,
    repetition: f32,
    biases: [u32; 2],
    stops: [u32; 2],
    outputs_min: u32,
    mask_at: u32,
    logprobs: u32,
}

/// What comes with an entry, of any length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lists<'a> {
    /// Tokens of its rows that the host knows.
    pub tokens: &'a [u32],
    pub biases: &'a [(u32, f32)],
    /// Tokens that may not be chosen while the output is shorter than `outputs_min`.
    pub stops: &'a [u32],
    /// `vocab.div_ceil(32)` words for each row that it chooses from, or none.
    pub mask: &'a [u32],
}

/// A step on its way to the device: a header, then whatever it points to.
#[derive(Debug, Default)]
pub struct StepWords {
    words: Vec<u32>,
    entries: Vec<Entry>,
    row_entries: Vec<u32>,
    choosers: Vec<u32>,
    patches: Vec<[u32; 3]>,
}

impl StepWords {
    pub fn clear(&mut self) {
        self.words.clear();
        self.words.resize(HEADER, 0);
        self.entries.clear();
        self.row_entries.clear();
        self.choosers.clear();
        self.patches.clear();
    }

    /// Page `page` becomes number `place` of the lane's table.
    pub fn patch(&mut self, lane: u32, place: u32, page: u32) {
        self.patches.push([lane, place, page]);
    }

    /// Adds an entry with its rows; `rows_min` pads them, so that entries of a recorded step have
    /// equal shapes. The entry's places (`row`, `choice`, `tokens`, `wish`) are
    /// filled in.
    pub fn push(&mut self, mut entry: Entry, wish: Wish, lists: Lists<'_>, rows_min: u32) {
        let index = whole(self.entries.len());
        let rows = entry.fed + entry.drafts;
        entry.row = whole(self.row_entries.len());
        entry.choice = whole(self.choosers.len());
        self.row_entries.extend((0..rows).map(|_| index));
        self.row_entries.extend((rows..rows_min).map(|_| NONE));
        if entry.flags & CHOOSES != 0 {
            let first = entry.row + entry.fed - 1;
            self.choosers.extend(first..=first + entry.drafts);
            self.choosers.extend((rows..rows_min).map(|_| NONE));
        }
        entry.tokens = self.append(lists.tokens);
        let bias_at = whole(self.words.len());
        self.words.extend(lists.biases.iter().flat_map(|&(token, it)| [token, it.to_bits()]));
        let wish = WishWords {
            seed: bytemuck::cast(wish.seed),
            temperature: wish.temperature,
            top_k: wish.top_k,
            top_p: wish.top_p,
            min_p: wish.min_p,
            presence: wish.presence,
            frequency: wish.frequency,
            repetition: wish.repetition,
            biases: [whole(lists.biases.len()), bias_at],
            stops: [whole(lists.stops.len()), self.append(lists.stops)],
            outputs_min: wish.outputs_min,
            mask_at: if lists.mask.is_empty() { NONE } else { self.append(lists.mask) },
            logprobs: wish.logprobs.unwrap_or(NONE),
        };
        entry.wish = self.append(bytemuck::cast_slice(&[wish]));
        self.entries.push(entry);
    }

    /// The draft layer's rows wait behind those of so many steps: see `ops::draft::Deferred`.
    pub fn defer(&mut self, behind: usize) {
        self.words[DEFERRED_AT] = whole(behind);
    }

    /// Ends the step and gives its words.
    pub fn finish(&mut self) -> &[u32] {
        let counts =
            [self.entries.len(), self.row_entries.len(), self.choosers.len(), self.patches.len()];
        for (word, count) in self.words.iter_mut().zip(counts) {
            *word = whole(count);
        }
        let lists: [&[u32]; 4] = [
            bytemuck::cast_slice(&self.entries),
            &self.row_entries,
            &self.choosers,
            bytemuck::cast_slice(&self.patches),
        ];
        for (at, list) in lists.into_iter().enumerate() {
            self.words[counts.len() + at] = whole(self.words.len());
            self.words.extend_from_slice(list);
        }
        &self.words
    }

    pub fn rows(&self) -> usize {
        self.row_entries.len()
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn choosers(&self) -> usize {
        self.choosers.len()
    }

    pub fn patches(&self) -> usize {
        self.patches.len()
    }

    fn append(&mut self, list: &[u32]) -> u32 {
        let at = whole(self.words.len());
        self.words.extend_from_slice(list);
        at
    }
}
