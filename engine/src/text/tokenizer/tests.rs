use proptest::prelude::*;
use serde_json::json;

use super::*;

/// The character that GPT-2 writes for each byte.
pub(crate) fn alphabet() -> Vec<char> {
    let printable = |it: u8| matches!(it, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut others = 0x100_u32..;
    let mut written = |it: u8| {
        if printable(it) { char::from(it) } else { char::from_u32(others.next().unwrap()).unwrap() }
    };
    (0..=u8::MAX).map(&mut written).collect()
}

/// Bytes 0 to 255, five unions from 256 on, `<|end|>` 261 and, not special, `<tool>` 262.
pub(crate) fn byte_level() -> Value {
    let mut vocab = serde_json::Map::new();
    for (id, it) in alphabet().into_iter().enumerate() {
        vocab.insert(it.to_string(), json!(id));
    }
    let merges = ["h e", "l l", "he ll", "hell o", "Ġ hello"];
    for (id, merge) in (256..).zip(merges) {
        vocab.insert(merge.replace(' ', ""), json!(id));
    }
    let added = |id: u32, content: &str, special: bool| {
        json!({
            "id": id, "content": content, "special": special, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false
        })
    };
    vocab.insert("<|end|>".to_owned(), json!(261));
    vocab.insert("<tool>".to_owned(), json!(262));
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true
    });
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(261, "<|end|>", true), added(262, "<tool>", false)],
        "normalizer": null, "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": { "type": "BPE", "vocab": vocab, "merges": merges }
    })
}

/// SentencePiece style: bytes as tokens, spaces as `▁`.
pub(crate) fn spaces() -> Value {
    let mut vocab = serde_json::Map::new();
    vocab.insert("<unk>".to_owned(), json!(0));
    vocab.insert("<s>".to_owned(), json!(1));
    for byte in 0..=255 {
        vocab.insert(format!("<0x{byte:02X}>"), json!(2 + byte));
    }
    for (id, text) in (258..).zip(["▁", "a", "b", "▁a", "ab", "▁ab"]) {
        vocab.insert(text.to_owned(), json!(id));
    }
    let added = |id: u32, content: &str| {
        json!({
            "id": id, "content": content, "special": true, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false
        })
    };
    json!({
        "version": "1.0", "added_tokens": [added(0, "<unk>"), added(1, "<s>")],
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "▁" },
            { "type": "Replace", "pattern": { "String": " " }, "content": "▁" }
        ] },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                { "SpecialToken": { "id": "<s>", "type_id": 0 } },
                { "Sequence": { "id": "A", "type_id": 0 } }
            ],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }],
            "special_tokens": { "<s>": { "id": "<s>", "ids": [1], "tokens": ["<s>"] } }
        },
        "decoder": { "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": "▁" }, "content": " " },
            { "type": "ByteFallback" }, { "type": "Fuse" },
            { "type": "Strip", "content": " ", "start": 1, "stop": 0 }
        ] },
        "model": {
            "type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": vocab, "merges": ["▁ a", "a b", "▁a b"]
        }
    })
}

pub(crate) fn built(json: Value) -> Tokenizer {
    let options = Options { vocab: 300, ..Options::default() };
    Tokenizer::new(json, &options, &mut Vec::new()).unwrap()
}

fn ids(tokens: &[TokenId]) -> Vec<u32> {
    tokens.iter().map(|it| it.0).collect()
}

fn fails(change: impl Fn(&mut Value), part: &str) {
    let mut json = byte_level();
    change(&mut json);
    let options = Options { vocab: 300, ..Options::default() };
    let error = Tokenizer::new(json, &options, &mut Vec::new()).expect_err(part);
    let error = error.at("tokenizer.json".as_ref()).to_string();
    assert!(error.contains(part), "{error:?} does not say {part:?}");
}

#[test]
fn names_of_tokens_are_tokens() {
    let it = built(byte_level());
    let tokens = it.encode("hello hello<|end|>he<tool>", false);
    assert_eq!(ids(&tokens), [259, 260, 261, 256, 262]);
    assert_eq!(it.decode(&tokens, false), "hello hello<|end|>he<tool>");
    assert_eq!(it.decode(&tokens, true), "hello hellohe<tool>", "only one is special");
    assert_eq!(it.bytes(TokenId(260)), b" hello");
    assert_eq!((it.vocab(), it.token("<|end|>")), (263, Some(TokenId(261))));
    assert_eq!((it.bytes(TokenId(9999)), it.is_special(TokenId(9999))), (&[][..], false));
}

