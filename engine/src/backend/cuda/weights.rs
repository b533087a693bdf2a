//! Takes weights by name from what a loader gave, and lays them out for the GPU: bf16 or fp8, in
//! tiles, the weight of the norm before a matrix folded into it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use kernels::cuda::{Buffer, Device};
use kernels::ops::matmul::{Format, Matrix, PackError, gated_row};
use kernels::quant::dequantize;

use super::shard::Shard;
use super::shelf::Shelf;
use crate::backend::BackendError;
use crate::model::Tensor;

/// Where the weights of a model or a draft head come from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub(super) device: &'a Device,
    /// `None` for random ones, for speed tests.
    pub(super) tensors: Option<&'a BTreeMap<String, Tensor>>,
    /// Where its matrices are put, if other processes share them.
    pub(super) shelf: Option<&'a RefCell<Shelf>>,
    /// Which part of them is this rank's.
    pub(super) shard: Shard,
    /// How its matrices are stored.
    pub(super) format: Format,
}

/// A matrix that is to be laid out: rows of all tensors, one after the other.
#[derive(Debug)]
pub(super) struct Stack<'a> {
    pub(super) parts: &'a [Part<'a>],
    /// Columns of the tensors, and those that are this matrix's inputs.
    pub(super) columns: usize,
    pub(super) inputs: Range<usize>,
    /// Weight of the norm before it, (columns).
    pub(super) norm: Option<&'a [f32]>,
}

/// Some rows of a tensor.
#[derive(Debug)]
pub(super) struct Part<'a> {
    pub(super) name: &'a str,
    /// Of the tensor, and those that are taken.
    pub(super) rows: usize,
    pub(super) take: Range<usize>,
}

impl<'a> Part<'a> {
    pub(super) fn whole(name: &'a str, rows: usize) -> Self {
        Self { name, rows, take: 0..rows }
    }
}

