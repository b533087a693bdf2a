use proptest::prelude::*;
use tempfile::{TempDir, tempdir};

use super::*;
use crate::model::from_gguf::tests::tiny;
use crate::model::gguf::Value;
use crate::model::gguf::tests::Writer;
use crate::text::template::Chat;

const TEMPLATE: &str = "{{ bos_token }}{{ messages[0].content }}";

/// A whole model: ten tokens, of which the last three are control tokens.
fn whole() -> Writer {
    let mut writer = tiny("llama");
    let texts = |it: &[&str]| Value::Array(it.iter().map(|it| Value::Text((*it).into())).collect());
    let tokens = ["a", "b", "ab", "c", "d", "e", "f", "<s>", "</s>", "<|im_end|>"];
    writer.text("tokenizer.ggml.model", "gpt2");
    writer.text("tokenizer.ggml.pre", "smollm");
    writer.set("tokenizer.ggml.tokens", texts(&tokens));
    writer.set("tokenizer.ggml.merges", texts(&["a b"]));
    let kinds = [1, 1, 1, 1, 1, 1, 1, 3, 3, 3].map(Value::Unsigned);
    writer.set("tokenizer.ggml.token_type", Value::Array(kinds.to_vec()));
    writer.size("tokenizer.ggml.bos_token_id", 7);
    writer.size("tokenizer.ggml.eos_token_id", 8);
    writer.text("tokenizer.chat_template", TEMPLATE);
    writer
}

fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

fn fails(path: &Path, part: &str) {
    let error = load(path).expect_err(part).to_string();
    assert!(error.contains(part), "{error:?} does not say {part:?}");
    let named = error.starts_with(&path.display().to_string());
    assert!(named && !error.contains('\n'), "{error:?} is not one line about its file");
}

#[test]
fn a_file_or_its_folder_is_read_whole() {
    let dir = folder(&[("tiny.gguf", &whole().file())]);
    for path in [dir.path().join("tiny.gguf"), dir.path().to_owned()] {
        let loaded = load(&path).unwrap();
        assert_eq!(loaded.model.config.name, "tiny");
        assert_eq!(loaded.tokenizer.encode("abc", true), [TokenId(2), TokenId(3)]);
        assert_eq!(loaded.stop_tokens, [TokenId(8), TokenId(9)]);
        assert_eq!(loaded.bos, Some(TokenId(7)));
        assert!(loaded.template.is_some());
        assert!(loaded.notes.is_empty(), "{:?}", loaded.notes);
    }
}

#[test]
fn each_mistake_names_its_file() {
    let none = folder(&[]);
    fails(&none.path().join("absent"), "No such file");
    fails(none.path(), "neither config.json nor a GGUF file");
    let file = whole().file();
    fails(folder(&[("a.gguf", &file), ("b.gguf", &file)]).path(), "several GGUF files");
    let wrong = |change: &dyn Fn(&mut Writer), part: &str| {
        let mut writer = whole();
        change(&mut writer);
        let dir = folder(&[("x.gguf", &writer.file())]);
        fails(&dir.path().join("x.gguf"), part);
    };
    wrong(&|it| it.text("tokenizer.ggml.pre", "odd"), "tokenizer.ggml.pre: \"odd\"");
    wrong(&|it| it.text("tokenizer.chat_template", "{% if %}"), "tokenizer.chat_template: ");
    wrong(&|it| it.size("tokenizer.ggml.eos_token_id", 10), "10 is no token of 10");
    wrong(&|it| it.size("llama.block_count", 3), "\"layers.2.input_layernorm.weight\" is missing");
    let short = &file[..file.len() - 40];
    let dir = folder(&[("x.gguf", short)]);
    fails(&dir.path().join("x.gguf"), "truncated");
}

#[test]
fn a_file_may_have_a_template_for_tools() {
    let mut writer = whole();
    writer.text("tokenizer.chat_template.tool_use", "{{ tools | length }} tools");
    let dir = folder(&[("x.gguf", &writer.file())]);
    let template = load(dir.path()).unwrap().template.unwrap();
    let messages = serde_json::json!([{ "role": "user", "content": "a" }]);
    let prompt = |tools| {
        let chat = Chat {
            messages: &messages,
            tools,
            add_generation_prompt: true,
            continue_final: false,
            kwargs: None,
        };
        template.render(&chat, 0).unwrap()
    };
    assert_eq!(prompt(None), "<s>a");
    assert_eq!(prompt(Some(&serde_json::json!([{}]))), "1 tools");
    writer.values.retain(|it| it.0 != "tokenizer.chat_template");
    let dir = folder(&[("x.gguf", &writer.file())]);
    assert!(load(dir.path()).unwrap().template.is_none());
}

#[test]
fn a_model_without_a_template_says_so() {
    let mut writer = whole();
    writer.values.retain(|it| it.0 != "tokenizer.chat_template");
    writer.values.retain(|it| it.0 != "tokenizer.ggml.eos_token_id");
    let dir = folder(&[("x.gguf", &writer.file())]);
    let loaded = load(dir.path()).unwrap();
    assert!(loaded.template.is_none());
    assert!(loaded.notes.iter().any(|it| it.contains("no chat template")), "{:?}", loaded.notes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// A changed or cut file is read or refused in one line.
    #[test]
    fn any_change_is_survived(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let mut file = whole().file();
        // Most of the file is weights, in which any byte is right: the header is changed.
        let header = file.len() - 4 * 1200;
        for (at, byte) in changes {
            file[at.index(header)] = byte;
        }
        if is_cut {
            file.truncate(cut.index(file.len()));
        }
        let dir = folder(&[("x.gguf", &file)]);
        let path = dir.path().join("x.gguf");
        if let Err(error) = load(&path) {
            let error = error.to_string();
            prop_assert!(error.starts_with(&path.display().to_string()), "{error:?}");
            prop_assert!(!error.contains('\n'), "{error:?}");
        }
    }
}
