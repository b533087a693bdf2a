//! What the `config.json` of a head says, in the layouts of those who train heads.

use crate::model::HeadConfig;
use crate::model::error::Fault;
use crate::model::fields::{Fields, missing};
use crate::model::hf_config::{Layer, full_attention, layer};

/// A head's own account of itself, before it meets a target.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HeadFields {
    pub(crate) layer: Layer,
    /// Entries of the target's vocabulary, when it says.
    pub(crate) vocab: Option<usize>,
    pub(crate) draft_vocab: Option<usize>,
    pub(crate) target_hidden: Option<usize>,
    pub(crate) captured_count: Option<usize>,
    pub(crate) ids: Option<Ids>,
    pub(crate) norm_before_residual: bool,
}

/// The captured layers as 0-based layers whose input is meant, and how they were written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ids {
    pub(crate) inputs: Vec<usize>,
    pub(crate) convention: &'static str,
}

/// Fields of the speculators layout beside those of the layer; none of them is used in a step.
const SPECULATORS_HARMLESS: &[&str] = &[
    "architectures",
    "auto_map",
    "base_model_ep_plan",
    "base_model_pp_plan",
    "base_model_tp_plan",
    "chunk_size_feed_forward",
    "dtype",
    "embed_requires_grad",
    "has_no_defaults_at_init",
    "id2label",
    "is_encoder_decoder",
    "label2id",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "return_dict",
    "speculators_config",
    "speculators_version",
    "tie_word_embeddings",
    "torch_dtype",
    "transformers_version",
];

impl HeadFields {
    /// Sizes and constants, with what the fields alone do not tell.
    pub(crate) fn config(self, draft_vocab: usize, captured_layers: Vec<usize>) -> HeadConfig {
        let layer = self.layer;
        HeadConfig {
            hidden: layer.hidden,
            intermediate: layer.intermediate,
            heads: layer.heads,
            kv_heads: layer.kv_heads,
            head_dim: layer.head_dim,
            draft_vocab,
            rms_eps: layer.rms_eps,
            rope: layer.rope,
            captured_layers,
            norm_before_residual: self.norm_before_residual,
        }
    }

    /// Reads either layout. What deserves a warning is added to `notes`.
    pub(crate) fn parse(mut fields: Fields, notes: &mut Vec<String>) -> Result<Self, Fault> {
        match fields.text("speculators_model_type")? {
            Some(kind) if kind == "eagle3" => Self::speculators(fields, notes),
            Some(kind) => {
                let reason = format_args!("{kind:?} is not supported: eagle3 is");
                Err(Fault::new("field \"speculators_model_type\"", reason))
            }
            None => Self::flat(fields, notes),
        }
    }

    /// The layer in an object of its own, the captured layers counted by their inputs.
    fn speculators(mut fields: Fields, notes: &mut Vec<String>) -> Result<Self, Fault> {
        const LAYER: &str = "transformer_layer_config";
        // The two possible answers are both in use, and a wrong guess halves the acceptance.
        let norm_before_residual = fields.flag("norm_before_residual")?;
        let norm_before_residual =
            norm_before_residual.ok_or_else(|| missing("norm_before_residual"))?;
        let ids = layer_ids(&mut fields)?;
        let ids = ids.map(|inputs| Ids { inputs, convention: "inputs, as speculators writes" });
        let mut inner = fields.object(LAYER)?.ok_or_else(|| missing(LAYER))?;
        let read = one_layer(&mut inner, notes).and_then(|it| inner.finish().map(|()| it));
        let (layer, vocab) = read.map_err(|it| it.within(LAYER))?;
        let head = Self {
            layer,
            vocab,
            draft_vocab: fields.size("draft_vocab_size")?,
            target_hidden: fields.size("target_hidden_size")?,
            captured_count: None,
            ids,
            norm_before_residual,
        };
        other_arithmetic(&mut fields)?;
        fields.ignore(SPECULATORS_HARMLESS);
        fields.finish()?;
        Ok(head)
    }

