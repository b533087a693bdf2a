use std::io::Cursor;

use proptest::prelude::*;

use super::*;
use crate::model::gguf::tests::Writer;
use crate::text::tokenizer::Tokenizer;
use crate::text::tokenizer::tests::alphabet;

fn texts(texts: &[&str]) -> Stored {
    Stored::Array(texts.iter().map(|it| Stored::Text((*it).to_owned())).collect())
}

/// Byte pairs over bytes: the bytes, then "ab" 256, "12" 257, "<|end|>" 258, "<tool>" 259.
fn byte_pairs(pre: &str) -> Writer {
    let mut writer = Writer::default();
    writer.text("tokenizer.ggml.model", "gpt2");
    writer.text("tokenizer.ggml.pre", pre);
    let bytes: Vec<_> = alphabet().into_iter().map(String::from).collect();
    let mut tokens: Vec<_> = bytes.iter().map(String::as_str).collect();
    tokens.extend(["ab", "12", "<|end|>", "<tool>"]);
    let kinds = (0..260).map(|it| match it {
        258 => CONTROL,
        259 => USER_DEFINED,
        _ => NORMAL,
    });
    let kinds: Vec<_> = kinds.map(Stored::Unsigned).collect();
    writer.set("tokenizer.ggml.token_type", Stored::Array(kinds));
    writer.set("tokenizer.ggml.tokens", texts(&tokens));
    writer.set("tokenizer.ggml.merges", texts(&["a b", "1 2"]));
    writer.size("tokenizer.ggml.bos_token_id", 258);
    writer
}

/// SentencePiece: `pieces` with their scores after `<unk>`, `<s>` and the bytes.
fn sentence_pieces(pieces: &[(&str, f64)]) -> Writer {
    let bytes: Vec<_> = (0..=255).map(|it| format!("<0x{it:02X}>")).collect();
    let mut tokens = vec!["<unk>", "<s>"];
    tokens.extend(bytes.iter().map(String::as_str));
    tokens.extend(pieces.iter().map(|it| it.0));
    let kinds = (0..tokens.len()).map(|it| match it {
        0 => UNKNOWN,
        1 => CONTROL,
        2..258 => 6,
        _ => NORMAL,
    });
    let kinds: Vec<_> = kinds.map(Stored::Unsigned).collect();
    let scores = [0.0; 258].into_iter().chain(pieces.iter().map(|it| it.1));
    let mut writer = Writer::default();
    writer.text("tokenizer.ggml.model", "llama");
    writer.set("tokenizer.ggml.scores", Stored::Array(scores.map(Stored::Float).collect()));
    writer.set("tokenizer.ggml.token_type", Stored::Array(kinds));
    writer.set("tokenizer.ggml.tokens", texts(&tokens));
    writer.size("tokenizer.ggml.bos_token_id", 1);
    writer
}

fn read(writer: &Writer) -> Result<Tokenizer, String> {
    let file = writer.file();
    let len = file.len() as u64;
    let read = || {
        let gguf = Gguf::open(Cursor::new(file), len)?;
        let (json, options) = json(&gguf, 600)?;
        Tokenizer::new(json, &options, &mut Vec::new())
    };
    read().map_err(|it| it.at("x.gguf".as_ref()).to_string())
}

fn ids(writer: &Writer, text: &str, own: bool) -> Vec<u32> {
    read(writer).unwrap().encode(text, own).iter().map(|it| it.0).collect()
}

fn fails(writer: &Writer, part: &str) {
    let error = read(writer).expect_err(part);
    assert!(error.contains(part), "{error:?} does not say {part:?}");
}

#[test]
fn splits_follow_the_kind() {
    let of = |pre: &str, text: &str| ids(&byte_pairs(pre), text, false);
    let (one, two) = (u32::from(b'1'), u32::from(b'2'));
    assert_eq!(of("smollm", "ab12"), [256, one, two], "each digit alone");
    assert_eq!(of("qwen2", "ab12"), [256, one, two], "each digit alone");
    assert_eq!(of("llama-bpe", "ab12"), [256, 257], "up to three digits together");
    assert_eq!(of("gpt-2", "ab12"), [256, 257]);
    assert_eq!(of("default", "ab12"), [256, 257]);
    assert_eq!(of("smollm", "ab<|end|>ab<tool>"), [256, 258, 256, 259]);
    // NFC: "e" and a combining acute become one character.
    assert_eq!(of("qwen2", "e\u{301}"), [0xC3, 0xA9]);
    assert_eq!(of("smollm", "e\u{301}"), [u32::from(b'e'), 0xCC, 0x81]);
    fails(&byte_pairs("tekken"), "\"tekken\" is not supported");
}

