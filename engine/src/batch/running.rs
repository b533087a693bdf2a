//! The sequences on the lanes of the backend, and their order.

use std::collections::{BTreeMap, BTreeSet};

use crate::batch::sequence::{Place, Sequence};

/// Each lane has one sequence or none.
#[derive(Debug)]
pub(super) struct Running {
    lanes: Vec<Option<Tenure>>,
    free: BTreeSet<u32>,
    order: BTreeMap<Place, u32>,
    tenures: u64,
}

/// One stay of a sequence on a lane.
#[derive(Debug)]
pub(super) struct Tenure {
    pub(super) sequence: Sequence,
    /// Tells the results that are on their way to this tenure from those of an earlier one.
    pub(super) number: u64,
    /// Whether any row was fed.
    pub(super) started: bool,
    /// Tokens the sequence had when it came.
    len_start: u32,
}

/// Rows that were submitted for a sequence and not read back yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) fed: u32,
    /// Tokens it may bring; 0 in the middle of a prompt.
    pub(super) choices_max: u32,
}

/// What a sequence would feed next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Next {
    /// Nothing before its last results are read.
    Wait,
    /// Its last token, which stands at `start`; at most at `start_max`, if it is `chained`.
    Decode { start: u32, start_max: u32, chained: bool },
    /// `behind` tokens from `start`.
    Read { start: u32, behind: u32 },
}

impl Tenure {
    pub(super) fn next(&self, sent: Option<Sent>) -> Next {
        let sequence = &self.sequence;
        let sent = sent.unwrap_or(Sent { fed: 0, choices_max: 0 });
        let start = sequence.computed() + sent.fed;
        if 0 < sent.choices_max {
            // A mask needs the tokens before it, and a text that may be at its end must be read.
            let ends = sequence.len_max() <= sequence.len() + sent.choices_max;
            if ends || sequence.guide.is_some() {
                return Next::Wait;
            }
            let start_max = start + sent.choices_max - 1;
            return Next::Decode { start, start_max, chained: true };
        }
        match sequence.len() - start {
            1 => Next::Decode { start, start_max: start, chained: false },
            behind => Next::Read { start, behind },
        }
    }

    /// Whether it chose a token on this lane, or will when `sent` has run.
    pub(super) fn is_decoding(&self, sent: Option<Sent>) -> bool {
        self.len_start < self.sequence.len() || sent.is_some_and(|it| 0 < it.choices_max)
    }
}

impl Running {
    pub(super) fn new(lanes: u32) -> Self {
        Self {
            lanes: (0..lanes).map(|_| None).collect(),
            free: (0..lanes).collect(),
            order: BTreeMap::new(),
            tenures: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub(super) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Lanes of the sequences, who goes first first.
    pub(super) fn order(&self) -> impl Iterator<Item = u32> {
        self.order.values().copied()
    }

    /// The lane of the one that goes last.
    pub(super) fn last(&self) -> Option<u32> {
        self.order.values().next_back().copied()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (u32, &Tenure)> {
        self.order.values().map(|&lane| (lane, self.get(lane).expect("in order, so on its lane")))
    }

    pub(super) fn get(&self, lane: u32) -> Option<&Tenure> {
        self.lanes[lane as usize].as_ref()
    }

    pub(super) fn get_mut(&mut self, lane: u32) -> Option<&mut Tenure> {
        self.lanes[lane as usize].as_mut()
    }

    /// Gives a free lane.
    pub(super) fn start(&mut self, sequence: Sequence) {
        let lane = self.free.pop_first().expect("the caller saw a free lane");
        self.tenures += 1;
        let before = self.order.insert(sequence.place, lane);
        assert!(before.is_none(), "two sequences in one place");
        let (number, len_start) = (self.tenures, sequence.len());
        let tenure = Tenure { sequence, number, started: false, len_start };
        self.lanes[lane as usize] = Some(tenure);
    }

    /// Takes the lane back.
    pub(super) fn remove(&mut self, lane: u32) -> Sequence {
        let tenure = self.lanes[lane as usize].take().expect("the lane has a sequence");
        self.free.insert(lane);
        self.order.remove(&tenure.sequence.place);
        tenure.sequence
    }
}
