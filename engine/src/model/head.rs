//! Reads an EAGLE-3 head, whoever trained it: one arithmetic, several names and conventions.

use std::collections::BTreeMap;
use std::path::Path;

use self::config::HeadFields;
use self::vocab::target_ids;
use crate::model::checkpoint::Checkpoint;
use crate::model::error::Fault;
use crate::model::fields::Fields;
use crate::model::shapes::{Shape, check_eps, check_heads, check_widths, compare};
use crate::model::{Head, LoadError, ModelConfig, Tensor};

pub(crate) mod config;
mod vocab;

const CONFIG_BYTES_MAX: u64 = 16 << 20;
const LM_HEAD: &str = "lm_head.weight";
const EMBEDDING: &str = "embed_tokens.weight";

/// A head, and what its operator should know about it.
#[derive(Clone, Debug)]
pub struct LoadedHead {
    pub head: Head,
    /// One line each: conventions that were assumed, parts that were borrowed or left out.
    pub notes: Vec<String>,
}

/// Reads the head in the folder `dir` for `target`.
///
/// `captured_layers` overrides what the file says: 0-based layers whose *input* is captured, in
/// the order in which `fc` was trained.
///
/// # Errors
///
/// What is wrong with the folder: a missing, left-over or misshapen tensor, a field that is not
/// known, a variant that is not supported, or sizes that do not fit the target.
pub fn load_head(
    dir: &Path,
    target: &ModelConfig,
    captured_layers: Option<Vec<usize>>,
) -> Result<LoadedHead, LoadError> {
    let mut notes = Vec::new();
    let fields = fields(dir, &mut notes)?;
    let mut checkpoint = open(dir, &mut notes)?;
    let at = |it: Fault| it.at(dir);
    let own_rows = rows(&checkpoint, LM_HEAD);
    let draft_vocab = fields.draft_vocab.or(own_rows).unwrap_or(target.vocab);
    check_fit(&fields, draft_vocab, target).map_err(at)?;
    let captured = captured(&fields, &checkpoint, target, captured_layers, &mut notes);
    let captured = captured.map_err(at)?;
    if own_rows.is_none() {
        check_borrowing(draft_vocab, target).map_err(at)?;
        notes.push("no lm_head.weight in the head: it borrows the target's".to_owned());
    }
    let target_ids = target_ids(&mut checkpoint, dir, draft_vocab, target.vocab)?;
    refuse_variants(&checkpoint).map_err(at)?;
    drop_embedding(&mut checkpoint, target, &mut notes).map_err(at)?;
    let inputs = captured.len() * target.hidden;
    let mut shapes = expected(&fields, inputs);
    if own_rows.is_some() {
        shapes.insert(LM_HEAD.to_owned(), (draft_vocab, fields.layer.hidden));
    }
    let found = checkpoint.tensors().iter().map(|(name, it)| (name.clone(), it.shape()));
    compare(&shapes, &found.collect()).map_err(at)?;
    let tensors = shapes.into_iter().map(|(name, shape)| {
        let tensor = read(&mut checkpoint, dir, &name, shape)?;
        Ok((name, tensor))
    });
    let tensors = tensors.collect::<Result<_, _>>()?;
    let config = fields.config(draft_vocab, captured);
    Ok(LoadedHead { head: Head { config, tensors, target_ids }, notes })
}

/// What the head says about itself.
pub(crate) fn fields(dir: &Path, notes: &mut Vec<String>) -> Result<HeadFields, LoadError> {
    let path = dir.join("config.json");
    let fields = Fields::read(&path, CONFIG_BYTES_MAX);
    fields.and_then(|it| HeadFields::parse(it, notes)).map_err(|it| it.at(&path))
}

