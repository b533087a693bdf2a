use std::fs;

use safetensors::tensor::Dtype as Stored;
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use super::*;
use crate::model::Rope;
use crate::model::checkpoint::tests::{Written, file};

/// A target of 12 layers, hidden 8, vocabulary 6.
fn target() -> ModelConfig {
    ModelConfig {
        name: "target".to_owned(),
        vocab: 6,
        hidden: 8,
        intermediate: 12,
        layers: 12,
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        rms_eps: 1e-5,
        rope: Rope { theta: 10_000.0, factors: vec![] },
        context_max: 64,
        tied: true,
        qkv_bias: false,
        qk_norm: false,
    }
}

fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 8,
        "intermediate_size": 12, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
        "num_hidden_layers": 1, "vocab_size": 6, "draft_vocab_size": 4, "rms_norm_eps": 1e-5,
        "rope_theta": 20000.0, "max_position_embeddings": 64, "hidden_act": "silu",
        "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "eagle_config": {
            "use_aux_hidden_state": true, "eagle_aux_hidden_state_layer_ids": [2, 6, 9]
        }
    })
}

/// The same layer as speculators writes it.
fn speculators() -> Value {
    let mut layer = config();
    for name in ["architectures", "draft_vocab_size", "eagle_config"] {
        layer.as_object_mut().unwrap().remove(name);
    }
    json!({
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
        "speculators_version": "0.2.0", "speculators_config": { "algorithm": "eagle3" },
        "draft_vocab_size": 4, "norm_before_residual": true, "target_hidden_size": null,
        "eagle_aux_hidden_state_layer_ids": [1, 6, 9], "transformer_layer_config": layer
    })
}

/// Names of the original checkpoints. The draft vocabulary is tokens 0, 2, 3 and 5.
fn tensors() -> Vec<Written> {
    let mut tensors: Vec<_> = [
        ("fc.weight", &[8, 24][..]),
        ("midlayer.input_layernorm.weight", &[8]),
        ("midlayer.hidden_norm.weight", &[8]),
        ("midlayer.self_attn.q_proj.weight", &[8, 16]),
        ("midlayer.self_attn.k_proj.weight", &[4, 16]),
        ("midlayer.self_attn.v_proj.weight", &[4, 16]),
        ("midlayer.self_attn.o_proj.weight", &[8, 8]),
        ("midlayer.post_attention_layernorm.weight", &[8]),
        ("midlayer.mlp.gate_proj.weight", &[12, 8]),
        ("midlayer.mlp.up_proj.weight", &[12, 8]),
        ("midlayer.mlp.down_proj.weight", &[8, 12]),
        ("norm.weight", &[8]),
        ("lm_head.weight", &[4, 8]),
    ]
    .iter()
    .map(|(name, dims)| Written::zeros(name, Stored::BF16, dims))
    .collect();
    tensors.push(offsets(&[0, 1, 1, 2]));
    let mut members = Written::zeros("t2d", Stored::BOOL, &[6]);
    members.bytes = vec![1, 0, 1, 1, 0, 1];
    tensors.push(members);
    tensors
}

fn offsets(values: &[i64]) -> Written {
    let bytes = values.iter().flat_map(|it| it.to_le_bytes()).collect();
    Written { bytes, ..Written::zeros("d2t", Stored::I64, &[values.len()]) }
}

fn changed(name: &str, with: impl Fn(&mut Written)) -> Vec<Written> {
    let mut tensors = tensors();
    with(tensors.iter_mut().find(|it| it.name == name).expect(name));
    tensors
}

fn folder(config: &Value, tensors: &[Written]) -> TempDir {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    fs::write(dir.path().join("model.safetensors"), file(tensors)).unwrap();
    dir
}

fn load(config: &Value, tensors: &[Written]) -> Result<LoadedHead, String> {
    let dir = folder(config, tensors);
    load_head(dir.path(), &target(), None).map_err(|it| it.to_string())
}

fn fails(config: &Value, tensors: &[Written], part: &str) {
    let error = load(config, tensors).expect_err(part);
    assert!(error.contains(part), "{error:?} does not say {part:?}");
    assert!(!error.contains('\n'), "{error:?} is not one line");
}

fn with(changes: Value) -> Value {
    let mut config = config();
    for (name, value) in changes.as_object().unwrap() {
        config[name] = value.clone();
    }
    config
}

#[test]
fn a_plain_head_is_read() {
    let LoadedHead { head, notes } = load(&config(), &tensors()).unwrap();
    let config = &head.config;
    assert_eq!((config.hidden, config.draft_vocab, config.head_dim), (8, 4, 4));
    assert_eq!((config.rope.theta, config.norm_before_residual), (20_000.0, false));
    assert_eq!(config.captured_layers, [2, 6, 9]);
    assert_eq!(head.target_ids, [0, 2, 3, 5]);
    assert_eq!(head.tensors.len(), 13);
    assert_eq!(head.tensors["fc.weight"].cols, 24);
    assert_eq!(notes.len(), 1, "{notes:?}");
}

