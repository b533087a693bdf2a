//! The tensors that a model must have, with their shapes; a file with others is refused.

use std::collections::BTreeMap;

use crate::model::ModelConfig;
use crate::model::error::{Fault, listed};

/// (outputs, inputs); a vector has one output.
pub(crate) type Shape = (usize, usize);

const VOCAB_MAX: usize = 1 << 22;
const WIDTH_MAX: usize = 1 << 20;
const LAYERS_MAX: usize = 1 << 10;
const HEADS_MAX: usize = 1 << 10;
const HEAD_DIM_MAX: usize = 1 << 10;
const CONTEXT_MAX: usize = 1 << 26;

/// Sizes and constants that fit together and stay within what any model of this family has, so
/// that no product of two of them can overflow.
pub(crate) fn check_sizes(config: &ModelConfig) -> Result<(), Fault> {
    let bounded = [
        ("vocabulary", config.vocab, VOCAB_MAX),
        ("hidden size", config.hidden, WIDTH_MAX),
        ("intermediate size", config.intermediate, WIDTH_MAX),
        ("layer count", config.layers, LAYERS_MAX),
        ("context", config.context_max, CONTEXT_MAX),
    ];
    for (what, size, max) in bounded {
        check_size(what, size, max)?;
    }
    check_heads(config.heads, config.kv_heads, config.head_dim)?;
    check_eps(config.rms_eps)
}

pub(crate) fn check_size(what: &str, size: usize, max: usize) -> Result<(), Fault> {
    match size {
        0 => Err(Fault::whole(format_args!("the {what} is zero"))),
        it if max < it => {
            Err(Fault::whole(format_args!("the {what} {it} is too large (at most {max})")))
        }
        _ => Ok(()),
    }
}

/// The same limits for a part that has a width but no layers.
pub(crate) fn check_widths(widths: &[(&str, usize)]) -> Result<(), Fault> {
    widths.iter().try_for_each(|(what, size)| check_size(what, *size, WIDTH_MAX))
}

pub(crate) fn check_heads(heads: usize, kv_heads: usize, head_dim: usize) -> Result<(), Fault> {
    check_size("head count", heads, HEADS_MAX)?;
    check_size("key-value head count", kv_heads, HEADS_MAX)?;
    check_size("head size", head_dim, HEAD_DIM_MAX)?;
    if !heads.is_multiple_of(kv_heads) {
        let reason = format_args!("{heads} heads cannot share {kv_heads} key-value heads");
        return Err(Fault::whole(reason));
    }
    if !head_dim.is_multiple_of(2) {
        return Err(Fault::whole(format_args!("the head size {head_dim} is odd")));
    }
    Ok(())
}

pub(crate) fn check_eps(eps: f32) -> Result<(), Fault> {
    if 0.0 < eps && eps < 1.0 {
        return Ok(());
    }
    Err(Fault::whole(format_args!("the RMSNorm epsilon {eps} is no use")))
}

/// Name and shape of each tensor that a [`Model`](crate::model::Model) of this `config` has.
pub(crate) fn expected(config: &ModelConfig) -> BTreeMap<String, Shape> {
    let (hidden, intermediate) = (config.hidden, config.intermediate);
    let queries = config.heads * config.head_dim;
    let keys = config.kv_heads * config.head_dim;
    let mut shapes = BTreeMap::new();
    shapes.insert("embed_tokens.weight".to_owned(), (config.vocab, hidden));
    shapes.insert("norm.weight".to_owned(), (1, hidden));
    if !config.tied {
        shapes.insert("lm_head.weight".to_owned(), (config.vocab, hidden));
    }
    for layer in 0..config.layers {
        let mut add = |name: &str, shape| {
            shapes.insert(format!("layers.{layer}.{name}"), shape);
        };
        add("input_layernorm.weight", (1, hidden));
        add("post_attention_layernorm.weight", (1, hidden));
        add("self_attn.q_proj.weight", (queries, hidden));
        add("self_attn.k_proj.weight", (keys, hidden));
        add("self_attn.v_proj.weight", (keys, hidden));
        add("self_attn.o_proj.weight", (hidden, queries));
        add("mlp.gate_proj.weight", (intermediate, hidden));
        add("mlp.up_proj.weight", (intermediate, hidden));
        add("mlp.down_proj.weight", (hidden, intermediate));
        if config.qkv_bias {
            add("self_attn.q_proj.bias", (1, queries));
            add("self_attn.k_proj.bias", (1, keys));
            add("self_attn.v_proj.bias", (1, keys));
        }
        if config.qk_norm {
            add("self_attn.q_norm.weight", (1, config.head_dim));
            add("self_attn.k_norm.weight", (1, config.head_dim));
        }
    }
    shapes
}

/// Every missing, left-over or misshapen tensor at once. A `found` shape is `None` when it has
/// more dimensions than a matrix.
pub(crate) fn compare(
    expected: &BTreeMap<String, Shape>,
    found: &BTreeMap<String, Option<Shape>>,
) -> Result<(), Fault> {
    let mut wrong = Vec::new();
    for (name, (rows, cols)) in expected {
        match found.get(name) {
            None => wrong.push(format!("{name:?} is missing")),
            Some(None) => wrong.push(format!("{name:?} is neither a matrix nor a vector")),
            Some(Some(it)) if *it != (*rows, *cols) => wrong.push(format!(
                "{name:?} has the shape ({}, {}) instead of ({rows}, {cols})",
                it.0, it.1
            )),
            Some(_) => {}
        }
    }
    for name in found.keys().filter(|it| !expected.contains_key(*it)) {
        wrong.push(format!("{name:?} has no place in this model"));
    }
    if wrong.is_empty() { Ok(()) } else { Err(Fault::new("tensors", listed(&wrong))) }
}