/// The checkpoint with the names of the original heads.
pub(crate) fn open(dir: &Path, notes: &mut Vec<String>) -> Result<Checkpoint, LoadError> {
    let mut checkpoint = Checkpoint::open(dir)?;
    checkpoint
        .rename(|name| match name {
            "draft_id_to_target_id" => Some("d2t".to_owned()),
            _ => name.strip_prefix("layers.0.").map(|it| format!("midlayer.{it}")),
        })
        .map_err(|it| it.at(dir))?;
    checkpoint.drop_rotary_tables(notes);
    Ok(checkpoint)
}

fn rows(checkpoint: &Checkpoint, name: &str) -> Option<usize> {
    checkpoint.tensors().get(name).and_then(|it| it.dims.first().copied())
}

pub(crate) fn check_fit(
    fields: &HeadFields,
    draft_vocab: usize,
    target: &ModelConfig,
) -> Result<(), Fault> {
    let layer = &fields.layer;
    check_widths(&[("hidden size", layer.hidden), ("intermediate size", layer.intermediate)])?;
    check_heads(layer.heads, layer.kv_heads, layer.head_dim)?;
    check_eps(layer.rms_eps)?;
    let same = [
        ("vocabulary", fields.vocab, target.vocab),
        ("hidden size", fields.target_hidden, target.hidden),
    ];
    for (what, said, is) in same {
        if let Some(said) = said.filter(|it| *it != is) {
            let reason = format_args!("made for a target with a {what} of {said}, this has {is}");
            return Err(Fault::whole(reason));
        }
    }
    if layer.hidden != target.hidden {
        let reason = format_args!(
            "{}, and the target's is {}: a head of another width is not supported",
            layer.hidden, target.hidden
        );
        return Err(Fault::new("hidden size", reason));
    }
    if draft_vocab == 0 || target.vocab < draft_vocab {
        let reason = format_args!("{draft_vocab} of {} entries", target.vocab);
        return Err(Fault::new("draft vocabulary", reason));
    }
    Ok(())
}

fn check_borrowing(draft_vocab: usize, target: &ModelConfig) -> Result<(), Fault> {
    if draft_vocab == target.vocab {
        return Ok(());
    }
    let reason = format_args!(
        "missing, and the target's has {} rows instead of {draft_vocab}",
        target.vocab
    );
    Err(Fault::new(format_args!("tensor {LM_HEAD:?}"), reason))
}

/// Heads are trained with the target's embedding, frozen, and some ship a copy of it.
fn drop_embedding(
    checkpoint: &mut Checkpoint,
    target: &ModelConfig,
    notes: &mut Vec<String>,
) -> Result<(), Fault> {
    let Some(entry) = checkpoint.tensors().get(EMBEDDING) else { return Ok(()) };
    let (dims, wanted) = (&entry.dims, [target.vocab, target.hidden]);
    if *dims != wanted {
        let reason = format_args!("{dims:?} is no copy of the target's {wanted:?}");
        return Err(Fault::new(format_args!("tensor {EMBEDDING:?}"), reason));
    }
    checkpoint.drop(EMBEDDING);
    let note = "the head's embed_tokens.weight is not read: the target's embedding stands for it";
    notes.push(note.to_owned());
    Ok(())
}