/// Positions are the target's: nothing ends where the head's own config says that it does.
#[test]
fn a_heads_own_length_bounds_nothing() {
    let read = |length: u32| {
        let config = with(json!({ "max_position_embeddings": length }));
        format!("{:?}", load(&config, &tensors()).unwrap().head.config)
    };
    assert_eq!(read(1), read(1 << 20));
}

#[test]
fn each_tensor_is_needed() {
    // t2d only repeats what d2t says.
    for missing in tensors().iter().filter(|it| it.name != "t2d") {
        let rest: Vec<_> = tensors().into_iter().filter(|it| it.name != missing.name).collect();
        fails(&config(), &rest, &missing.name);
    }
    let rest: Vec<_> = tensors().into_iter().filter(|it| it.name != "t2d").collect();
    assert!(load(&config(), &rest).is_ok());
}

#[test]
fn each_shape_is_checked() {
    for tensor in tensors() {
        let grown = changed(&tensor.name, |it| {
            it.dims[0] += 1;
            it.bytes = vec![0; it.dims.iter().product::<usize>() * it.stored.bitsize() / 8];
        });
        fails(&config(), &grown, &tensor.name);
    }
    let integers = changed("norm.weight", |it| *it = Written::zeros(&it.name, Stored::I16, &[8]));
    fails(&config(), &integers, "\"norm.weight\": stored as I16");
}

/// The layouts in which heads are published.
#[test]
fn layouts_mean_the_same() {
    let plain = load(&config(), &tensors()).unwrap().head;
    let renamed = |to: &dyn Fn(&str) -> String| {
        let mut tensors = tensors();
        tensors.iter_mut().for_each(|it| it.name = to(&it.name));
        tensors
    };
    let layers = renamed(&|it| it.replace("midlayer.", "layers.0."));
    let prefixed = renamed(&|it| format!("model.{}", it.replace("midlayer.", "layers.0.")));
    let vllm = renamed(&|it| it.replace("d2t", "draft_id_to_target_id"));
    for tensors in [layers.clone(), prefixed, vllm] {
        let head = load(&config(), &tensors).unwrap().head;
        assert_eq!(
            (head.tensors, head.target_ids),
            (plain.tensors.clone(), plain.target_ids.clone())
        );
    }
    let head = load(&speculators(), &layers).unwrap().head;
    assert_eq!(head.tensors, plain.tensors);
    assert!(head.config.norm_before_residual);
    assert_eq!(head.config.captured_layers, [1, 6, 9], "always inputs");

    let mut both = tensors();
    both.push(Written::zeros("layers.0.hidden_norm.weight", Stored::BF16, &[8]));
    fails(&config(), &both, "\"midlayer.hidden_norm.weight\": comes twice");
}

#[test]
fn captured_layers_are_counted_as_their_writer_did() {
    let ids =
        |it: Value| with(json!({ "eagle_config": { "eagle_aux_hidden_state_layer_ids": it } }));
    let layers = |config: &Value| load(config, &tensors()).unwrap().head.config.captured_layers;
    assert_eq!(layers(&ids(json!([2, 6, 9]))), [2, 6, 9]);
    assert_eq!(layers(&ids(json!([1, 5, 8]))), [2, 6, 9], "outputs of 1, 5 and 8");
    assert_eq!(layers(&with(json!({ "eagle_aux_hidden_state_layer_ids": [3, 4, 5] }))), [3, 4, 5]);

    for silent in [ids(json!([])), ids(Value::Null), with(json!({ "eagle_config": null }))] {
        let LoadedHead { head, notes } = load(&silent, &tensors()).unwrap();
        assert_eq!(head.config.captured_layers, [2, 6, 9]);
        assert!(notes[0].contains("WARNING"), "{notes:?}");
    }
    fails(&ids(json!([2, 6])), &tensors(), "fc.weight takes 3 hidden states");
    fails(&ids(json!([2, 6, 6])), &tensors(), "a layer comes twice");
    assert_eq!(layers(&ids(json!([2, 6, 12]))), [2, 6, 12], "what leaves the last layer");
    fails(&ids(json!([2, 6, 13])), &tensors(), "13 is no layer");
    fails(&ids(json!([2, -6, 9])), &tensors(), "not a list of counts");
    fails(&with(json!({ "num_aux_hidden_states": 4 })), &tensors(), "takes 3 hidden states");

    let dir = folder(&config(), &tensors());
    let loaded = load_head(dir.path(), &target(), Some(vec![9, 1, 4])).unwrap();
    assert_eq!(loaded.head.config.captured_layers, [9, 1, 4], "as given, in that order");
    assert!(load_head(dir.path(), &target(), Some(vec![9, 1])).is_err());
}

