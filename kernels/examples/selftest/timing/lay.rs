//! Steps of some sequences, laid out for texts in pages of their own.

use kernels::cuda::{Device, DeviceError};
use kernels::ops::rows::{CHOOSES, Entry, Lists, Step, StepSizes, StepWords, Wish};

/// A step of `batch` sequences, of which `there` exist, of `q` rows each that end at `end`; in
/// pages of texts of up to `end` tokens.
pub(crate) fn lay(
    device: &Device,
    (batch, there): (usize, usize),
    q: usize,
    end: usize,
) -> Result<Step, DeviceError> {
    lay_within(device, (batch, q), &vec![q; there], (end, end))
}

/// A step of `batch` sequences with places for `q` rows each that end at `end`; of those that exist
/// `there` says how many of these rows they have, from the first on; in pages of texts of up to
/// `context` tokens.
pub(crate) fn lay_within(
    device: &Device,
    (batch, q): (usize, usize),
    there: &[usize],
    (end, context): (usize, usize),
) -> Result<Step, DeviceError> {
    let pages_max = (context + 64) / 16;
    let rows = batch * q;
    let sizes = StepSizes {
        lanes: batch,
        pages: batch * pages_max,
        pages_max,
        rows_max: rows,
        choosers_max: rows,
        drafts_max: 7,
        words_max: 4096 + batch * 128 + batch * pages_max * 3,
    };
    let mut step = Step::new(device, sizes)?;
    let mut words = StepWords::default();
    words.clear();
    let few = |it: usize| u32::try_from(it).expect("few");
    for (lane, &rows) in there.iter().enumerate() {
        for place in 0..pages_max {
            words.patch(few(lane), few(place), few(lane * pages_max + place));
        }
        let tokens: Vec<u32> = (0..rows).map(|it| few((lane * 31 + end + it) % 500)).collect();
        let entry = Entry {
            lane: few(lane),
            start: few(end - q),
            fed: 1,
            drafts: few(rows - 1),
            flags: CHOOSES,
            ..Entry::default()
        };
        words.push(entry, Wish::greedy(), Lists { tokens: &tokens, ..Lists::default() }, few(q));
    }
    step.send(words.finish())?;
    Ok(step)
}
