//! `stream[r, :] = table[token[r], :]`.

use half::bf16;

use super::matmul::{Captured, Matrix};
use super::{block_values, whole};
use crate::cuda::{Arg, Buffer, Device, DeviceError, Grid};

/// The first `rows` of `tokens`; a token of `u32::MAX` is a row of zeros. Tokens must be below
/// `table.outputs()`. stream: (rows, table.inputs()); rounded: the same in blocks.
pub fn launch(
    device: &Device,
    table: &Matrix,
    tokens: &Buffer<u32>,
    rows: usize,
    stream: &mut Buffer<f32>,
    rounded: &mut Buffer<bf16>,
    captured: Option<Captured<'_>>,
) -> Result<(), DeviceError> {
    let hidden = table.inputs();
    assert!(rows <= tokens.len(), "a token for each row");
    assert!(rows * hidden <= stream.len(), "a place for each value");
    assert!(block_values(rows, hidden) <= rounded.len(), "and rounded");
    let (captured, at) = match captured {
        Some(mut it) => (it.address(rows, hidden), it.at),
        None => (0, 0),
    };
    let args = [
        Arg::Address(table.table()),
        Arg::Address(tokens.read()),
        Arg::Address(stream.write()),
        Arg::Address(rounded.write()),
        Arg::Address(captured),
        Arg::U32(whole(hidden)),
        Arg::U32(whole(at)),
    ];
    device.launch("embed", Grid::new(whole(rows), 256), &args)
}
