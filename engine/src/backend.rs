//! Where a step is computed. A backend holds the weights and the pages' memory; it knows
//! nothing of requests, queues or drafters.

use std::fmt;

use crate::batch::plan::{StepChoices, StepPlan};

pub mod cpu;
pub mod cuda;
mod layer;

/// Sizes a backend fixes when it starts.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub pages: u32,
    pub page_tokens: u32,
    pub vocab: u32,
    /// Rows of one step.
    pub rows_max: u32,
    /// Sequences that can run at once: lines of the per-sequence tables.
    pub lanes: u32,
    /// Drafts it can make itself for one entry: 0 without a draft head.
    pub held_max: u32,
    /// Plans that may be submitted beyond the one whose choices are read next: 0 or 1.
    pub ahead_max: u32,
}

/// Computes steps. Two virtual calls a step, so `dyn` costs nothing.
///
/// Plans take effect in the order they are submitted: what a later plan reads or writes is as if
/// the earlier had ended. So a page may be given to another sequence as soon as no later plan
/// names it for the first.
pub trait Backend: fmt::Debug {
    fn shape(&self) -> Shape;

    /// Takes a step. Every row is read; a token is chosen where the entry says so.
    ///
    /// The choice for a row depends on the tokens before it, on the entry's sampling and on the
    /// row's position; never on how the tokens were cut into steps or what else was in them.
    fn submit(&mut self, plan: &StepPlan) -> Result<(), BackendError>;

    /// Waits for the oldest step that was submitted and not collected, and gives what it yielded.
    fn collect(&mut self, choices: &mut StepChoices) -> Result<(), BackendError>;
}

/// The device failed; the engine that owns it stops.
#[derive(Debug)]
pub struct BackendError {
    pub detail: String,
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backend failed: {}", self.detail)
    }
}

impl std::error::Error for BackendError {}
