use std::fs;

use serde_json::json;
use tempfile::tempdir;

use super::*;

fn target() -> serde_json::Value {
    json!({
        "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 6, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": true
    })
}

#[test]
fn a_config_is_enough() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("config.json"), target().to_string()).unwrap();
    let loaded = load_dummy(dir.path()).unwrap();
    assert_eq!((loaded.model.config.layers, loaded.model.tensors.len()), (6, 0));
    let tokens = loaded.tokenizer.encode("a\u{e9} b\n", true);
    assert_eq!(tokens.len(), 6);
    assert_eq!(loaded.tokenizer.decode(&tokens, true), "a\u{e9} b\n");
    assert!(loaded.notes[0].contains("random"));
}

#[test]
fn a_head_needs_no_weights_either() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("config.json"), target().to_string()).unwrap();
    let model = load_dummy(dir.path()).unwrap().model.config;
    let head = json!({
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "vocab_size": 512,
        "draft_vocab_size": 128, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0
    });
    fs::write(dir.path().join("config.json"), head.to_string()).unwrap();
    let found = load_dummy_head(dir.path(), &model, None).unwrap();
    assert_eq!(found.head.config.captured_layers, [2, 3, 3]);
    assert_eq!(found.head.target_ids.len(), 128);
    assert!(load_dummy_head(dir.path(), &model, Some(vec![1, 9])).is_err());
}
