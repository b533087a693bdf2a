//! The CPU backend: all rows of a step together, weights read once for all of them.
//!
//! A row's results depend on the tokens before it alone, bit for bit: every operation has one
//! order of sums per row, whatever else is in the step.

use std::collections::VecDeque;

use kernels::cpu::{Activations, KvLayer, KvNumbers, KvPages, PAGE_TOKENS, Team};

use self::head::{Caution, Head};
use self::layer::Scratch;
use self::rows::{Cursor, Laid, Part};
use self::target::{Stream, Target};
use crate::backend::{Backend, BackendError, Shape};
use crate::batch::ids::PageId;
use crate::batch::plan::{StepChoices, StepPlan};
use crate::batch::sampling::score;
use crate::model::{self, HeadConfig, Model, ModelConfig};

mod choose;
mod head;
mod layer;
mod rows;
mod target;
mod weights;

/// Rows whose logits are held at once.
const CHOSEN_ROWS_MAX: usize = 32;

/// How the backend is to be laid out.
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// One thread each. The first is that of the caller, who pins itself if it wants to.
    pub cores: Vec<usize>,
    pub activations: Activations,
    /// Pages of [`PAGE_TOKENS`] tokens; see [`kv_bytes_per_page`].
    pub pages: u32,
    pub rows_max: u32,
    pub lanes: u32,
    /// Drafts of one entry; counts only with a draft head.
    pub held_max: u32,
}

/// A model on the cores of one machine.
#[derive(Debug)]
pub struct CpuBackend {
    shape: Shape,
    team: Team,
    target: Target,
    head: Option<Head>,
    pages: KvPages,
    /// The token whose row stands in each slot, (pages, 16).
    tokens: Vec<u32>,
    lanes: Vec<Option<Cursor>>,
    done: VecDeque<StepChoices>,
    scratch: Scratch,
    stream: Stream,
}

/// Memory that one page takes, with the draft layer's part when there is a head.
pub fn kv_bytes_per_page(
    model: &ModelConfig,
    head: Option<&HeadConfig>,
    activations: Activations,
) -> usize {
    let states = head.map_or(0, |it| it.hidden * size_of::<f32>());
    let tokens = PAGE_TOKENS * size_of::<u32>();
    KvPages::page_bytes(&kv_layers(model, head), kv_numbers(activations)) + states + tokens
}

/// Keys and values are as exact as what they are multiplied with.
fn kv_numbers(activations: Activations) -> KvNumbers {
    match activations {
        Activations::F32 => KvNumbers::F32,
        Activations::Int8 => KvNumbers::F16,
    }
}

fn kv_layers(model: &ModelConfig, head: Option<&HeadConfig>) -> Vec<KvLayer> {
    let mut layers = target::kv_layers(model);
    layers.extend(head.map(head::kv_layer));
    layers
}

