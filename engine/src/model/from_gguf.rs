//! A model out of a GGUF file: the values and names of llama.cpp, checked and translated.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

use crate::model::error::{Fault, LoadError, listed, one_line};
use crate::model::gguf::Gguf;
use crate::model::rope::{Scaling, rope, to_f32};
use crate::model::shapes::{check_sizes, compare, expected};
use crate::model::{Model, ModelConfig, Rope, Tensor};

/// Values under the architecture's prefix that are read below or cannot change the arithmetic.
const KNOWN: &[&str] = &[
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "expert_count",
    "expert_used_count",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "vocab_size",
];

const ROPE_FACTORS: &str = "rope_freqs.weight";

/// The families whose arithmetic is known here, by their GGUF names.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Family {
    Llama,
    Qwen2,
    Qwen3,
}

/// Opens `path` and reads its header.
pub(crate) fn open(path: &Path) -> Result<Gguf<BufReader<File>>, LoadError> {
    let open = || {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok((file, len))
    };
    let (file, len) = open().map_err(|it: std::io::Error| Fault::whole(it).at(path))?;
    Gguf::open(BufReader::new(file), len).map_err(|it| it.at(path))
}

/// The model of an open file. `fallback_name` is its name when the file gives none.
pub(crate) fn model<S: Read + Seek>(
    gguf: &mut Gguf<S>,
    fallback_name: &str,
) -> Result<Model, Fault> {
    let family = family(gguf)?;
    refuse_unknown(gguf, family)?;
    let config = config(gguf, family, fallback_name)?;
    let mut names = BTreeMap::new();
    let mut shapes = BTreeMap::new();
    let expected = expected(&config);
    for (name, entry) in gguf.tensors().iter().filter(|it| it.0 != ROPE_FACTORS) {
        let to = hugging_face_name(name).unwrap_or_else(|| name.clone());
        if to == *name && expected.contains_key(name) {
            let reason = "has the name of another format, whose rows may stand in another order";
            return Err(Fault::new(format_args!("tensor {name:?}"), reason));
        }
        shapes.insert(to.clone(), entry.shape());
        names.insert(to, name.clone());
    }
    compare(&expected, &shapes)?;
    let mut tensors = BTreeMap::new();
    for (to, from) in names {
        tensors.insert(to.clone(), tensor(gguf, &from, &to, &config, family)?);
    }
    Ok(Model { config, tensors })
}

fn family<S>(gguf: &Gguf<S>) -> Result<Family, Fault> {
    if let Some(kind) = gguf.text("general.type")?.filter(|it| *it != "model") {
        return Err(Fault::new("general.type", format_args!("{kind:?} is not a whole model")));
    }
    if 1 < gguf.size("split.count")?.unwrap_or(1) {
        let reason = "one part of a split file; merge the parts first";
        return Err(Fault::new("split.count", reason));
    }
    let name = gguf.text("general.architecture")?;
    match name.ok_or_else(|| Fault::new("general.architecture", "missing"))? {
        "llama" => Ok(Family::Llama),
        "qwen2" => Ok(Family::Qwen2),
        "qwen3" => Ok(Family::Qwen3),
        other => {
            let reason = format_args!("{other:?} is not supported: llama, qwen2 and qwen3 are");
            Err(Fault::new("general.architecture", reason))
        }
    }
}

impl Family {
    fn prefix(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }
}

fn refuse_unknown<S>(gguf: &Gguf<S>, family: Family) -> Result<(), Fault> {
    let suffix = |key: &str| {
        let rest = key.strip_prefix(family.prefix())?.strip_prefix('.')?;
        (!KNOWN.contains(&rest)).then(|| format!("{key:?}"))
    };
    let unknown: Vec<_> = gguf.keys().filter_map(suffix).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let reason = format_args!("may change the arithmetic and is not known: {}", listed(&unknown));
    Err(Fault::new("values", reason))
}

