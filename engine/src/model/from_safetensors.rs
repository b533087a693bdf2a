//! A model out of a Hugging Face folder: `config.json` beside safetensors files.

use std::path::Path;

use crate::model::checkpoint::Checkpoint;
use crate::model::error::Fault;
use crate::model::fields::Fields;
use crate::model::hf_config::model_config;
use crate::model::shapes::{check_sizes, compare, expected};
use crate::model::{LoadError, Model, ModelConfig, Tensor};

const CONFIG_BYTES_MAX: u64 = 16 << 20;
const EMBEDDING: &str = "embed_tokens.weight";
const LM_HEAD: &str = "lm_head.weight";

/// What `config.json` in the folder `dir` says. What deserves a warning is added to `notes`.
pub(crate) fn config(
    dir: &Path,
    name: &str,
    notes: &mut Vec<String>,
) -> Result<ModelConfig, LoadError> {
    let path = dir.join("config.json");
    let fields = Fields::read(&path, CONFIG_BYTES_MAX);
    let config = fields.and_then(|it| model_config(it, name, notes));
    let config = config.map_err(|it| it.at(&path))?;
    check_sizes(&config).map_err(|it| it.at(&path))?;
    Ok(config)
}

/// The model in the folder `dir`.
pub(crate) fn model(dir: &Path, name: &str, notes: &mut Vec<String>) -> Result<Model, LoadError> {
    let config = config(dir, name, notes)?;
    let mut checkpoint = Checkpoint::open(dir)?;
    checkpoint.drop_rotary_tables(notes);
    drop_tied_copy(&mut checkpoint, &config, dir)?;
    let found = checkpoint.tensors().iter().map(|(name, it)| (name.clone(), it.shape()));
    let shapes = expected(&config);
    compare(&shapes, &found.collect()).map_err(|it| it.at(dir))?;
    let tensors = shapes.into_iter().map(|(name, (rows, cols))| {
        let dtype = checkpoint.tensors()[&name].dtype();
        let dtype = dtype.map_err(|it| it.within(format_args!("tensor {name:?}")).at(dir))?;
        let bytes = checkpoint.read(&name)?;
        Ok((name, Tensor { dtype, rows, cols, bytes }))
    });
    let tensors = tensors.collect::<Result<_, _>>()?;
    Ok(Model { config, tensors })
}

/// Some writers save the output matrix of a tied model too. It must then be the embedding.
fn drop_tied_copy(
    checkpoint: &mut Checkpoint,
    config: &ModelConfig,
    dir: &Path,
) -> Result<(), LoadError> {
    let both = [EMBEDDING, LM_HEAD].iter().all(|it| checkpoint.tensors().contains_key(*it));
    if !config.tied || !both {
        return Ok(());
    }
    if checkpoint.read(EMBEDDING)? != checkpoint.read(LM_HEAD)? {
        let reason = format_args!("differs from {EMBEDDING:?}, to which config.json ties it");
        return Err(Fault::new(format_args!("tensor {LM_HEAD:?}"), reason).at(dir));
    }
    checkpoint.drop(LM_HEAD);
    Ok(())
}

#[cfg(test)]
mod tests;
