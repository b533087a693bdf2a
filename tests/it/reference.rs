//! Each architecture against the logits that the reference implementation gives for a tiny random
//! model (fixtures/make_models.py).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::backend::Backend;
use engine::backend::cpu::{CpuBackend, CpuOptions};
use engine::batch::ids::{PageId, SeqId, TokenId};
use engine::batch::plan::{Entry, StepChoices, StepPlan};
use engine::batch::sampling::Sampling;
use engine::inspect::inspect;
use engine::model::{Loaded, Model, load};
use kernels::cpu::Activations;
use serde_json::{Value, json};

const VOCAB: usize = 320;
const PAGES: u32 = 4;
/// Float32 sums in another order.
const TOLERANCE: f32 = 2e-4;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models").join(name)
}

fn reference(name: &str) -> Value {
    let text = fs::read_to_string(folder(name).join("reference.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn backend(model: &Model) -> CpuBackend {
    let options = CpuOptions {
        cores: vec![0],
        activations: Activations::F32,
        pages: PAGES,
        rows_max: 64,
        lanes: 1,
        held_max: 0,
    };
    CpuBackend::new(model, None, &options).unwrap()
}

/// The choice after `ids[start..]`, what comes before having been read, and every token's
/// log-probability.
fn choice(backend: &mut CpuBackend, ids: &[u32], start: usize) -> (u32, Vec<f32>) {
    let logprobs = Some(u32::try_from(VOCAB).unwrap());
    let sampling = Sampling { logprobs, ..Sampling::greedy() };
    let at = |it: usize| u32::try_from(it).unwrap();
    let entry = Entry {
        seq: SeqId(0),
        lane: 0,
        start: at(start),
        fed: at(ids.len() - start),
        chained: false,
        given: 0,
        held: 0,
        chooses: true,
        masked: false,
        scored: 0,
        outputs_start: at(ids.len()),
        sampling: Arc::new(sampling),
        pages: 0..PAGES as usize,
    };
    let plan = StepPlan {
        rows: ids[start..].iter().copied().map(TokenId).collect(),
        pages: (0..PAGES).map(PageId).collect(),
        entries: vec![entry],
        ..StepPlan::default()
    };
    let mut choices = StepChoices::default();
    backend.submit(&plan).unwrap();
    backend.collect(&mut choices).unwrap();
    let mut all = vec![f32::NAN; VOCAB];
    for (token, logprob) in &choices.logprobs[0].top {
        all[token.0 as usize] = *logprob;
    }
    (choices.tokens[0].0, all)
}

fn numbers(value: &Value) -> Vec<u32> {
    let number = |it: &Value| u32::try_from(it.as_u64().unwrap()).unwrap();
    value.as_array().unwrap().iter().map(number).collect()
}

fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f64::MIN, f64::max);
    let sum: f64 = logits.iter().map(|it| (it - max).exp()).sum();
    logits.iter().map(|it| it - max - sum.ln()).collect()
}

/// Reads the model token by token, then at once, and compares with the reference.
fn check(name: &str) {
    let Loaded { model, tokenizer, template, stop_tokens, .. } = load(&folder(name)).unwrap();
    let reference = reference(name);
    let ids = numbers(&reference["ids"]);
    let wanted = numbers(&reference["choices"]);
    let mut backend = backend(&model);
    let compare = |at: usize, choice: u32, logprobs: &[f32]| {
        assert_eq!(choice, wanted[at], "{name} at {at}");
        let Some(logits) = reference["logits"][at.to_string()].as_array() else { return };
        let logits: Vec<_> = logits.iter().map(|it| it.as_f64().unwrap()).collect();
        for (token, (ours, theirs)) in logprobs.iter().zip(log_softmax(&logits)).enumerate() {
            let distance = (f64::from(*ours) - theirs).abs();
            assert!(distance < f64::from(TOLERANCE), "{name} at {at}, token {token}: {distance}");
        }
    };
    for at in 0..ids.len() {
        let (choice, logprobs) = choice(&mut backend, &ids[..=at], at);
        compare(at, choice, &logprobs);
    }
    let (choice, logprobs) = choice(&mut backend, &ids, 0);
    compare(ids.len() - 1, choice, &logprobs);
    assert_eq!(stop_tokens, [TokenId(1)]);
    assert_eq!(tokenizer.vocab(), VOCAB);
    assert!(template.is_some());
}

#[test]
fn llama_untied_and_sharded() {
    check("llama");
}

#[test]
fn llama_with_scaled_rotary() {
    check("llama3-rope");
}

#[test]
fn mistral() {
    check("mistral");
}

#[test]
fn qwen2_with_biases() {
    check("qwen2");
}

#[test]
fn qwen3_with_norms_on_queries_and_keys() {
    check("qwen3");
}

#[test]
fn inspect_says_what_was_understood() {
    let check = |said: String, parts: &[&str]| {
        for part in parts {
            assert!(said.contains(part), "{part:?} is missing in\n{said}");
        }
    };
    let model = |name: &str| inspect(&folder(name), None).unwrap();
    check(model("qwen3"), &["tied embedding, query and key norms", "vocabulary        320"]);
    check(model("qwen2"), &["query, key and value biases", "4 of 16, keys and values 2"]);
    check(model("llama"), &["own lm_head", "ends of text      1 \"<|im_end|>\"", "bf16"]);
    check(model("llama3-rope"), &["theta 500000, scaled"]);
    let target = deploy::fetch::default_model(&mut |_| ()).unwrap();
    let head = inspect(&deploy::head::shipped().unwrap(), Some(&target)).unwrap();
    check(head, &["inputs of [2, 15, 27]", "its own", "residual"]);
    let error = inspect(Path::new("no-such-owner/no-such-model"), None).unwrap_err();
    assert!(error.contains("hf download no-such-owner/no-such-model"), "{error}");
}

/// The reference tells arithmetics apart: with another one, some choice is another.
#[test]
fn a_wrong_constant_is_noticed() {
    let wrong = |name: &str, field: &str, value: Value| {
        let dir = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(folder(name)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
        }
        let path = dir.path().join("config.json");
        let text = fs::read_to_string(&path).unwrap();
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config[field] = value;
        fs::write(&path, config.to_string()).unwrap();
        let model = load(dir.path()).unwrap().model;
        let right = load(&folder(name)).unwrap().model;
        let ids = numbers(&reference(name)["ids"]);
        let last = |model: &Model| {
            let mut backend = backend(model);
            choice(&mut backend, &ids, 0).1
        };
        let pairs = last(&model).into_iter().zip(last(&right)).collect::<Vec<_>>();
        pairs.iter().any(|(one, other)| 10.0 * TOLERANCE < (one - other).abs())
    };
    let rope = json!({ "rope_type": "default", "rope_theta": 500_000.0 });
    assert!(wrong("llama3-rope", "rope_parameters", rope), "the scaling matters");
    let theta = json!({ "rope_type": "default", "rope_theta": 20_000.0 });
    assert!(wrong("qwen3", "rope_parameters", theta), "the base matters");
    assert!(wrong("qwen2", "rms_norm_eps", json!(1e-2)), "the epsilon matters");
}
