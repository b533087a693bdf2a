//! Which plain steps leave the draft layer's rows for later, and when those are taken up.
//!
//! An engine that could draft and does not still has to know the keys and values of its draft
//! layer, or its first drafts after a pause would be poor. Taken up each step they cost a reading
//! of the layer's first matrices each time, and kernels beside the target's: a percent or two of a
//! step of few sequences. So the rows of some steps of the same sequences wait in memory and are
//! taken up together: when there is no room for more, and before any step that is not one more of
//! the same.

use kernels::ops::draft::Window;

use super::send::Recorded;
use crate::batch::plan::StepPlan;

const STEPS_MAX: usize = 32;
/// Beyond these, steps cost so much that what is saved is lost in them.
const ENTRIES_MAX: usize = 128;
/// Rows that there is room for.
pub(super) const ROWS_MAX: usize = 1024;

/// Rows that may wait of steps of this shape, if they may: of plain steps of few sequences.
/// `rows_max`: of a step.
pub(super) fn window(recorded: Recorded, rows_max: usize) -> Option<Window> {
    let Recorded { entries, rows, .. } = recorded;
    let steps = STEPS_MAX.min(rows_max.min(ROWS_MAX) / entries.next_multiple_of(8));
    let may_wait = rows == 1 && entries <= ENTRIES_MAX && 1 < steps;
    may_wait.then_some(Window { rows: entries, steps })
}

/// The steps whose rows wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    window: Option<Window>,
    /// Of each row.
    lanes: Vec<u32>,
    steps: usize,
}

impl Waiting {
    /// Whether the plan's rows may join those that wait: the same sequences in the same order, each
    /// one token on.
    pub(super) fn takes(&self, plan: &StepPlan, window: Window) -> bool {
        let lanes = plan.entries.iter().map(|it| it.lane);
        self.window == Some(window)
            && self.steps < window.steps
            && lanes.eq(self.lanes.iter().copied())
            && plan.entries.iter().all(|it| it.chained)
    }

    /// Adds the plan's rows; gives the number of steps that were there before.
    pub(super) fn add(&mut self, plan: &StepPlan, window: Window) -> usize {
        if self.window.is_none() {
            self.window = Some(window);
            self.lanes.clear();
            self.lanes.extend(plan.entries.iter().map(|it| it.lane));
        }
        self.steps += 1;
        self.steps - 1
    }

    pub(super) fn is_full(&self) -> bool {
        self.window.is_some_and(|it| it.steps <= self.steps)
    }

    /// What waited, if anything did; nothing waits any longer.
    pub(super) fn end(&mut self) -> Option<Window> {
        let steps = std::mem::take(&mut self.steps);
        self.window.take().map(|it| Window { steps, ..it })
    }
}

#[cfg(test)]
mod tests;
