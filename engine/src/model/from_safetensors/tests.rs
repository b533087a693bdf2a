use std::fs;

use safetensors::tensor::Dtype as Stored;
use serde_json::{Value, json};
use tempfile::tempdir;

use super::*;
use crate::model::checkpoint::tests::{Written, file};

fn config(family: &str, tied: bool) -> Value {
    json!({
        "model_type": family, "vocab_size": 6, "hidden_size": 8, "intermediate_size": 12,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": tied
    })
}

fn tensors(family: &str, tied: bool) -> Vec<Written> {
    let Value::Object(object) = config(family, tied) else { panic!("an object") };
    let config = model_config(Fields::new(object), "it", &mut Vec::new()).unwrap();
    let add = |(name, (rows, cols)): (String, _)| {
        let dims = if rows == 1 { vec![cols] } else { vec![rows, cols] };
        let name = if name == LM_HEAD { name } else { format!("model.{name}") };
        Written::zeros(&name, Stored::BF16, &dims)
    };
    expected(&config).into_iter().map(add).collect()
}

fn load(config: &Value, tensors: &[Written]) -> Result<Model, String> {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    fs::write(dir.path().join("model.safetensors"), file(tensors)).unwrap();
    model(dir.path(), "it", &mut Vec::new()).map_err(|it| it.to_string())
}

#[test]
fn each_tensor_is_needed() {
    for family in ["llama", "mistral", "qwen2", "qwen3"] {
        for tied in [true, false] {
            let whole = tensors(family, tied);
            let model = load(&config(family, tied), &whole).unwrap();
            assert_eq!(model.tensors.len(), whole.len());
            for missing in &whole {
                let rest = whole.iter().filter(|it| it.name != missing.name);
                let rest: Vec<_> = rest.cloned().collect();
                let error = load(&config(family, tied), &rest).expect_err(&missing.name);
                let short = missing.name.trim_start_matches("model.");
                assert!(error.contains(&format!("{short:?} is missing")), "{error}");
            }
        }
    }
}

#[test]
fn a_copy_of_the_embedding_is_not_kept() {
    let mut whole = tensors("llama", false);
    let model = load(&config("llama", true), &whole).unwrap();
    assert!(!model.tensors.contains_key(LM_HEAD));
    let lm_head = whole.iter_mut().find(|it| it.name == LM_HEAD).unwrap();
    lm_head.bytes[7] = 1;
    let error = load(&config("llama", true), &whole).unwrap_err();
    assert!(error.contains("differs from"), "{error}");
}

#[test]
fn stored_rotary_tables_are_not_left_over() {
    let mut whole = tensors("llama", true);
    let name = "model.layers.0.self_attn.rotary_emb.inv_freq";
    whole.push(Written::zeros(name, Stored::F32, &[2]));
    assert!(load(&config("llama", true), &whole).is_ok());
    whole.push(Written::zeros("model.layers.0.extra", Stored::F32, &[2]));
    assert!(load(&config("llama", true), &whole).unwrap_err().contains("\"layers.0.extra\""));
}
