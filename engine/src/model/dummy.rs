//! A model of a given shape without weights: for speed tests on random ones.

use std::collections::BTreeMap;
use std::path::Path;

use crate::model::error::Fault;
use crate::model::head::{check_fit, fields};
use crate::model::load::{Loaded, TextSide, stem};
use crate::model::{Head, LoadError, LoadedHead, Model, ModelConfig, from_safetensors, hf_text};
use crate::text::tokenizer::{Options, Tokenizer, byte_level};

/// Reads the folder `dir`: its `config.json`, and its tokenizer where there is one. Without one a
/// byte is a token, and other tokens stand for nothing.
///
/// # Errors
///
/// What is wrong with which file, in one line.
pub fn load_dummy(dir: &Path) -> Result<Loaded, LoadError> {
    let mut notes = vec!["WARNING: the weights are random".to_owned()];
    let config = from_safetensors::config(dir, &stem(dir), &mut notes)?;
    let text = if dir.join("tokenizer.json").exists() {
        hf_text::read(dir, config.vocab, &mut notes)?
    } else {
        bytes(config.vocab).map_err(|it| it.at(dir))?
    };
    let TextSide { tokenizer, template, stop_tokens, bos } = text;
    let model = Model { config, tensors: BTreeMap::new() };
    Ok(Loaded { model, tokenizer, template, stop_tokens, bos, notes })
}

fn bytes(vocab: usize) -> Result<TextSide, Fault> {
    let options = Options { vocab, ..Options::default() };
    let tokenizer = Tokenizer::new(byte_level(), &options, &mut Vec::new())?;
    Ok(TextSide { tokenizer, template: None, stop_tokens: Vec::new(), bos: None })
}

/// The same for a draft head: without weights, its vocabulary the target's first tokens.
///
/// # Errors
///
/// As for a head with weights.
pub fn load_dummy_head(
    dir: &Path,
    target: &ModelConfig,
    captured_layers: Option<Vec<usize>>,
) -> Result<LoadedHead, LoadError> {
    let mut notes = vec!["WARNING: the head's weights are random".to_owned()];
    let fields = fields(dir, &mut notes)?;
    let draft_vocab = fields.draft_vocab.unwrap_or(target.vocab);
    check_fit(&fields, draft_vocab, target).map_err(|it| it.at(dir))?;
    let named = captured_layers.or_else(|| fields.ids.as_ref().map(|it| it.inputs.clone()));
    let usual = || vec![2, target.layers / 2, target.layers.saturating_sub(3)];
    let captured = named.unwrap_or_else(usual);
    if let Some(beyond) = captured.iter().find(|it| target.layers <= **it) {
        let reason = format_args!("{beyond} is no layer of a target with {}", target.layers);
        return Err(Fault::new("captured layers", reason).at(dir));
    }
    let config = fields.config(draft_vocab, captured);
    let target_ids = (0..).take(draft_vocab).collect();
    Ok(LoadedHead { head: Head { config, tensors: BTreeMap::new(), target_ids }, notes })
}

#[cfg(test)]
mod tests;
