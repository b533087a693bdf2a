use serde_json::{Value, json};

use super::*;

fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256,
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "hidden_act": "silu",
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"
        },
        "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": false,
        "pretraining_tp": 1, "use_cache": true, "torch_dtype": "bfloat16",
        "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009],
        "initializer_range": 0.02, "attention_dropout": 0.0, "transformers_version": "4.45.0"
    })
}

fn with(changes: Value) -> Value {
    let mut config = llama();
    for (name, value) in changes.as_object().unwrap() {
        config[name] = value.clone();
    }
    config
}

fn read(config: Value) -> Result<ModelConfig, String> {
    let Value::Object(object) = config else { panic!("an object") };
    let config = model_config(Fields::new(object), "it", &mut Vec::new());
    config.map_err(|it| it.at("config.json".as_ref()).to_string())
}

fn fails(changes: Value, part: &str) {
    let error = read(with(changes)).expect_err("it is wrong");
    assert!(error.contains(part), "{error:?} does not say {part:?}");
}

#[test]
fn families_are_told_apart() {
    let config = read(llama()).unwrap();
    assert_eq!((config.vocab, config.layers, config.context_max), (128_256, 16, 131_072));
    assert_eq!((config.heads, config.kv_heads, config.head_dim), (32, 8, 64));
    assert!(config.tied && !config.qkv_bias && !config.qk_norm);
    assert_eq!((config.rope.factors[0], config.rope.factors[31]), (1.0, 32.0));

    let qwen2 = json!({
        "model_type": "qwen2", "rope_scaling": null, "sliding_window": 32768,
        "use_sliding_window": false, "max_window_layers": 28,
        "layer_types": ["full_attention", "full_attention"]
    });
    let config = read(with(qwen2)).unwrap();
    assert!(config.qkv_bias && config.rope.factors.is_empty());
    assert!(read(with(json!({ "model_type": "qwen3" }))).unwrap().qk_norm);
    let mistral = json!({ "model_type": "mistral", "sliding_window": 131072 });
    assert!(read(with(mistral)).is_ok());
    let mistral = json!({ "model_type": "mistral", "sliding_window": null });
    assert!(read(with(mistral)).is_ok());
    // What does not say has a window of 4096, within which a short context is whole.
    fails(json!({ "model_type": "mistral" }), "4096 is within the context of 131072");
    let short = json!({ "model_type": "mistral", "max_position_embeddings": 4096 });
    assert!(read(with(short)).is_ok());
}

#[test]
fn newer_writers_nest_the_rotary_fields() {
    let mut nested = llama();
    let mut parameters = nested["rope_scaling"].take();
    nested["rope_theta"] = Value::Null;
    parameters["rope_theta"] = json!(500_000.0);
    nested["rope_parameters"] = parameters;
    assert_eq!(read(nested.clone()).unwrap().rope, read(llama()).unwrap().rope);
    // Both places, for readers old and new, as long as they say the same.
    nested["rope_scaling"] = llama()["rope_scaling"].take();
    assert_eq!(read(nested.clone()).unwrap().rope, read(llama()).unwrap().rope);
    nested["rope_parameters"] = json!({ "rope_theta": 500_000.0, "rope_type": "default" });
    assert!(read(nested).unwrap_err().contains("rope_parameters: differs"));
}

#[test]
fn the_newer_name_of_the_rotary_kind_counts() {
    let scaling = |kinds: Value| {
        let rope = read(with(json!({ "rope_scaling": kinds }))).unwrap().rope;
        rope.factors.first().copied()
    };
    assert_eq!(scaling(json!({ "type": "linear", "factor": 2.0 })), Some(2.0));
    let both = json!({ "type": "default", "rope_type": "linear", "factor": 2.0 });
    assert_eq!(scaling(both), Some(2.0));
    assert_eq!(scaling(json!({ "type": "linear", "rope_type": "default" })), None);
}

#[test]
fn what_may_change_the_arithmetic_is_refused() {
    fails(json!({ "model_type": "gemma3" }), "\"gemma3\"");
    fails(json!({ "logit_scale": 0.5 }), "field \"logit_scale\"");
    fails(json!({ "attention_bias": true }), "attention_bias");
    fails(json!({ "mlp_bias": true }), "mlp_bias");
    fails(json!({ "hidden_act": "gelu" }), "\"gelu\"");
    fails(json!({ "partial_rotary_factor": 0.5 }), "whole heads");
    fails(json!({ "quantization_config": { "bits": 4 } }), "GGUF");
    fails(json!({ "rope_scaling": { "type": "yarn", "factor": 2.0 } }), "\"yarn\"");
    fails(json!({ "rope_scaling": { "type": "linear", "factor": 2.0, "x": 1 } }), "\"x\"");
    fails(json!({ "model_type": "mistral", "sliding_window": 4096 }), "sliding_window");
    fails(json!({ "model_type": "qwen2", "layer_types": ["sliding_attention"] }), "layer_types");
    fails(json!({ "hidden_size": "2048" }), "\"2048\" is not a count");
    fails(json!({ "rms_norm_eps": null }), "\"rms_norm_eps\": missing");
    assert!(read(with(json!({ "logit_scale": null }))).is_ok(), "null is absent");
}