    /// Everything in one object: the original checkpoints, SpecForge, SGLang and NVIDIA.
    fn flat(mut fields: Fields, notes: &mut Vec<String>) -> Result<Self, Fault> {
        const EAGLE: &str = "eagle_config";
        let mut inputs = layer_ids(&mut fields)?;
        let mut norm_before_residual = fields.flag("norm_before_residual")?;
        if let Some(mut inner) = fields.object(EAGLE)? {
            let mut read = || {
                inputs = inputs.take().or(layer_ids(&mut inner)?);
                norm_before_residual = norm_before_residual.or(inner.flag("norm_before_residual")?);
                eagle_config(&mut inner)
            };
            read().and_then(|()| inner.finish()).map_err(|it| it.within(EAGLE))?;
        }
        let (layer, vocab) = one_layer(&mut fields, notes)?;
        let head = Self {
            layer,
            vocab,
            draft_vocab: fields.size("draft_vocab_size")?,
            target_hidden: fields.size("target_hidden_size")?,
            captured_count: fields.size("num_aux_hidden_states")?,
            ids: inputs.map(counted),
            norm_before_residual: norm_before_residual.unwrap_or(false),
        };
        other_arithmetic(&mut fields)?;
        fields.finish()?;
        Ok(head)
    }
}

/// An empty list says as little as none.
fn layer_ids(fields: &mut Fields) -> Result<Option<Vec<usize>>, Fault> {
    let ids = fields.sizes("eagle_aux_hidden_state_layer_ids")?;
    Ok(ids.filter(|it| !it.is_empty()))
}

/// Those who count outputs begin with layer 1, those who count inputs with layer 2 (SGLang tells
/// them apart in the same way).
fn counted(ids: Vec<usize>) -> Ids {
    if ids.first() == Some(&1) {
        let inputs = ids.iter().map(|it| it.saturating_add(1)).collect();
        return Ids { inputs, convention: "outputs, since the first is 1" };
    }
    Ids { inputs: ids, convention: "inputs, since the first is not 1" }
}

/// The layer and the vocabulary of the target.
fn one_layer(
    fields: &mut Fields,
    notes: &mut Vec<String>,
) -> Result<(Layer, Option<usize>), Fault> {
    if let Some(family) = fields.text("model_type")?.filter(|it| it != "llama") {
        let reason = format_args!("a head of type {family:?} is not supported: llama is");
        return Err(Fault::new("field \"model_type\"", reason));
    }
    if let Some(layers) = fields.size("num_hidden_layers")?.filter(|it| *it != 1) {
        let reason = format_args!("a head of {layers} layers is not supported: one layer is");
        return Err(Fault::new("field \"num_hidden_layers\"", reason));
    }
    let layer = layer(fields, notes)?;
    let vocab = fields.size("vocab_size")?;
    full_attention(fields, "llama", usize::MAX)?;
    // What it would say is said by the tensors: a head has its own lm_head or borrows one.
    fields.ignore(&["tie_word_embeddings"]);
    Ok((layer, vocab))
}

/// Variants of the arithmetic that this engine does not have.
fn other_arithmetic(fields: &mut Fields) -> Result<(), Fault> {
    for name in ["norm_before_fc", "fc_norm", "norm_output"] {
        fields.only(name, false)?;
    }
    Ok(())
}

fn eagle_config(fields: &mut Fields) -> Result<(), Fault> {
    fields.only("use_aux_hidden_state", true)?;
    fields.only("use_input_layernorm_in_first_layer", true)?;
    fields.only("use_last_layernorm", true)?;
    fields.only("use_mtp_layernorm", false)?;
    if let Some(steps) = fields.size("parallel_draft_step")?.filter(|it| *it != 1) {
        let reason = format_args!("{steps} drafts from one step are not supported");
        return Err(Fault::new("field \"parallel_draft_step\"", reason));
    }
    other_arithmetic(fields)?;
    fields.ignore(&["has_lm_head", "next_layer_regular"]);
    Ok(())
}