fn config<S: Read + Seek>(
    gguf: &mut Gguf<S>,
    family: Family,
    fallback_name: &str,
) -> Result<ModelConfig, Fault> {
    let key = |suffix: &str| format!("{}.{suffix}", family.prefix());
    let needed = |suffix: &str| {
        let size = gguf.size_everywhere(&key(suffix))?;
        size.ok_or_else(|| Fault::new(key(suffix), "missing"))
    };
    let hidden = needed("embedding_length")?;
    let heads = needed("attention.head_count")?;
    let kv_heads = gguf.size_everywhere(&key("attention.head_count_kv"))?.unwrap_or(heads);
    let head_dim = match gguf.size(&key("attention.key_length"))? {
        Some(it) => it,
        None if 0 < heads && hidden.is_multiple_of(heads) => hidden / heads,
        None => return Err(Fault::whole(format_args!("{hidden} is not {heads} whole heads"))),
    };
    let eps = gguf.float(&key("attention.layer_norm_rms_epsilon"))?;
    let shape = gguf.tensors().get("token_embd.weight").and_then(|it| it.shape());
    let (vocab, _) = shape.ok_or_else(|| Fault::new("token_embd.weight", "missing"))?;
    let name = gguf.text("general.name")?.filter(|it| !it.trim().is_empty());
    let mut config = ModelConfig {
        name: one_line(name.unwrap_or(fallback_name)),
        vocab,
        hidden,
        intermediate: needed("feed_forward_length")?,
        layers: needed("block_count")?,
        heads,
        kv_heads,
        head_dim,
        rms_eps: to_f32(eps.ok_or_else(|| Fault::whole("the RMSNorm epsilon is missing"))?),
        rope: Rope { theta: 0.0, factors: Vec::new() },
        context_max: needed("context_length")?,
        tied: !gguf.tensors().contains_key("output.weight"),
        qkv_bias: gguf.tensors().contains_key("blk.0.attn_q.bias"),
        qk_norm: family == Family::Qwen3,
    };
    check_sizes(&config)?;
    refuse_other_arithmetic(gguf, family, &config)?;
    config.rope = rotary(gguf, family, head_dim)?;
    Ok(config)
}

/// Values that this engine knows but only in the form that changes nothing.
fn refuse_other_arithmetic<S>(
    gguf: &Gguf<S>,
    family: Family,
    config: &ModelConfig,
) -> Result<(), Fault> {
    let same = [
        ("attention.value_length", config.head_dim),
        ("rope.dimension_count", config.head_dim),
        ("vocab_size", config.vocab),
        ("expert_count", 0),
        ("expert_used_count", 0),
    ];
    for (suffix, wanted) in same {
        let key = format!("{}.{suffix}", family.prefix());
        if let Some(it) = gguf.size(&key)?.filter(|it| *it != wanted) {
            return Err(Fault::new(key, format_args!("{it}, only {wanted} is supported here")));
        }
    }
    let key = format!("{}.attention.sliding_window", family.prefix());
    match gguf.size(&key)?.filter(|it| 0 < *it && *it < config.context_max) {
        None => Ok(()),
        Some(it) => {
            let context = config.context_max;
            let reason = format_args!("{it} is within the context of {context}: not supported");
            Err(Fault::new(key, reason))
        }
    }
}

fn rotary<S: Read + Seek>(
    gguf: &mut Gguf<S>,
    family: Family,
    head_dim: usize,
) -> Result<Rope, Fault> {
    let key = |suffix: &str| format!("{}.rope.{suffix}", family.prefix());
    let theta = gguf.float(&key("freq_base"))?.unwrap_or(10_000.0);
    let factor = gguf.float(&key("scaling.factor"))?.or(gguf.float(&key("scale_linear"))?);
    let scaling = match gguf.text(&key("scaling.type"))?.unwrap_or("linear") {
        "none" => Scaling::None,
        "linear" => match factor.filter(|it| 0.0 < *it) {
            Some(factor) if factor != 1.0 => Scaling::Linear { factor },
            _ => Scaling::None,
        },
        other => {
            let reason = format_args!("{other:?} is not supported: none and linear are");
            return Err(Fault::new(key("scaling.type"), reason));
        }
    };
    let mut rope = rope(theta, scaling, head_dim).map_err(|it| it.within("rope"))?;
    if gguf.tensors().contains_key(ROPE_FACTORS) {
        if !rope.factors.is_empty() {
            return Err(Fault::new(ROPE_FACTORS, "together with a scaling factor"));
        }
        rope.factors = rope_factors(gguf, head_dim)?;
    }
    Ok(rope)
}