/// The layers of the target whose input is captured, `fc` agreeing with their number.
fn captured(
    fields: &HeadFields,
    checkpoint: &Checkpoint,
    target: &ModelConfig,
    given: Option<Vec<usize>>,
    notes: &mut Vec<String>,
) -> Result<Vec<usize>, Fault> {
    let shape = checkpoint.tensors().get("fc.weight").and_then(|it| it.shape());
    let (_, inputs) = shape.ok_or_else(|| Fault::new("tensor \"fc.weight\"", "missing"))?;
    if inputs == 0 || !inputs.is_multiple_of(target.hidden) {
        let reason =
            format_args!("{inputs} inputs are not whole hidden states of {}", target.hidden);
        return Err(Fault::new("tensor \"fc.weight\"", reason));
    }
    let count = inputs / target.hidden;
    let (layers, said) = match (given, &fields.ids) {
        (Some(given), _) => (given, "as the operator says".to_owned()),
        (None, Some(ids)) => (ids.inputs.clone(), format!("config.json counts {}", ids.convention)),
        (None, None) => {
            let usual = vec![2, target.layers / 2, target.layers.saturating_sub(3)];
            let said = "WARNING: config.json names none and these are only the usual ones; when \
                        few drafts are accepted, name the right ones";
            (usual, said.to_owned())
        }
    };
    let fault = |it: String| Err(Fault::new(format_args!("captured layers {layers:?}"), it));
    if layers.len() != count || fields.captured_count.is_some_and(|it| it != count) {
        return fault(format!("fc.weight takes {count} hidden states"));
    }
    let mut sorted = layers.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() != count {
        return fault("a layer comes twice: name the right ones".to_owned());
    }
    // The residual that leaves the last layer counts as the input of one more.
    if let Some(beyond) = sorted.iter().find(|it| target.layers < **it) {
        return fault(format!("{beyond} is no layer of a target with {}", target.layers));
    }
    notes.push(format!("captured: the inputs of layers {layers:?}, counted from 0 ({said})"));
    Ok(layers)
}

/// Variants that a tensor's name gives away, so that the error says more than that it is left
/// over.
fn refuse_variants(checkpoint: &Checkpoint) -> Result<(), Fault> {
    for name in checkpoint.tensors().keys() {
        let variant = if name == "fc.bias" {
            "a bias on fc"
        } else if name.starts_with("input_norm.") {
            "a norm before fc (norm_before_fc)"
        } else if name.starts_with("fc_norm.") {
            "a norm on each captured state (fc_norm)"
        } else if name.starts_with("layers.") {
            "a second layer"
        } else if name.ends_with("_proj.bias") {
            "a bias on a projection"
        } else if name.ends_with("q_norm.weight") || name.ends_with("k_norm.weight") {
            "a norm on queries and keys"
        } else {
            continue;
        };
        let place = format_args!("tensor {name:?}");
        return Err(Fault::new(place, format_args!("{variant} is not supported in a head")));
    }
    Ok(())
}

/// The tensors that every head has; `inputs` of them go into `fc`.
fn expected(fields: &HeadFields, inputs: usize) -> BTreeMap<String, Shape> {
    let layer = &fields.layer;
    let (hidden, intermediate) = (layer.hidden, layer.intermediate);
    let queries = layer.heads * layer.head_dim;
    let keys = layer.kv_heads * layer.head_dim;
    let shapes = [
        ("fc.weight", (hidden, inputs)),
        ("midlayer.input_layernorm.weight", (1, hidden)),
        ("midlayer.hidden_norm.weight", (1, hidden)),
        ("midlayer.self_attn.q_proj.weight", (queries, 2 * hidden)),
        ("midlayer.self_attn.k_proj.weight", (keys, 2 * hidden)),
        ("midlayer.self_attn.v_proj.weight", (keys, 2 * hidden)),
        ("midlayer.self_attn.o_proj.weight", (hidden, queries)),
        ("midlayer.post_attention_layernorm.weight", (1, hidden)),
        ("midlayer.mlp.gate_proj.weight", (intermediate, hidden)),
        ("midlayer.mlp.up_proj.weight", (intermediate, hidden)),
        ("midlayer.mlp.down_proj.weight", (hidden, intermediate)),
        ("norm.weight", (1, hidden)),
    ];
    shapes.into_iter().map(|(name, shape)| (name.to_owned(), shape)).collect()
}

fn read(
    checkpoint: &mut Checkpoint,
    dir: &Path,
    name: &str,
    (rows, cols): Shape,
) -> Result<Tensor, LoadError> {
    let dtype = checkpoint.tensors()[name].dtype();
    let dtype = dtype.map_err(|it| it.within(format_args!("tensor {name:?}")).at(dir))?;
    Ok(Tensor { dtype, rows, cols, bytes: checkpoint.read(name)? })
}

#[cfg(test)]
mod tests;
