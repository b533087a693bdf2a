use std::io::Cursor;

use kernels::quant::Dtype;

use super::*;
use crate::model::gguf::Value;
use crate::model::gguf::tests::{Writer, Written};

const HIDDEN: usize = 8;
const INTERMEDIATE: usize = 12;
const VOCAB: usize = 10;

/// A model of two layers, two heads of four and one key-value head.
pub(crate) fn tiny(arch: &str) -> Writer {
    let mut writer = Writer::default();
    writer.text("general.architecture", arch);
    for (suffix, size) in [
        ("block_count", 2),
        ("context_length", 64),
        ("embedding_length", HIDDEN as u64),
        ("feed_forward_length", INTERMEDIATE as u64),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
    ] {
        writer.size(&format!("{arch}.{suffix}"), size);
    }
    let eps = format!("{arch}.attention.layer_norm_rms_epsilon");
    writer.set(&eps, Value::Float(1e-5));
    let mut add = |name: &str, dims: &[usize]| {
        let len = dims.iter().product::<usize>();
        let seed = name.bytes().fold(7_u16, |it, byte| it.wrapping_mul(31) ^ u16::from(byte));
        let values: Vec<_> = (0_u16..).take(len).map(|it| f32::from(seed ^ it)).collect();
        writer.f32_tensor(name, dims, &values);
    };
    add("token_embd.weight", &[HIDDEN, VOCAB]);
    add("output_norm.weight", &[HIDDEN]);
    for layer in 0..2 {
        let mut add = |name: &str, dims: &[usize]| add(&format!("blk.{layer}.{name}"), dims);
        add("attn_norm.weight", &[HIDDEN]);
        add("ffn_norm.weight", &[HIDDEN]);
        add("attn_q.weight", &[HIDDEN, 8]);
        add("attn_k.weight", &[HIDDEN, 4]);
        add("attn_v.weight", &[HIDDEN, 4]);
        add("attn_output.weight", &[8, HIDDEN]);
        add("ffn_gate.weight", &[HIDDEN, INTERMEDIATE]);
        add("ffn_up.weight", &[HIDDEN, INTERMEDIATE]);
        add("ffn_down.weight", &[INTERMEDIATE, HIDDEN]);
        if arch == "qwen2" {
            add("attn_q.bias", &[8]);
            add("attn_k.bias", &[4]);
            add("attn_v.bias", &[4]);
        }
        if arch == "qwen3" {
            add("attn_q_norm.weight", &[4]);
            add("attn_k_norm.weight", &[4]);
        }
    }
    writer
}

fn read(writer: &Writer) -> Result<Model, String> {
    let file = writer.file();
    let len = file.len() as u64;
    let read = |it: &mut _| model(it, "tiny");
    let outcome = Gguf::open(Cursor::new(file), len).and_then(|mut it| read(&mut it));
    outcome.map_err(|it| it.at("x.gguf".as_ref()).to_string())
}

fn fails(writer: &Writer, part: &str) {
    let error = read(writer).expect_err("the model is wrong");
    assert!(error.contains(part), "{error:?} does not say {part:?}");
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.bytes.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect()
}

#[test]
fn families_have_their_tensors() {
    for arch in ["llama", "qwen2", "qwen3"] {
        let model = read(&tiny(arch)).unwrap();
        let config = &model.config;
        assert_eq!((config.name.as_str(), config.vocab, config.layers), ("tiny", 10, 2));
        assert_eq!((config.heads, config.kv_heads, config.head_dim), (2, 1, 4));
        assert!(config.tied);
        assert_eq!(config.qkv_bias, arch == "qwen2");
        assert_eq!(config.qk_norm, arch == "qwen3");
        assert_eq!(config.rope, Rope { theta: 10_000.0, factors: vec![] });
        assert_eq!(model.tensors.len(), expected(config).len());
    }
}