/// Llama 3 scaling, which converters store as a tensor: all of them positive.
fn rope_factors<S: Read + Seek>(gguf: &mut Gguf<S>, head_dim: usize) -> Result<Vec<f32>, Fault> {
    let entry = &gguf.tensors()[ROPE_FACTORS];
    if entry.dtype != kernels::quant::Dtype::F32 || entry.dims != [head_dim / 2] {
        let (dtype, dims) = (entry.dtype, &entry.dims);
        let reason = format_args!("{dims:?} of {dtype:?} instead of {} of F32", head_dim / 2);
        return Err(Fault::new(ROPE_FACTORS, reason));
    }
    let bytes = gguf.read(ROPE_FACTORS)?;
    let values = bytes.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it));
    let factors: Vec<f32> = values.collect();
    if factors.iter().all(|it| it.is_finite() && 0.0 < *it) {
        return Ok(factors);
    }
    Err(Fault::new(ROPE_FACTORS, "holds a number that is no divisor"))
}

/// The name without `model.` that Hugging Face checkpoints use.
fn hugging_face_name(name: &str) -> Option<String> {
    let whole = match name {
        "token_embd.weight" => Some("embed_tokens.weight"),
        "output_norm.weight" => Some("norm.weight"),
        "output.weight" => Some("lm_head.weight"),
        _ => None,
    };
    if let Some(whole) = whole {
        return Some(whole.to_owned());
    }
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    let (part, kind) = part.rsplit_once('.')?;
    let part = match part {
        "attn_norm" => "input_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        _ => return None,
    };
    Some(format!("layers.{layer}.{part}.{kind}"))
}

fn tensor<S: Read + Seek>(
    gguf: &mut Gguf<S>,
    from: &str,
    to: &str,
    config: &ModelConfig,
    family: Family,
) -> Result<Tensor, Fault> {
    let entry = &gguf.tensors()[from];
    let (rows, cols) = entry.shape().expect("compared with what is expected");
    let dtype = entry.dtype;
    if rows == 1 && dtype.block_len() != 1 {
        let reason = format_args!("a vector stored as {dtype:?}, which is not supported");
        return Err(Fault::new(format_args!("tensor {from:?}"), reason));
    }
    let mut bytes = gguf.read(from)?;
    let rotated = to.contains(".q_proj.") || to.contains(".k_proj.");
    if family == Family::Llama && rotated {
        let outputs = if to.ends_with(".bias") { cols } else { rows };
        bytes = rotate_half_order(&bytes, outputs, config.head_dim);
    }
    Ok(Tensor { dtype, rows, cols, bytes })
}

/// Puts the outputs of a query or key projection back into rotate-half order.
///
/// Converters to GGUF store the outputs of each Llama head in pairs, (0, d/2), (1, d/2 + 1), ...,
/// for a rotary embedding of neighbours. An output is a run of bytes, quantised or not: blocks
/// lie along the inputs.
fn rotate_half_order(bytes: &[u8], outputs: usize, head_dim: usize) -> Vec<u8> {
    let stride = bytes.len() / outputs;
    let mut ordered = Vec::with_capacity(bytes.len());
    for head in bytes.chunks(stride * head_dim) {
        for half in 0..2 {
            for pair in 0..head_dim / 2 {
                let at = (2 * pair + half) * stride;
                ordered.extend_from_slice(&head[at..at + stride]);
            }
        }
    }
    ordered
}

#[cfg(test)]
pub(crate) mod tests;