#[test]
fn a_text_of_its_own_gets_its_surroundings() {
    let it = built(spaces());
    assert_eq!(ids(&it.encode("ab", true)), [1, 263]);
    assert_eq!(ids(&it.encode("ab", false)), [263]);
    assert_eq!(it.decode(&it.encode("ab a é", true), true), "ab a é");
    let with = |add_bos: bool| {
        let options = Options {
            vocab: 300,
            bos: Some(TokenId(1)),
            eos: Some(TokenId(0)),
            add_bos: Some(add_bos),
            add_eos: Some(true),
        };
        let tokenizer = Tokenizer::new(spaces(), &options, &mut Vec::new()).unwrap();
        ids(&tokenizer.encode("ab", true))
    };
    assert_eq!(with(true), [1, 263, 0]);
    assert_eq!(with(false), [263, 0]);
}

#[test]
fn what_stands_around_a_text_is_a_token() {
    let mut json = spaces();
    json["post_processor"]["special_tokens"]["<s>"]["ids"] = json!([300]);
    let refused = |json: Value, options: &Options| {
        let error = Tokenizer::new(json, options, &mut Vec::new()).expect_err("300 are too many");
        let error = error.at("tokenizer.json".as_ref()).to_string();
        assert!(error.contains("300, which stands around a text, is no token of 300"), "{error}");
    };
    let options = Options { vocab: 300, ..Options::default() };
    refused(json, &options);
    refused(spaces(), &Options { bos: Some(TokenId(300)), add_bos: Some(true), ..options });
}

#[test]
fn a_text_is_neither_cut_nor_filled() {
    let mut json = byte_level();
    json["truncation"] = json!({
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0
    });
    assert_eq!(built(json).encode("abcdef", true).len(), 6);
}

#[test]
fn tokens_without_a_row_are_ordinary_text() {
    let mut notes = Vec::new();
    let mut json = byte_level();
    json["model"]["vocab"].as_object_mut().unwrap().remove("<tool>");
    let options = Options { vocab: 262, ..Options::default() };
    let it = Tokenizer::new(json, &options, &mut notes).unwrap();
    assert_eq!(it.encode("<tool>", false).len(), 6);
    assert!(notes[0].contains("<tool>"), "{notes:?}");
}

#[test]
fn what_is_not_supported_is_named() {
    fails(|it| it["model"]["type"] = json!("Unigram"), "\"Unigram\"");
    fails(|it| it["model"]["dropout"] = json!(0.1), "dropout");
    fails(|it| it["model"]["end_of_word_suffix"] = json!("</w>"), "end_of_word_suffix");
    fails(|it| it["model"]["unk_token"] = json!("[UNK]"), "\"[UNK]\" is not in the vocabulary");
    fails(|it| it["model"]["merges"][1] = json!("l x"), "merge 1: \"lx\" is not");
    fails(|it| it["model"]["merges"][1] = json!("lx"), "merge 1: \"lx\" is no pair");
    fails(|it| it["model"]["vocab"]["a"] = json!(-1), "vocab \"a\": not a token number");
    fails(|it| it["model"]["vocab"]["a"] = json!(300), "no row in an embedding of 300");
    fails(|it| it["pre_tokenizer"] = json!({ "type": "BertPreTokenizer" }), "BertPreTokenizer");
    fails(|it| it["normalizer"] = json!({ "type": "Lowercase" }), "\"Lowercase\"");
    fails(|it| it["decoder"] = json!({ "type": "WordPiece" }), "\"WordPiece\"");
    fails(|it| it["decoder"] = Value::Null, "decoder");
    let other = json!({ "type": "Metaspace", "replacement": "_", "prepend_scheme": "always" });
    fails(|it| it["decoder"] = other.clone(), "\"Metaspace\"");
    let unfused = json!({ "type": "Sequence", "decoders": [
        { "type": "Replace", "pattern": { "String": "▁" }, "content": " " },
        { "type": "Strip", "content": " ", "start": 1, "stop": 0 }
    ] });
    fails(|it| it["decoder"] = unfused.clone(), "\"Strip\"");
    fails(|it| it["added_tokens"][0]["id"] = json!(7), "its id 7 becomes");
    fails(|it| it["added_tokens"][0]["content"] = json!(""), "is no token");
    let nested = json!({ "type": "Sequence", "pretokenizers": [{ "type": "Whitespace" }] });
    fails(|it| it["pre_tokenizer"] = nested.clone(), "\"Whitespace\"");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_text_survives(text in "\\PC{0,24}|[ \\na▁é→<|end>]{0,24}") {
        for json in [byte_level(), spaces()] {
            let it = built(json);
            let decoded = it.decode(&it.encode(&text, true), true);
            let spaced = it.invents_space();
            prop_assert_eq!(decoded, if spaced { text.replace('▁', " ") } else { text.clone() });
        }
    }
}
