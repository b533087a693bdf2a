//! Who waits for a lane, and who may have one.

use std::collections::BTreeMap;

use crate::batch::ids::SeqId;
use crate::batch::pages::PagePool;
use crate::batch::running::Running;
use crate::batch::sequence::{Place, Sequence};

/// The queue, in order: those that were preempted kept their places.
#[derive(Debug, Default)]
pub(super) struct Waiting(BTreeMap<Place, Sequence>);

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn push(&mut self, sequence: Sequence) {
        let before = self.0.insert(sequence.place, sequence);
        assert!(before.is_none(), "two sequences in one place");
    }

    /// Takes a request out of the queue; false if it is not there.
    pub(super) fn remove(&mut self, seq: SeqId) -> bool {
        let place = self.0.values().find(|it| it.id == seq).map(|it| it.place);
        place.is_some_and(|it| self.0.remove(&it).is_some())
    }

    /// The first, with the pages that already hold its start, if its text so far has room beside
    /// what the running ones still read. Nobody overtakes it.
    pub(super) fn next(
        &mut self,
        running: &Running,
        pool: &mut PagePool,
        step: u64,
    ) -> Option<Sequence> {
        let (_, mut first) = self.0.pop_first()?;
        first.find_pages(pool, step);
        let missing = |it: &Sequence| pool.pages_for(it.len()).saturating_sub(it.table.len());
        // A page for the next token of each as well, or it would be preempted again at once.
        let others = running.all().map(|(_, it)| missing(&it.sequence) + 1).sum::<u32>();
        if running.is_empty() || others + missing(&first) <= pool.free() {
            return Some(first);
        }
        first.rewind(pool);
        self.push(first);
        None
    }
}
