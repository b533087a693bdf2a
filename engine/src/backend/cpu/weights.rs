//! Takes weights by name from what a loader gave, and lays them out for the CPU.

use std::collections::BTreeMap;

use kernels::cpu::{Activations, Matrix, PackError};
use kernels::quant::dequantize;

use crate::backend::BackendError;
use crate::model::Tensor;

/// The tensors of a model or a draft head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub(super) tensors: &'a BTreeMap<String, Tensor>,
    pub(super) activations: Activations,
    /// Whether plain numbers are rounded to 8 bits where activations are: a draft that a rounded
    /// head guesses is as good as any other, since the target decides.
    pub(super) rounds_plain: bool,
}

impl Source<'_> {
    /// A vector as floats.
    pub(super) fn vector(&self, name: &str) -> Result<Vec<f32>, BackendError> {
        let tensor = self.tensor(name)?;
        let mut out = vec![0.0; tensor.rows * tensor.cols];
        dequantize(tensor.dtype, &tensor.bytes, &mut out)
            .map_err(|error| refused(name, &error.to_string()))?;
        Ok(out)
    }

    /// Vectors one after the other.
    pub(super) fn vectors(&self, names: &[String]) -> Result<Vec<f32>, BackendError> {
        let all: Result<Vec<_>, _> = names.iter().map(|it| self.vector(it)).collect();
        Ok(all?.concat())
    }

    pub(super) fn matrix(&self, name: &str) -> Result<Matrix, BackendError> {
        self.pack(name, self.activations).map_err(|error| refused(name, &error.to_string()))
    }

    /// Matrices that read the same inputs, as one: the outputs of all, one after the other.
    pub(super) fn stack(&self, names: &[String]) -> Result<Matrix, BackendError> {
        let pack_all = |activations: Activations| -> Result<Vec<Matrix>, PackError> {
            names.iter().map(|it| self.pack(it, activations)).collect()
        };
        let stacked = pack_all(self.activations).and_then(|all| {
            let first = all.first().map(Matrix::activations);
            if all.iter().all(|it| Some(it.activations()) == first) {
                return Matrix::stack(all);
            }
            // Plain numbers beside quantised ones: all compute in floats.
            Matrix::stack(pack_all(Activations::F32)?)
        });
        stacked.map_err(|error| refused(&names.join(", "), &error.to_string()))
    }

    fn pack(&self, name: &str, activations: Activations) -> Result<Matrix, PackError> {
        let Ok(Tensor { dtype, rows, cols, bytes }) = self.tensor(name) else {
            return Err(PackError::Stack { detail: "one is missing" });
        };
        let is_plain = dtype.block_len() == 1;
        if is_plain && self.rounds_plain && activations == Activations::Int8 {
            return Matrix::quantize_8bit(*dtype, *rows, *cols, bytes);
        }
        Matrix::pack(*dtype, *rows, *cols, bytes, activations)
    }

    fn tensor(&self, name: &str) -> Result<&Tensor, BackendError> {
        self.tensors.get(name).ok_or_else(|| refused(name, "it is missing"))
    }
}

pub(super) fn refused(what: &str, why: &str) -> BackendError {
    BackendError { detail: format!("cannot lay out {what}: {why}") }
}
