//! Sizes and constants out of a Hugging Face `config.json`, with every field accounted for.

use crate::model::error::Fault;
use crate::model::fields::{Fields, missing};
use crate::model::rope::{Scaling, rope, to_f32};
use crate::model::{ModelConfig, Rope};

/// Positions that a Mistral model sees when its configuration does not name a window: what
/// transformers takes for an absent field, while `null` is none.
const MISTRAL_WINDOW: usize = 4096;

/// Fields that cannot change the arithmetic of a step.
const HARMLESS: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "auto_map",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "eos_token_id",
    "hidden_dropout_prob",
    "id2label",
    "initializer_range",
    "is_decoder",
    "is_llama_config",
    "label2id",
    "max_window_layers",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "pretraining_tp",
    "problem_type",
    "return_dict",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
];

/// The attention and widths that a decoder layer of the Llama family has.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layer {
    pub(crate) hidden: usize,
    pub(crate) intermediate: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) rms_eps: f32,
    pub(crate) rope: Rope,
    pub(crate) context_max: Option<usize>,
}

/// Reads the `config.json` of a target model. What deserves a warning is added to `notes`.
pub(crate) fn model_config(
    mut fields: Fields,
    name: &str,
    notes: &mut Vec<String>,
) -> Result<ModelConfig, Fault> {
    let family = fields.text("model_type")?.ok_or_else(|| missing("model_type"))?;
    if !["llama", "mistral", "qwen2", "qwen3"].contains(&&*family) {
        let reason =
            format_args!("{family:?} is not supported: llama, mistral, qwen2 and qwen3 are");
        return Err(Fault::new("field \"model_type\"", reason));
    }
    let tied = fields.flag("tie_word_embeddings")?.unwrap_or(false);
    let vocab = fields.needed_size("vocab_size")?;
    let layers = fields.needed_size("num_hidden_layers")?;
    let layer = layer(&mut fields, notes)?;
    let context_max = layer.context_max.ok_or_else(|| missing("max_position_embeddings"))?;
    full_attention(&mut fields, &family, context_max)?;
    fields.finish()?;
    Ok(ModelConfig {
        name: name.to_owned(),
        vocab,
        hidden: layer.hidden,
        intermediate: layer.intermediate,
        layers,
        heads: layer.heads,
        kv_heads: layer.kv_heads,
        head_dim: layer.head_dim,
        rms_eps: layer.rms_eps,
        rope: layer.rope,
        context_max,
        tied,
        qkv_bias: family == "qwen2",
        qk_norm: family == "qwen3",
    })
}

/// Takes the fields that describe a layer, and those that must not ask for another kind.
pub(crate) fn layer(fields: &mut Fields, notes: &mut Vec<String>) -> Result<Layer, Fault> {
    let hidden = fields.needed_size("hidden_size")?;
    let heads = fields.needed_size("num_attention_heads")?;
    let kv_heads = fields.size("num_key_value_heads")?.unwrap_or(heads);
    let head_dim = match fields.size("head_dim")? {
        Some(it) => it,
        None if 0 < heads && hidden.is_multiple_of(heads) => hidden / heads,
        None => return Err(missing("head_dim")),
    };
    if let Some(other) = fields.text("hidden_act")?.filter(|it| it != "silu") {
        let reason = format_args!("{other:?} is not supported: silu is");
        return Err(Fault::new("field \"hidden_act\"", reason));
    }
    if fields.has("quantization_config") {
        let reason = "quantised safetensors are not supported; a quantised GGUF file is";
        return Err(Fault::new("field \"quantization_config\"", reason));
    }
    for name in ["attention_bias", "mlp_bias", "rope_interleaved"] {
        fields.only(name, false)?;
    }
    let layer = Layer {
        hidden,
        intermediate: fields.needed_size("intermediate_size")?,
        heads,
        kv_heads,
        head_dim,
        rms_eps: to_f32(fields.needed_float("rms_norm_eps")?),
        rope: rotary(fields, head_dim, notes)?,
        context_max: fields.size("max_position_embeddings")?,
    };
    fields.ignore(HARMLESS);
    Ok(layer)
}