#[test]
fn the_target_lends_its_lm_head_only_where_it_fits() {
    let rest = |names: &[&str]| -> Vec<_> {
        tensors().into_iter().filter(|it| !names.contains(&&*it.name)).collect()
    };
    fails(&config(), &rest(&["lm_head.weight"]), "\"lm_head.weight\": missing");
    let whole = with(json!({ "draft_vocab_size": null }));
    let LoadedHead { head, notes } =
        load(&whole, &rest(&["lm_head.weight", "d2t", "t2d"])).unwrap();
    assert!(!head.tensors.contains_key("lm_head.weight"));
    assert_eq!((head.config.draft_vocab, &*head.target_ids), (6, &[0, 1, 2, 3, 4, 5][..]));
    assert!(notes.iter().any(|it| it.contains("borrows")), "{notes:?}");
}

#[test]
fn the_draft_vocabulary_is_checked() {
    let set = |values: &[i64]| changed("d2t", |it| *it = offsets(values));
    fails(&config(), &set(&[0, 1, 1, 3]), "outside the vocabulary");
    fails(&config(), &set(&[-1, 1, 1, 2]), "outside the vocabulary");
    fails(&config(), &set(&[i64::MIN, 1, 1, i64::MAX]), "outside the vocabulary");
    fails(&config(), &set(&[0, 1, 0, 2]), "two entries to token 2");
    fails(&config(), &set(&[0, 1, 2, 2]), "\"t2d\": does not agree with d2t about token 3");
    fails(&with(json!({ "draft_vocab_size": 7 })), &tensors(), "7 of 6 entries");
    fails(&with(json!({ "vocab_size": 7 })), &tensors(), "with a vocabulary of 7");
}

#[test]
fn variants_that_are_not_supported_are_named() {
    let extra = |name: &str, dims: &[usize]| {
        let mut tensors = tensors();
        tensors.push(Written::zeros(name, Stored::BF16, dims));
        tensors
    };
    fails(&config(), &extra("fc.bias", &[8]), "a bias on fc");
    fails(&config(), &extra("input_norm.weight", &[24]), "norm_before_fc");
    fails(&config(), &extra("fc_norm.0.weight", &[8]), "fc_norm");
    fails(&config(), &extra("layers.1.hidden_norm.weight", &[8]), "a second layer");
    fails(&config(), &extra("midlayer.self_attn.q_proj.bias", &[8]), "a bias on a projection");
    fails(&config(), &extra("midlayer.self_attn.q_norm.weight", &[4]), "a norm on queries");
    fails(&config(), &extra("anything.weight", &[4]), "\"anything.weight\" has no place");

    fails(&with(json!({ "norm_before_fc": true })), &tensors(), "norm_before_fc");
    fails(&with(json!({ "fc_norm": true })), &tensors(), "fc_norm");
    fails(&with(json!({ "num_hidden_layers": 2 })), &tensors(), "a head of 2 layers");
    fails(&with(json!({ "model_type": "deepseek_v3" })), &tensors(), "\"deepseek_v3\"");
    fails(&with(json!({ "rope_scaling": { "rope_type": "yarn" } })), &tensors(), "\"yarn\"");
    fails(&with(json!({ "something": 1 })), &tensors(), "field \"something\"");
    let plain = with(json!({ "eagle_config": { "use_aux_hidden_state": false } }));
    fails(&plain, &tensors(), "use_aux_hidden_state");
    let mut silent = speculators();
    silent.as_object_mut().unwrap().remove("norm_before_residual");
    fails(&silent, &tensors(), "\"norm_before_residual\": missing");
}

/// Some ship a copy of the target's embedding; one of another width would need its own.
#[test]
fn the_embedding_is_the_targets() {
    let mut tensors = tensors();
    tensors.push(Written::zeros("embed_tokens.weight", Stored::F32, &[6, 8]));
    let LoadedHead { head, notes } = load(&config(), &tensors).unwrap();
    assert!(!head.tensors.contains_key("embed_tokens.weight"));
    assert!(notes.iter().any(|it| it.contains("embed_tokens.weight")), "{notes:?}");
    tensors.pop();
    tensors.push(Written::zeros("embed_tokens.weight", Stored::F32, &[6, 4]));
    fails(&config(), &tensors, "\"embed_tokens.weight\": [6, 4] is no copy");
    let dir = folder(&config(), &self::tensors());
    let wide = load_head(dir.path(), &ModelConfig { hidden: 24, ..target() }, None);
    assert!(wide.unwrap_err().to_string().contains("a head of another width"));
}

/// The head that is shipped, against the sizes of its target.
#[test]
fn the_shipped_head_is_read() {
    let dir =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/models/smollm2-135m-instruct-eagle3");
    let target = ModelConfig {
        vocab: 49_152,
        hidden: 576,
        intermediate: 1536,
        layers: 30,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        ..target()
    };
    let LoadedHead { head, notes } = load_head(&dir, &target, None).unwrap();
    assert_eq!(head.config.captured_layers, [2, 15, 27]);
    assert_eq!((head.config.draft_vocab, head.config.rope.theta), (8192, 100_000.0));
    assert!(head.target_ids.is_sorted());
    assert_eq!(notes.len(), 1, "{notes:?}");
}
