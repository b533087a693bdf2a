//! Who waits for a lane, and who may have one.

use std::collections::BTreeMap;

use crate::batch::ids::SeqId;
use crate::batch::pages::PagePool;
use crate::batch::running::Running;
use crate::batch::sequence::{Place, Sequence};

/// The queue, in order: those that were preempted kept their places.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    sequences: BTreeMap<Place, Sequence>,
    /// Who goes next but has no room, and how many free pages it wants: until they are there it is
    /// not worth looking for the pages of its text again.
    crowded_out: Option<(Place, u32)>,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.sequences.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    pub(super) fn push(&mut self, sequence: Sequence) {
        let before = self.sequences.insert(sequence.place, sequence);
        assert!(before.is_none(), "two sequences in one place");
    }

    /// Takes a request out of the queue.
    pub(super) fn remove(&mut self, seq: SeqId) -> Option<Sequence> {
        let place = self.sequences.values().find(|it| it.id == seq)?.place;
        self.sequences.remove(&place)
    }

    /// The first, with the pages that already hold its start, if what it has to read has room
    /// beside what the running ones still have to read. Nobody overtakes it.
    pub(super) fn next(
        &mut self,
        running: &Running,
        pool: &mut PagePool,
        step: u64,
    ) -> Option<Sequence> {
        let first = self.sequences.first_entry()?;
        let missing = |it: &Sequence| pool.pages_for(it.len()).saturating_sub(it.table.len());
        // A page for the next tokens of each as well, or it would be preempted again at once.
        let others = running.all().map(|(_, it)| missing(&it.sequence) + 1).sum::<u32>();
        let has_room = |pages: u32, free: u32| running.is_empty() || others + pages <= free;
        let known = self.crowded_out.filter(|(place, _)| place == first.key());
        let free = pool.free();
        if !has_room(known.map_or(0, |(_, pages)| pages), free) {
            return None;
        }
        let mut sequence = first.remove();
        sequence.find_pages(pool, step);
        let found_idle = free - pool.free();
        let pages = pool.pages_for(sequence.len()) - sequence.table.len() + found_idle;
        if has_room(pages, free) {
            return Some(sequence);
        }
        self.crowded_out = Some((sequence.place, pages));
        sequence.rewind(pool);
        self.push(sequence);
        None
    }
}