/// Requests ask for it, logs and terminals show it.
#[test]
fn a_name_is_one_line() {
    let name = |name: &str| {
        let mut writer = tiny("llama");
        writer.text("general.name", name);
        read(&writer).unwrap().config.name
    };
    assert_eq!(name("My Model"), "My Model");
    assert_eq!(name("two\nlines \x1b[2J"), "two lines  [2J");
    assert_eq!((name(""), name(" ")), ("tiny".to_owned(), "tiny".to_owned()));
}

/// Llama files hold the query and key rows of a head in pairs; other families as they are.
#[test]
fn query_and_key_rows_are_in_rotate_half_order() {
    // Each row holds its number, as the original checkpoint counts it.
    let stored = |heads: usize| -> Vec<f32> {
        let rows = (0..heads).flat_map(|head| [0, 2, 1, 3].map(|it| head * 4 + it));
        rows.flat_map(|row| [row as f32; HIDDEN]).collect()
    };
    let ordered =
        |rows: usize| -> Vec<f32> { (0..rows).flat_map(|row| [row as f32; HIDDEN]).collect() };
    for (arch, as_stored) in [("llama", false), ("qwen3", true)] {
        let mut writer = tiny(arch);
        writer.tensors.retain(|it| it.name != "blk.1.attn_q.weight");
        writer.tensors.retain(|it| it.name != "blk.1.attn_k.weight");
        writer.f32_tensor("blk.1.attn_q.weight", &[HIDDEN, 8], &stored(2));
        writer.f32_tensor("blk.1.attn_k.weight", &[HIDDEN, 4], &stored(1));
        let model = read(&writer).unwrap();
        for (name, rows) in [("q", 8), ("k", 4)] {
            let rows = if as_stored { stored(rows / 4) } else { ordered(rows) };
            let tensor = &model.tensors[&format!("layers.1.self_attn.{name}_proj.weight")];
            assert_eq!(floats(tensor), rows, "{arch} {name}");
        }
    }
}

#[test]
fn quantised_rows_move_whole() {
    let rows: Vec<u8> = [0, 2, 1, 3].iter().flat_map(|row| [*row; 40]).collect();
    let ordered: Vec<u8> = (0..4).flat_map(|row| [row; 40]).collect();
    assert_eq!(rotate_half_order(&rows, 4, 4), ordered);
}

#[test]
fn each_tensor_is_needed() {
    for arch in ["llama", "qwen2", "qwen3"] {
        for at in 0..tiny(arch).tensors.len() {
            let mut writer = tiny(arch);
            let name = writer.tensors.remove(at).name;
            let named = hugging_face_name(&name).unwrap();
            // Without the first bias no bias is expected, and the others are left over.
            let bias = name == "blk.0.attn_q.bias";
            let wanted = if bias { "blk.0.attn_k.bias" } else { &*named };
            let error = read(&writer).expect_err(&name);
            let known = [wanted, "token_embd", "layers.0.self_attn.k_proj.bias"];
            assert!(known.iter().any(|it| error.contains(it)), "{error}");
        }
    }
}

#[test]
fn left_over_and_misshapen_tensors_are_named() {
    let mut writer = tiny("llama");
    writer.f32_tensor("blk.0.attn_sinks.weight", &[2], &[0.0; 2]);
    fails(&writer, "\"blk.0.attn_sinks.weight\" has no place");

    // Names of another format are no second way to say it.
    let mut writer = tiny("llama");
    writer.f32_tensor("norm.weight", &[HIDDEN], &[0.0; 8]);
    fails(&writer, "\"norm.weight\": has the name of another format");

    let mut writer = tiny("llama");
    writer.f32_tensor("blk.2.attn_norm.weight", &[HIDDEN], &[0.0; 8]);
    fails(&writer, "\"layers.2.input_layernorm.weight\" has no place");

    let mut writer = tiny("llama");
    let norm = writer.tensors.iter_mut().find(|it| it.name == "output_norm.weight").unwrap();
    norm.dims = vec![4];
    fails(&writer, "\"norm.weight\" has the shape (1, 4) instead of (1, 8)");
    let norm = writer.tensors.iter_mut().find(|it| it.name == "output_norm.weight").unwrap();
    norm.dims = vec![2, 2, 2];
    fails(&writer, "\"norm.weight\" is neither a matrix nor a vector");
}