#[test]
fn a_first_token_is_added_where_the_file_or_its_kind_says() {
    assert_eq!(ids(&byte_pairs("smollm"), "ab", true), [256]);
    assert_eq!(ids(&byte_pairs("llama-bpe"), "ab", true), [258, 256]);
    let mut said = byte_pairs("smollm");
    said.set("tokenizer.ggml.add_bos_token", Stored::Bool(true));
    assert_eq!(ids(&said, "ab", true), [258, 256]);
    let pieces = sentence_pieces(&[("▁", -1.0), ("a", -2.0), ("▁a", -3.0)]);
    assert_eq!(ids(&pieces, "a", true), [1, 260]);
    assert_eq!(ids(&pieces, "aé", false), [260, 2 + 0xC3, 2 + 0xA9], "bytes where needed");
}

#[test]
fn spaces_at_the_front_are_the_files_choice() {
    let mut pieces = sentence_pieces(&[("▁", -1.0), ("a", -2.0), ("▁a", -3.0)]);
    assert_eq!(read(&pieces).unwrap().decode(&[TokenId(260)], false), "a");
    pieces.set("tokenizer.ggml.add_space_prefix", Stored::Bool(false));
    assert_eq!(ids(&pieces, "a", false), [259]);
    assert_eq!(read(&pieces).unwrap().decode(&[TokenId(260)], false), " a");
}

#[test]
fn each_mistake_is_named() {
    let with = |key: &str, value: Stored| {
        let mut writer = byte_pairs("smollm");
        writer.set(key, value);
        writer
    };
    fails(&with("tokenizer.ggml.model", Stored::Text("t5".into())), "\"t5\" is not supported");
    fails(&with("tokenizer.ggml.tokens", texts(&["a", "b", "a"])), "260 kinds of 3 tokens");
    fails(&with("tokenizer.ggml.merges", texts(&["a c"])), "\"ac\" is not in the vocabulary");
    fails(&with("tokenizer.ggml.bos_token_id", Stored::Unsigned(600)), "600 is no token");
    fails(&with("tokenizer.ggml.tokens", Stored::Unsigned(1)), "is not an array");
    let mut twice = with("tokenizer.ggml.tokens", texts(&["a", "b", "a"]));
    twice.values.retain(|it| it.0 != "tokenizer.ggml.token_type");
    fails(&twice, "\"a\" is both token 0 and token 2");
    let many: Vec<_> = (0..601).map(|it| it.to_string()).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    fails(&with("tokenizer.ggml.tokens", texts(&many)), "601 tokens, but an embedding of 600");
    let mut scores = sentence_pieces(&[("a", 0.0)]);
    scores.set("tokenizer.ggml.scores", Stored::Array(vec![Stored::Float(0.0)]));
    fails(&scores, "1 scores of 259 tokens");
}

/// SentencePiece by its definition: the neighbours whose union scores best become one.
fn merged(text: &str, pieces: &[(&str, f64)]) -> Vec<String> {
    let mut parts: Vec<_> = text.chars().map(String::from).collect();
    let score = |it: &str| pieces.iter().find(|piece| piece.0 == it).map(|it| it.1);
    loop {
        let unions = parts.windows(2).enumerate();
        let unions = unions.filter_map(|(at, it)| Some((score(&it.concat())?, at)));
        let best = unions.max_by(|one, other| one.0.total_cmp(&other.0).then(other.1.cmp(&one.1)));
        let Some((_, at)) = best else { return parts };
        let next = parts.remove(at + 1);
        parts[at].push_str(&next);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_best_score_is_merged_first(
        unions in prop::collection::btree_set("[abcde]{2,4}", 0..30),
        order in any::<u64>(),
        text in "[abcde]{1,12}",
    ) {
        // A union that overlaps itself can be made at two places that exclude each other, and
        // merges, which are pairs, cannot say that the left one comes first.
        let overlaps = |it: &&str| (1..it.len()).any(|len| it.ends_with(&it[..len]));
        let mut unions: Vec<_> = unions.iter().map(String::as_str).collect();
        unions.retain(|it| !overlaps(it));
        // Every score is different, in an order that `order` decides.
        unions.sort_by_key(|it| it.bytes().fold(order, |it, byte| {
            it.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(9) ^ u64::from(byte)
        }));
        let mut pieces = ["a", "b", "c", "d", "e", "▁"].map(|it| (it, -1.0)).to_vec();
        let scores = (0_u32..).map(|it| -2.0 - f64::from(it));
        pieces.extend(unions.into_iter().zip(scores));
        let mut writer = sentence_pieces(&pieces);
        writer.set("tokenizer.ggml.add_space_prefix", Stored::Bool(false));
        let tokenizer = read(&writer).unwrap();
        let tokens = tokenizer.encode(&text, false);
        let parts: Vec<_> = tokens.iter().map(|it| tokenizer.decode(&[*it], false)).collect();
        prop_assert_eq!(parts, merged(&text, &pieces));
    }
}
