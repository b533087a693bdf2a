//! How the rows of a step attend: which kernels take them, and where they stand.

use kernels::cuda::{Buffer, Device};
use kernels::ops::attend::{Crowd, Table};
use kernels::ops::rope::Places;
use kernels::ops::rows::Step;

use super::send::Recorded;
use crate::backend::BackendError;
use crate::backend::layer::Sizes;

/// How the rows of a step attend: a few of each sequence at once, or in blocks of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spans<'a> {
    pub(super) few: &'a Buffer<[u32; 2]>,
    pub(super) few_len: usize,
    /// Rows of the longest of them.
    pub(super) few_rows: usize,
    /// Laid for them where they are many.
    pub(super) table: Option<&'a Table>,
    /// Chunks of keys for which they are cut: see [`Way`](super::way::Way).
    pub(super) chunks: usize,
    pub(super) many: &'a Buffer<[u32; 2]>,
    pub(super) many_len: usize,
}

impl Spans<'_> {
    /// Lays the table of those that are few rows each, where there are many.
    pub(super) fn lay_table<'t>(
        &self,
        device: &Device,
        step: &Step,
        rows: usize,
        sizes: Sizes,
        table: &'t mut Table,
    ) -> Result<Option<&'t Table>, BackendError> {
        let crowd = Crowd {
            sequences: self.few_len,
            rows_max: self.few_rows,
            group: sizes.group(),
            kv_heads: sizes.kv_heads,
            head_dim: sizes.head_dim,
        };
        if !crowd.wants_table(device) {
            return Ok(None);
        }
        let places = Places { positions: &step.positions, lanes: &step.lanes, rows };
        table.lay(device, step, places, (self.few, self.few_len))?;
        Ok(Some(table))
    }
}

/// Where the rows of a step stand: in a recorded one as the step was laid out, else as was sent to
/// `own`, with (entries of few rows, rows of the longest, blocks of those that have many).
pub(super) fn spans_of<'a>(
    step: &'a Step,
    recorded: Option<Recorded>,
    own: &'a [Buffer<[u32; 2]>; 2],
    (few_len, few_rows, many_len): (usize, usize, usize),
    chunks: usize,
) -> Spans<'a> {
    let [few, many] = own;
    match recorded {
        Some(Recorded { entries, rows, .. }) => Spans {
            few: &step.spans,
            few_len: entries,
            few_rows: rows,
            table: None,
            chunks,
            many,
            many_len: 0,
        },
        None => Spans { few, few_len, few_rows, table: None, chunks, many, many_len },
    }
}
