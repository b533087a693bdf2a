use std::fs;

use tempfile::{TempDir, tempdir};

use super::*;
use crate::text::template::Chat;
use crate::text::tokenizer::tests::byte_level;

/// A folder with the given files beside the tokenizer of the tests.
fn folder(files: &[(&str, Value)]) -> TempDir {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("tokenizer.json"), byte_level().to_string()).unwrap();
    for (name, value) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        fs::write(path, text).unwrap();
    }
    dir
}

fn text_side(files: &[(&str, Value)]) -> Result<TextSide, String> {
    read(folder(files).path(), 300, &mut Vec::new()).map_err(|it| it.to_string())
}

/// What the template of these files makes of a word.
fn prompt(files: &[(&str, Value)], tools: Option<&Value>) -> String {
    let messages = json!([{ "role": "user", "content": "hi" }]);
    let chat = Chat {
        messages: &messages,
        tools,
        add_generation_prompt: false,
        continue_final: false,
        kwargs: None,
    };
    text_side(files).unwrap().template.unwrap().render(&chat, 0).unwrap()
}

#[test]
fn ends_and_starts_are_named() {
    let said = json!({ "eos_token": { "content": "<|end|>" }, "bos_token": "hello" });
    let side = text_side(&[
        ("tokenizer_config.json", said),
        ("generation_config.json", json!({ "eos_token_id": [7, 261] })),
    ]);
    let side = side.unwrap();
    assert_eq!(side.stop_tokens, [TokenId(7), TokenId(261)]);
    assert_eq!(side.bos, Some(TokenId(259)));
    let beyond = [("config.json", json!({ "eos_token_id": 300 }))];
    assert!(text_side(&beyond).unwrap_err().contains("300 is no token of 300"));
}

/// Older repositories name special tokens in a file of their own; it counts unless the
/// configuration lists its tokens.
#[test]
fn an_older_file_names_special_tokens() {
    let template = json!("{{ bos_token }}|{{ eos_token }}|{{ messages[0].content }}");
    let map = json!({ "bos_token": { "content": "<|end|>" }, "eos_token": "<tool>" });
    let mut files = vec![
        ("chat_template.jinja", template),
        ("tokenizer_config.json", json!({ "bos_token": "old", "eos_token": null })),
        ("special_tokens_map.json", map),
    ];
    assert_eq!(prompt(&files, None), "<|end|>|<tool>|hi");
    assert_eq!(text_side(&files).unwrap().stop_tokens, [TokenId(262)]);
    files[1].1["added_tokens_decoder"] = json!({});
    assert_eq!(prompt(&files, None), "old||hi");
    // Tokens without a name stand in it too.
    let map = json!({ "additional_special_tokens": ["Ġhello"] });
    let side = text_side(&[("special_tokens_map.json", map)]).unwrap();
    assert!(side.tokenizer.is_special(TokenId(260)));
}

/// As transformers has it: the configuration's account of a token counts, and a special token is
/// one though the tokenizer's file does not list it.
#[test]
fn tokens_of_the_configuration_are_tokens() {
    let side = |said: Value| text_side(&[("tokenizer_config.json", said)]).unwrap();
    let plain = side(json!({}));
    assert_eq!(plain.tokenizer.encode("x <tool> ", false).len(), 4);
    assert!(!plain.tokenizer.is_special(TokenId(262)));
    let told = json!({ "262": {
        "content": "<tool>", "special": true, "lstrip": true, "rstrip": true,
        "normalized": false, "single_word": false
    } });
    let told = side(json!({ "added_tokens_decoder": told }));
    assert_eq!(told.tokenizer.encode("x <tool> ", false).len(), 2, "it takes the spaces");
    assert!(told.tokenizer.is_special(TokenId(262)));

    let told = json!({ "261": { "content": "<|end|>", "special": false } });
    let told = side(json!({ "added_tokens_decoder": told }));
    assert!(told.tokenizer.is_special(TokenId(261)), "either file may call it special");

    assert_eq!(plain.tokenizer.encode("Ġhello", false).len(), 3);
    for said in [
        json!({ "unk_token": "Ġhello" }),
        json!({ "additional_special_tokens": ["Ġhello", "nowhere"] }),
    ] {
        let named = side(said);
        assert_eq!(named.tokenizer.encode("Ġhello", false), [TokenId(260)]);
        assert!(named.tokenizer.is_special(TokenId(260)));
    }
    let new = |id: &str| {
        let new = json!({ id: { "content": "<new>", "special": false } });
        side(json!({ "added_tokens_decoder": new })).tokenizer
    };
    assert_eq!(new("263").encode("<new>", false), [TokenId(263)]);
    // A gap, a token that has another text, and no token: none stops a model.
    for id in ["270", "261", "x"] {
        assert_ne!(new(id).encode("<new>", false).len(), 1);
    }
}

#[test]
fn templates_stand_in_several_places() {
    let tools = json!([{ "type": "function" }]);
    let listed = json!({ "chat_template": [
        { "name": "default", "template": "d" }, { "name": "tool_use", "template": "t" },
        // What is not used need not be understood.
        { "name": "rag", "template": "{% unheard of %}" }
    ] });
    let mut files = vec![("tokenizer_config.json", listed)];
    assert_eq!(prompt(&files, None) + &prompt(&files, Some(&tools)), "dt");
    files.push(("chat_template.jinja", json!("D")));
    assert_eq!(prompt(&files, None) + &prompt(&files, Some(&tools)), "DD");
    files.push(("additional_chat_templates/tool_use.jinja", json!("T")));
    assert_eq!(prompt(&files, None) + &prompt(&files, Some(&tools)), "DT");
    assert!(text_side(&files[2..]).unwrap().template.is_none());
}