#[test]
fn an_output_matrix_unties_the_embedding() {
    let mut writer = tiny("llama");
    writer.f32_tensor("output.weight", &[HIDDEN, VOCAB], &[1.0; 80]);
    let model = read(&writer).unwrap();
    assert!(!model.config.tied);
    assert_eq!(floats(&model.tensors["lm_head.weight"]), [1.0; 80]);
}

#[test]
fn rope_factors_come_from_their_tensor() {
    let mut writer = tiny("llama");
    writer.f32_tensor("rope_freqs.weight", &[2], &[1.0, 8.0]);
    assert_eq!(read(&writer).unwrap().config.rope.factors, [1.0, 8.0]);
    writer.tensors.pop();
    writer.f32_tensor("rope_freqs.weight", &[2], &[1.0, 0.0]);
    fails(&writer, "no divisor");
    writer.tensors.pop();
    writer.f32_tensor("rope_freqs.weight", &[3], &[1.0; 3]);
    fails(&writer, "instead of 2 of F32");
}

#[test]
fn values_that_change_the_arithmetic_are_refused() {
    let with = |key: &str, value: Value| {
        let mut writer = tiny("llama");
        writer.set(key, value);
        writer
    };
    fails(&with("llama.attention.scale", Value::Float(0.1)), "\"llama.attention.scale\"");
    fails(&with("llama.rope.scaling.type", Value::Text("yarn".into())), "\"yarn\"");
    fails(&with("llama.rope.dimension_count", Value::Unsigned(2)), "only 4 is supported");
    fails(&with("llama.expert_count", Value::Unsigned(8)), "only 0 is supported");
    fails(&with("llama.attention.sliding_window", Value::Unsigned(32)), "within the context");
    fails(&with("llama.vocab_size", Value::Unsigned(11)), "only 10 is supported");
    fails(&with("general.architecture", Value::Text("gemma".into())), "\"gemma\"");
    fails(&with("general.type", Value::Text("adapter".into())), "\"adapter\"");
    fails(&with("split.count", Value::Unsigned(2)), "split file");
    fails(&with("llama.attention.head_count", Value::Unsigned(0)), "whole heads");
    fails(&with("llama.attention.head_count_kv", Value::Unsigned(0)), "count is zero");
    fails(&with("llama.block_count", Value::Unsigned(1 << 40)), "too large");
    fails(&with("llama.attention.layer_norm_rms_epsilon", Value::Float(0.0)), "epsilon");

    let linear = with("llama.rope.scaling.factor", Value::Float(4.0));
    assert_eq!(read(&linear).unwrap().config.rope.factors, [4.0, 4.0]);
    let wide = with("llama.attention.sliding_window", Value::Unsigned(64));
    assert!(read(&wide).is_ok());
}

#[test]
fn a_quantised_vector_is_refused() {
    let mut writer = tiny("llama");
    writer.size("llama.embedding_length", 32);
    writer.size("llama.attention.key_length", 4);
    for tensor in &mut writer.tensors {
        let grown: Vec<_> = tensor.dims.iter().map(|it| if *it == 8 { 32 } else { *it }).collect();
        let name = tensor.name.as_str();
        tensor.dims = grown;
        if name.ends_with("attn_q.weight") {
            tensor.dims = vec![32, 8];
        } else if name.ends_with("attn_output.weight") {
            tensor.dims = vec![8, 32];
        }
        tensor.bytes = vec![0; 4 * tensor.dims.iter().product::<usize>()];
    }
    assert!(read(&writer).is_ok());
    let norm = writer.tensors.iter_mut().find(|it| it.name == "output_norm.weight").unwrap();
    *norm = Written { kind: 8, bytes: vec![0; 34], ..norm.clone() };
    fails(&writer, &format!("a vector stored as {:?}", Dtype::Q8_0));
}
