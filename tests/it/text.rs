//! Prompts and tokens against what the reference implementations make of the same input.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use engine::batch::ids::TokenId;
use engine::model::{Loaded, load};
use engine::text::detokenizer::Detokenizer;
use engine::text::template::{Chat, ChatTemplate};
use serde_json::{Value, json};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// The rows of the golden file: (prompt, its tokens, output, its tokens).
fn golden() -> Vec<(String, Vec<TokenId>, String, Vec<TokenId>)> {
    let golden = read(&fixtures().join("../golden/smollm2-eagle3-float32.json"));
    let text = |it: &Value| it.as_str().unwrap().to_owned();
    let tokens = |it: &Value| {
        let ids = it.as_array().unwrap().iter().map(|it| it.as_u64().unwrap());
        ids.map(|it| TokenId(u32::try_from(it).unwrap())).collect()
    };
    let rows = golden["rows"].as_array().unwrap().iter();
    let row = |it: &Value| {
        let prompt = (text(&it["prompt"]), tokens(&it["prompt_ids"]));
        (prompt.0, prompt.1, text(&it["output"]), tokens(&it["output_ids"]))
    };
    rows.map(row).collect()
}

/// Checks the texts of the golden file, from the conversation to the answer and back.
fn check_golden(loaded: &Loaded) {
    let template = loaded.template.as_ref().expect("a chat template");
    for (prompt, prompt_ids, output, output_ids) in golden() {
        let asked = prompt.split("<|im_start|>user\n").nth(1).unwrap();
        let words = asked.split("<|im_end|>").next().unwrap();
        let messages = json!([{ "role": "user", "content": words }]);
        let chat = Chat {
            messages: &messages,
            tools: None,
            add_generation_prompt: true,
            continue_final: false,
            kwargs: None,
        };
        assert_eq!(template.render(&chat, 0).unwrap(), prompt);
        assert_eq!(loaded.tokenizer.encode(&prompt, false), prompt_ids);
        assert_eq!(loaded.tokenizer.encode(&prompt, true), prompt_ids, "nothing is added");
        assert_eq!(loaded.tokenizer.decode(&prompt_ids, false), prompt);
        assert_eq!(loaded.tokenizer.decode(&output_ids, false), output);
        let mut pieces = Detokenizer::continuing(loaded.tokenizer.clone(), false);
        let streamed: String = output_ids.iter().map(|it| pieces.push(*it)).collect();
        assert_eq!(streamed, output);
    }
}

#[test]
fn the_default_model_reads_and_writes_the_golden_texts() {
    let path = deploy::fetch::default_model(&mut |_| ()).unwrap();
    let loaded = load(&path).unwrap();
    assert!(loaded.notes.is_empty(), "{:?}", loaded.notes);
    assert_eq!((loaded.bos, &*loaded.stop_tokens), (Some(TokenId(1)), &[TokenId(2)][..]));
    assert_eq!(loaded.tokenizer.vocab(), loaded.model.config.vocab);
    check_golden(&loaded);
}

/// The same without the default model: the part of its tokenizer that the golden texts need,
/// beside a model of the same vocabulary and hardly anything else.
#[test]
fn a_cut_tokenizer_reads_and_writes_the_golden_texts() {
    const VOCAB: usize = 49_152;
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    let cut = fixtures().join("smollm2-cut/tokenizer.json");
    fs::copy(cut, dir.path().join("tokenizer.json")).unwrap();
    write("chat_template.jinja", SMOLLM2);
    write("generation_config.json", "{\"eos_token_id\": 2}");
    let config = json!({
        "model_type": "llama", "vocab_size": VOCAB, "hidden_size": 2, "intermediate_size": 2,
        "num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": true
    });
    write("config.json", &config.to_string());
    fs::write(dir.path().join("model.safetensors"), zeros(VOCAB)).unwrap();
    let loaded = load(dir.path()).unwrap();
    assert_eq!(loaded.stop_tokens, [TokenId(2)]);
    check_golden(&loaded);
}

const SMOLLM2: &str = "{% for message in messages %}\
    {% if loop.first and messages[0]['role'] != 'system' %}\
    {{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face\
    <|im_end|>\n' }}{% endif %}\
    {{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}\
    {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// A safetensors file of a model of one layer and width two, all zero.
fn zeros(vocab: usize) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    let mut add = |name: &str, shape: &[usize]| {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        let entry = json!({ "dtype": "F16", "shape": shape, "data_offsets": [start, end] });
        header.insert(name.to_owned(), entry);
    };
    add("model.embed_tokens.weight", &[vocab, 2]);
    add("model.norm.weight", &[2]);
    for name in ["input_layernorm", "post_attention_layernorm"] {
        add(&format!("model.layers.0.{name}.weight"), &[2]);
    }
    for name in ["self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o"] {
        add(&format!("model.layers.0.{name}_proj.weight"), &[2, 2]);
    }
    for name in ["mlp.gate", "mlp.up", "mlp.down"] {
        add(&format!("model.layers.0.{name}_proj.weight"), &[2, 2]);
    }
    let header = Value::Object(header).to_string();
    let len = u64::try_from(header.len()).unwrap().to_le_bytes();
    [&len, header.as_bytes(), &vec![0; end]].concat()
}

/// Conversations through templates with what the ones of Llama 3, Qwen and Mistral use.
#[test]
fn templates_render_as_the_reference_does() {
    let file = read(&fixtures().join("templates.json"));
    let specials = [("bos_token", "<s>"), ("eos_token", "</s>")];
    let specials: BTreeMap<_, _> =
        specials.iter().map(|(name, it)| ((*name).to_owned(), (*it).to_owned())).collect();
    let cases = file["cases"].as_array().unwrap();
    assert!(40 < cases.len());
    for case in cases {
        let name = case["template"].as_str().unwrap();
        let source = file["templates"][name].as_str().unwrap().to_owned();
        let sources = BTreeMap::from([("default".to_owned(), source)]);
        let template = ChatTemplate::new(sources, specials.clone()).unwrap();
        let chat = Chat {
            messages: &case["messages"],
            tools: Some(&case["tools"]).filter(|it| !it.is_null()),
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            continue_final: false,
            kwargs: case["kwargs"].as_object(),
        };
        let prompt = template.render(&chat, 0).unwrap();
        assert_eq!(prompt, case["prompt"].as_str().unwrap(), "{name} {}", case["messages"]);
    }
}