/// A window that hides positions within the context would change the arithmetic.
pub(crate) fn full_attention(
    fields: &mut Fields,
    family: &str,
    context_max: usize,
) -> Result<(), Fault> {
    // Qwen configurations give a window that this flag switches off; Mistral has no such flag.
    let is_mistral = family == "mistral";
    let is_silent = is_mistral && !fields.names("sliding_window");
    let window = fields.size("sliding_window")?.or(is_silent.then_some(MISTRAL_WINDOW));
    let used = fields.flag("use_sliding_window")?.unwrap_or(is_mistral);
    if let Some(window) = window.filter(|it| used && *it < context_max) {
        let reason = format_args!(
            "{window} is within the context of {context_max}, which is not supported; set \
             max_position_embeddings to {window} to serve what fits the window"
        );
        return Err(Fault::new("field \"sliding_window\"", reason));
    }
    let Some(kinds) = fields.take("layer_types") else { return Ok(()) };
    let all_full = kinds.as_array().is_some_and(|it| it.iter().all(|it| it == "full_attention"));
    if all_full {
        return Ok(());
    }
    Err(Fault::new("field \"layer_types\"", "only full_attention is supported"))
}

/// `rope_theta` beside `rope_scaling`, or both in `rope_parameters` as newer writers put them.
fn rotary(fields: &mut Fields, head_dim: usize, notes: &mut Vec<String>) -> Result<Rope, Fault> {
    let whole = |fields: &mut Fields| match fields.float("partial_rotary_factor")? {
        Some(it) if it != 1.0 => {
            let reason = format_args!("{it} is not supported: only whole heads are rotated");
            Err(Fault::new("field \"partial_rotary_factor\"", reason))
        }
        _ => Ok(()),
    };
    whole(fields)?;
    let outer = fields.float("rope_theta")?;
    let mut said = None;
    for name in ["rope_scaling", "rope_parameters"] {
        let Some(mut inner) = fields.object(name)? else { continue };
        let mut read = || {
            whole(&mut inner)?;
            let theta = inner.float("rope_theta")?.or(outer);
            Ok((theta, scaling(&mut inner)?))
        };
        let read = read().and_then(|it| inner.finish().map(|()| it));
        let (theta, scaling) = read.map_err(|it: Fault| it.within(name))?;
        let (before, other) = said.unwrap_or((theta, scaling));
        if scaling != other || theta.or(before) != before.or(theta) {
            return Err(Fault::new(name, "differs from rope_scaling beside it"));
        }
        said = Some((theta.or(before), scaling));
    }
    let (theta, scaling) = said.unwrap_or((outer, Scaling::None));
    let theta = theta.unwrap_or_else(|| {
        notes.push("rope_theta is not given; the usual 10000 is taken".to_owned());
        10_000.0
    });
    rope(theta, scaling, head_dim).map_err(|it| it.within("rope"))
}

fn scaling(fields: &mut Fields) -> Result<Scaling, Fault> {
    // Where both are there, the newer name counts.
    let old = fields.text("type")?;
    let kind = fields.text("rope_type")?.or(old).unwrap_or_else(|| "default".to_owned());
    match &*kind {
        "default" | "none" => Ok(Scaling::None),
        "linear" => Ok(Scaling::Linear { factor: fields.needed_float("factor")? }),
        "llama3" => Ok(Scaling::Llama3 {
            factor: fields.needed_float("factor")?,
            low: fields.needed_float("low_freq_factor")?,
            high: fields.needed_float("high_freq_factor")?,
            original_context: fields.needed_float("original_max_position_embeddings")?,
        }),
        other => {
            let reason = format_args!("{other:?} is not supported: default, linear, llama3 are");
            Err(Fault::new("field \"rope_type\"", reason))
        }
    }
}

#[cfg(test)]
mod tests;