impl Source<'_> {
    pub(super) fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, BackendError> {
        let mut out = vec![1.0; len];
        if self.tensors.is_some() {
            let tensor = self.tensor(name, (1, len))?;
            dequantize(tensor.dtype, &tensor.bytes, &mut out)
                .map_err(|error| refused(name, &error.to_string()))?;
        }
        Ok(out)
    }

    /// The same on the device.
    pub(super) fn uploaded(&self, name: &str, len: usize) -> Result<Buffer<f32>, BackendError> {
        Ok(self.device.upload(&self.vector(name, len)?)?)
    }

    pub(super) fn matrix(&self, stack: &Stack<'_>) -> Result<Matrix, BackendError> {
        let outputs: usize = stack.parts.iter().map(|it| it.take.len()).sum();
        self.lay_out(stack, outputs, |output| {
            let mut row = output;
            for (part, Part { take, .. }) in stack.parts.iter().enumerate() {
                if row < take.len() {
                    return (part, row);
                }
                row -= take.len();
            }
            unreachable!("outputs are the rows of all parts")
        })
    }

    /// Gate and up, their rows as a gated product wants them.
    pub(super) fn gated(&self, stack: &Stack<'_>) -> Result<Matrix, BackendError> {
        let rows = stack.parts[0].take.len();
        if !rows.is_multiple_of(8) {
            return Err(refused(stack.parts[0].name, "its rows are no multiple of 8"));
        }
        self.lay_out(stack, 2 * rows, |output| {
            let (is_up, row) = gated_row(output);
            (usize::from(is_up), row)
        })
    }

    /// `from(output)` is the part and which of its rows stands there.
    fn lay_out(
        &self,
        stack: &Stack<'_>,
        outputs: usize,
        from: impl Fn(usize) -> (usize, usize),
    ) -> Result<Matrix, BackendError> {
        let (name, inputs) = (stack.parts[0].name, stack.inputs.len());
        if !inputs.is_multiple_of(64) {
            return Err(refused(name, "its inputs are no multiple of 64"));
        }
        let (mut words, is_there) = self.place(name, self.format.words(outputs, inputs))?;
        if !is_there {
            self.fill(stack, outputs, from, &mut words)?;
        }
        Ok(Matrix::new(words, self.format, outputs, inputs))
    }

    /// Memory for the words of a matrix, and whether they stand there already.
    fn place(&self, name: &str, words: usize) -> Result<(Buffer<u32>, bool), BackendError> {
        match self.shelf {
            Some(shelf) => shelf.borrow_mut().place(name, words),
            None => Ok((self.device.zeros(words)?, false)),
        }
    }

    fn fill(
        &self,
        stack: &Stack<'_>,
        outputs: usize,
        from: impl Fn(usize) -> (usize, usize),
        to: &mut Buffer<u32>,
    ) -> Result<(), BackendError> {
        let Stack { parts, columns, inputs, norm } = stack;
        if self.tensors.is_none() {
            return self.fill_randomly((outputs, inputs.len()), to);
        }
        let tensor = |part: &Part<'_>| self.tensor(part.name, (part.rows, *columns));
        let tensors: Vec<&Tensor> = parts.iter().map(tensor).collect::<Result<_, _>>()?;
        let words = self.format.pack(outputs, inputs.len(), |output, row| {
            let (part, at) = from(output);
            read_row(tensors[part], parts[part].take.start + at, inputs, row);
            if let Some(norm) = norm {
                row.iter_mut().zip(&norm[inputs.clone()]).for_each(|(it, norm)| *it *= norm);
            }
        });
        let words = words.map_err(|error| {
            let (part, at) = from(error.output);
            let error = PackError { output: parts[part].take.start + at };
            refused(parts[part].name, &error.to_string())
        })?;
        Ok(self.device.write(to, 0, &words)?)
    }

    fn fill_randomly(
        &self,
        (outputs, inputs): (usize, usize),
        to: &mut Buffer<u32>,
    ) -> Result<(), BackendError> {
        let mut rng = fastrand::Rng::with_seed(7);
        let (deviation, draw) = ((inputs as f32).sqrt().recip(), || rng.u32(..));
        Ok(self.format.fill_randomly(self.device, to, (outputs, inputs), deviation, draw)?)
    }

    fn tensor(&self, name: &str, shape: (usize, usize)) -> Result<&Tensor, BackendError> {
        let found = self.tensors.and_then(|it| it.get(name));
        let tensor = found.ok_or_else(|| refused(name, "it is missing"))?;
        let is_vector = shape.0 == 1 && tensor.rows * tensor.cols == shape.1;
        if !is_vector && (tensor.rows, tensor.cols) != shape {
            let has =
                format!("it is {} x {}, not {} x {}", tensor.rows, tensor.cols, shape.0, shape.1);
            return Err(refused(name, &has));
        }
        Ok(tensor)
    }
}

/// Some columns of row `at`; of what is stored in blocks only those that they touch are read.
fn read_row(tensor: &Tensor, at: usize, columns: &Range<usize>, to: &mut [f32]) {
    let Tensor { dtype, bytes, rows, .. } = tensor;
    let (block, row_bytes) = (dtype.block_len(), bytes.len() / rows);
    let (first, last) = (columns.start / block, columns.end.div_ceil(block));
    let bytes = &bytes[at * row_bytes..][first * dtype.block_bytes()..last * dtype.block_bytes()];
    let read = |to: &mut [f32]| dequantize(*dtype, bytes, to).expect("the shape was checked");
    if (last - first) * block == columns.len() {
        return read(to);
    }
    let mut blocks = vec![0.0; (last - first) * block];
    read(&mut blocks);
    to.copy_from_slice(&blocks[columns.start - first * block..][..columns.len()]);
}

pub(super) fn refused(what: &str, why: &str) -> BackendError {
    BackendError { detail: format!("cannot lay out {what} on the GPU: {why}") }
}

#[cfg(test)]
mod tests;
