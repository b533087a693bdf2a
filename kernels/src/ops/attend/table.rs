//! What the kernel for many sequences knows of each before it begins: laid once a step, for all
//! layers.

use bytemuck::{Pod, Zeroable};

use super::is_for_ring;
use crate::cuda::{Arg, Buffer, Device, DeviceError, Grid};
use crate::ops::rope::Places;
use crate::ops::rows::Step;
use crate::ops::whole;

/// Words of a record: the twin of `Record` in `cu/attend_ring.cuh`.
const RECORD_WORDS: usize = 40;
/// Sequences x kv heads x head size up to which other kernels are faster: measured on an H200.
const VALUES_FEW: usize = 264 * 128;

/// A record of each sequence, the longest first.
#[derive(Debug)]
pub struct Table {
    records: Buffer<u32>,
    pub(super) sequences: usize,
}

/// Sequences of a step that have a few rows each.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    pub sequences: usize,
    /// Rows of the longest.
    pub rows_max: usize,
    /// Query heads of a kv head, and kv heads.
    pub group: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

impl Crowd {
    /// Whether a table is worth it on this card: so many sequences that a block for each is slower
    /// than blocks that stay.
    pub fn wants_table(&self, device: &Device) -> bool {
        let is_few = self.sequences * self.kv_heads * self.head_dim <= VALUES_FEW;
        device.facts().is_hopper() && !is_few && is_for_ring(self.rows_max, self.group)
    }
}

/// The twin of `Lay` in `cu/attend_ring.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct Args {
    spans: u64,
    positions: u64,
    lanes: u64,
    pages: u64,
    records: u64,
    sequences: u32,
    pages_max: u32,
}

impl Table {
    /// For so many sequences at most.
    pub fn new(device: &Device, sequences: usize) -> Result<Self, DeviceError> {
        Ok(Self { records: device.zeros(sequences * RECORD_WORDS)?, sequences: 0 })
    }

    /// Lays it for the first `sequences` spans: first row and number of rows each. The kernel that
    /// reads it does so before the one before has ended: another has to come between the two.
    pub fn lay(
        &mut self,
        device: &Device,
        step: &Step,
        places: Places<'_>,
        (spans, sequences): (&Buffer<[u32; 2]>, usize),
    ) -> Result<(), DeviceError> {
        assert!(sequences <= spans.len(), "the spans are there");
        assert!(sequences * RECORD_WORDS <= self.records.len(), "a place for each");
        self.sequences = sequences;
        let args = Args {
            spans: spans.read(),
            positions: places.positions.read(),
            lanes: places.lanes.read(),
            pages: step.pages.read(),
            records: self.records.write(),
            sequences: whole(sequences),
            pages_max: whole(step.sizes.pages_max),
        };
        let grid = Grid::new(whole(sequences.div_ceil(8)), 256);
        device.launch("lay_records", grid, &[Arg::value(&args)])
    }

    pub(super) fn records(&self) -> u64 {
        self.records.read()
    }
}
