//! The rows of one step, with everything resolved that a plan leaves to the backend.

use std::ops::Range;

use super::layer::Place;
use crate::batch::ids::{SeqId, TokenId};
use crate::batch::plan::{Entry, StepPlan};

/// Where the sequence of a lane stands after its last step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    seq: SeqId,
    /// The last token chosen; the model has not read it.
    token: u32,
    position: u32,
}

/// One entry as this step runs it.
#[derive(Debug)]
pub(super) struct Part<'a> {
    pub(super) entry: &'a Entry,
    /// Its page table.
    pub(super) pages: &'a [u32],
    /// Position of the first row.
    pub(super) start: u32,
    /// Tokens of its rows: its own, then drafts.
    pub(super) tokens: Vec<u32>,
    /// Its rows among those of the step.
    pub(super) rows: Range<usize>,
    /// Rows that stand: its own and the drafts that were kept.
    pub(super) kept: usize,
}

/// The rows side by side, as the model reads them.
#[derive(Debug, Default)]
pub(super) struct Laid<'a> {
    pub(super) tokens: Vec<u32>,
    pub(super) positions: Vec<u32>,
    pub(super) places: Vec<Place<'a>>,
}

impl<'a> Part<'a> {
    pub(super) fn fed(&self) -> usize {
        self.entry.fed as usize
    }

    pub(super) fn drafts(&self) -> &[u32] {
        &self.tokens[self.fed()..]
    }

    /// The rows after which a token may be chosen: the last own one and those of drafts.
    pub(super) fn chosen_rows(&self) -> Range<usize> {
        if self.entry.chooses { self.rows.start + self.fed() - 1..self.rows.end } else { 0..0 }
    }

    /// Where the row `at` rows after the first stands.
    pub(super) fn place(&self, at: usize) -> Place<'a> {
        Place { pages: self.pages, slot: self.start as usize + at }
    }

    pub(super) fn position(&self, at: usize) -> u32 {
        self.start + u32::try_from(at).expect("rows of a step are counted in u32")
    }

    /// Where it stands once `chosen` are chosen; where it stood before when none are.
    pub(super) fn cursor(&self, chosen: &[TokenId]) -> Option<Cursor> {
        let token = chosen.last()?.0;
        Some(Cursor { seq: self.entry.seq, token, position: self.position(self.kept) })
    }
}

/// The entries with the tokens that host and lanes know. `tables` are the plan's pages.
pub(super) fn resolve<'a>(
    plan: &'a StepPlan,
    tables: &'a [u32],
    lanes: &[Option<Cursor>],
) -> Vec<Part<'a>> {
    let mut rows = plan.rows.as_slice();
    let part = |entry: &'a Entry| {
        let known = rows.split_off(..entry.rows_known() as usize).expect("the plan has its rows");
        let known = known.iter().map(|it| it.0);
        let mut tokens = Vec::with_capacity(entry.rows() as usize);
        let mut start = entry.start;
        if entry.chained {
            let cursor = lanes[entry.lane as usize].expect("a chained entry follows another");
            assert_eq!(cursor.seq, entry.seq, "a lane has one sequence at a time");
            assert!(entry.fed == 1 && start <= cursor.position, "it goes on from the last choice");
            tokens.push(cursor.token);
            start = cursor.position;
        }
        tokens.extend(known);
        let pages = &tables[entry.pages.clone()];
        Part { entry, pages, start, tokens, rows: 0..0, kept: entry.fed as usize }
    };
    plan.entries.iter().map(part).collect()
}

/// Gives each part its place among the rows.
pub(super) fn lay<'a>(parts: &mut [Part<'a>]) -> Laid<'a> {
    let mut laid = Laid::default();
    for part in parts {
        let start = laid.tokens.len();
        part.rows = start..start + part.tokens.len();
        laid.tokens.extend_from_slice(&part.tokens);
        let ats = 0..part.tokens.len();
        laid.positions.extend(ats.clone().map(|at| part.position(at)));
        laid.places.extend(ats.map(|at| part.place(at)));
    }
    laid
}