impl CpuBackend {
    /// Lays out weights and pages. The model itself is not needed after that.
    pub fn new(
        model: &Model,
        head: Option<&model::Head>,
        options: &CpuOptions,
    ) -> Result<Self, BackendError> {
        let CpuOptions { activations, pages, rows_max, lanes, .. } = *options;
        let sizes = [("pages", pages), ("rows_max", rows_max), ("lanes", lanes)];
        if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(weights::refused("a step", &format!("{name} is 0")));
        }
        let team = Team::new(&options.cores)
            .map_err(|error| BackendError { detail: error.to_string() })?;
        let count = pages as usize;
        // No text is longer than what the model was made for, however many pages there are.
        let positions = model.config.context_max.min(count * PAGE_TOKENS);
        let target = Target::new(model, activations, positions)?;
        let index = model.config.layers;
        let kv_layers = kv_layers(&model.config, head.map(|it| &it.config));
        let head = match head {
            Some(head) => Some(Head::new(head, &target, activations, (index, count), positions)?),
            None => None,
        };
        let shape = Shape {
            pages,
            page_tokens: u32::try_from(PAGE_TOKENS).expect("a page is small"),
            vocab: u32::try_from(model.config.vocab).expect("token ids are u32"),
            rows_max,
            lanes,
            held_max: if head.is_some() { options.held_max } else { 0 },
            ahead_max: 0,
        };
        Ok(Self {
            shape,
            team,
            target,
            head,
            pages: KvPages::new(count, &kv_layers, kv_numbers(activations)),
            tokens: vec![0; count * PAGE_TOKENS],
            lanes: vec![None; lanes as usize],
            done: VecDeque::new(),
            scratch: Scratch::new(),
            stream: Stream::default(),
        })
    }

    /// Lets one plan be submitted while another's choices are not read. Steps are still computed
    /// one after the other, so nothing is gained by it here: it is how tests take the loop through
    /// what a GPU needs.
    #[must_use]
    pub fn ahead(mut self) -> Self {
        self.shape.ahead_max = 1;
        self
    }

    /// Makes as many drafts as a plan asks for, however unlikely they are to be kept.
    #[must_use]
    pub fn every_draft(mut self) -> Self {
        if let Some(head) = &mut self.head {
            head.set_caution(Caution::NONE);
        }
        self
    }

    /// Fills all that a step may leave for a later one with what is not a number. A text never
    /// changes by it, since what nobody wrote is never read: tests rely on that.
    pub fn poison(&mut self) {
        for layer in 0..self.layers() {
            let KvLayer { kv_heads, head_dim } = self.pages.layer(layer);
            let row = vec![f32::NAN; kv_heads * head_dim];
            for page in 0..self.shape.pages {
                for slot in 0..PAGE_TOKENS {
                    self.pages.write(layer, page, slot, &row, &row);
                }
            }
        }
        if let Some(head) = &mut self.head {
            head.poison();
        }
    }

    /// Keys and values that stand in a slot, in each layer; the draft layer is the last. Tests
    /// compare them.
    pub fn keys_and_values(&self, page: PageId, slot: usize) -> Vec<(Vec<f32>, Vec<f32>)> {
        (0..self.layers()).map(|layer| self.pages.read(layer, page.0, slot)).collect()
    }

    fn layers(&self) -> usize {
        self.target.layers() + usize::from(self.head.is_some())
    }

    fn run(&mut self, plan: &StepPlan) -> StepChoices {
        let rows: u32 = plan.entries.iter().map(|it| it.rows()).sum();
        assert!(rows <= self.shape.rows_max, "the plan keeps to the shape");
        let tables: Vec<u32> = plan.pages.iter().map(|it| it.0).collect();
        let mut parts = rows::resolve(plan, &tables, &self.lanes);
        if let Some(head) = &mut self.head {
            let room = (&self.team, &mut self.scratch);
            head.guess(room, &self.target, &mut self.pages, &mut parts);
        }
        let laid = rows::lay(&mut parts);
        let drafts = |part: &Part<'_>| u32::try_from(part.drafts().len()).expect("few drafts");
        self.read(&laid);
        let drafts = parts.iter().map(drafts).collect();
        let mut choices = StepChoices { drafts, ..StepChoices::default() };
        self.score(plan, &parts, &mut choices);
        self.choose(plan, &mut parts, &mut choices);
        if let Some(head) = &mut self.head {
            let room = (&self.team, &mut self.scratch);
            let captured = &mut self.stream.captured;
            head.keep_up(room, &self.target, &mut self.pages, &parts, captured);
        }
        choices
    }

    fn read(&mut self, laid: &Laid<'_>) {
        for (place, &token) in laid.places.iter().zip(&laid.tokens) {
            let (page, slot) = place.page();
            self.tokens[page as usize * PAGE_TOKENS + slot] = token;
        }
        let captured = self.head.as_ref().map_or(&[][..], |it| &it.captured);
        let room = (&self.team, &mut self.scratch);
        self.target.read(room, &mut self.pages, laid, captured, &mut self.stream);
    }

    /// How likely the model finds the prompts' tokens, where they are asked for.
    fn score(&mut self, plan: &StepPlan, parts: &[Part<'_>], choices: &mut StepChoices) {
        let mut tokens = plan.scored.as_slice();
        for part in parts {
            let count = part.entry.scored as usize;
            let own = tokens.split_off(..count).expect("the plan has a token a row");
            let top = part.entry.sampling.prompt_logprobs.unwrap_or(0);
            for (at, some) in own.chunks(CHOSEN_ROWS_MAX).enumerate() {
                let start = part.rows.start + at * CHOSEN_ROWS_MAX;
                let room = (&self.team, &mut self.scratch);
                self.target.choose_from(room, start..start + some.len(), &mut self.stream);
                let rows = self.stream.logits.chunks_exact_mut(self.shape.vocab as usize);
                let scores = rows.zip(some).map(|(logits, token)| score(logits, *token, top));
                choices.scored.extend(scores);
            }
        }
    }

    /// Chooses for the parts in turn, a few at a time so that their logits take little room.
    fn choose(&mut self, plan: &StepPlan, parts: &mut [Part<'_>], choices: &mut StepChoices) {
        let vocab = self.shape.vocab as usize;
        let mut masks = plan.masks.as_slice();
        let mut left = parts;
        while !left.is_empty() {
            let mut rows = 0;
            let fits = |part: &&Part<'_>| {
                rows += part.chosen_rows().len();
                rows <= CHOSEN_ROWS_MAX
            };
            let count = left.iter().take_while(fits).count().max(1);
            let some = left.split_off_mut(..count).expect("at most all");
            let room = (&self.team, &mut self.scratch);
            let rows = some.iter().flat_map(Part::chosen_rows);
            self.target.choose_from(room, rows, &mut self.stream);
            let mut logits = self.stream.logits.as_mut_slice();
            for part in some {
                let rows = part.chosen_rows().len() * vocab;
                let logits = logits.split_off_mut(..rows).expect("a row of logits each");
                let words = if part.entry.masked { part.entry.choices_max() } else { 0 } as usize;
                let words = words * vocab.div_ceil(32);
                let masks = masks.split_off(..words).expect("the plan has a mask a row");
                let before = choices.tokens.len();
                choose::choose_kept(part, (logits, vocab), masks, &self.tokens, choices);
                self.lanes[part.entry.lane as usize] = part.cursor(&choices.tokens[before..]);
            }
        }
    }
}

impl Backend for CpuBackend {
    fn shape(&self) -> Shape {
        self.shape
    }

    /// Computes the step before it returns.
    fn submit(&mut self, plan: &StepPlan) -> Result<(), BackendError> {
        let choices = self.run(plan);
        self.done.push_back(choices);
        Ok(())
    }

    fn collect(&mut self, choices: &mut StepChoices) -> Result<(), BackendError> {
        let nothing = || BackendError { detail: "collected more steps than submitted".into() };
        *choices = self.done.pop_front().ok_or_else(nothing)?;
        Ok(())
    }
}
