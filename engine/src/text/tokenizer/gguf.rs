//! Rewrites the tokenizer of a GGUF file as a `tokenizer.json`.
//!
//! Keys: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#ggml>. The two kinds that the
//! Llama family uses are byte pairs over bytes ("gpt2") and SentencePiece byte pairs ("llama").

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Options;
use crate::batch::ids::TokenId;
use crate::model::error::Fault;
use crate::model::gguf::{Gguf, Value as Stored};

/// Kinds of tokens in `token_type`.
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
const NORMAL: u64 = 1;

const GPT2_SPLIT: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
const LLAMA3_SPLIT: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const QWEN2_SPLIT: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// The tokens of a file, as it stores them.
struct Tokens<'a> {
    texts: Vec<&'a str>,
    kinds: Vec<u64>,
}

/// The tokenizer, and what the file says beside it. `vocab` is the rows of the embedding.
pub(crate) fn json<S>(gguf: &Gguf<S>, vocab: usize) -> Result<(Value, Options), Fault> {
    const MODEL: &str = "tokenizer.ggml.model";
    let tokens = tokens(gguf, vocab)?;
    let kind = gguf.text(MODEL)?.ok_or_else(|| Fault::new(MODEL, "missing"))?;
    let (mut json, adds_bos) = match kind {
        "gpt2" => byte_level(gguf, &tokens)?,
        "llama" => sentence_piece(gguf, &tokens)?,
        other => {
            let reason = format_args!("{other:?} is not supported: gpt2 and llama are");
            return Err(Fault::new(MODEL, reason));
        }
    };
    json["version"] = json!("1.0");
    json["added_tokens"] = added(&tokens);
    let id = |name: &str| token_id(gguf, &format!("tokenizer.ggml.{name}_token_id"), vocab);
    let options = Options {
        vocab,
        bos: id("bos")?,
        eos: id("eos")?,
        add_bos: Some(gguf.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(adds_bos)),
        add_eos: Some(gguf.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false)),
    };
    Ok((json, options))
}

/// The token that `key` names, which must be one.
pub(crate) fn token_id<S>(
    gguf: &Gguf<S>,
    key: &str,
    vocab: usize,
) -> Result<Option<TokenId>, Fault> {
    let Some(id) = gguf.size(key)? else { return Ok(None) };
    match u32::try_from(id).ok().filter(|_| id < vocab) {
        Some(id) => Ok(Some(TokenId(id))),
        None => Err(Fault::new(key, format_args!("{id} is no token of {vocab}"))),
    }
}

fn tokens<S>(gguf: &Gguf<S>, vocab: usize) -> Result<Tokens<'_>, Fault> {
    const TEXTS: &str = "tokenizer.ggml.tokens";
    const KINDS: &str = "tokenizer.ggml.token_type";
    let texts = texts(gguf, TEXTS)?.ok_or_else(|| Fault::new(TEXTS, "missing"))?;
    if vocab < texts.len() {
        let reason = format_args!("{} tokens, but an embedding of {vocab}", texts.len());
        return Err(Fault::new(TEXTS, reason));
    }
    let kinds = match gguf.array(KINDS)? {
        None => vec![NORMAL; texts.len()],
        Some(kinds) => {
            let kind = |it: &Stored| it.to_size(KINDS).map(|it| it as u64);
            kinds.iter().map(kind).collect::<Result<_, _>>()?
        }
    };
    if kinds.len() != texts.len() {
        let reason = format_args!("{} kinds of {} tokens", kinds.len(), texts.len());
        return Err(Fault::new(KINDS, reason));
    }
    let mut seen = BTreeMap::new();
    for (id, text) in texts.iter().enumerate() {
        if let Some(first) = seen.insert(*text, id) {
            let reason = format_args!("{text:?} is both token {first} and token {id}");
            return Err(Fault::new(TEXTS, reason));
        }
    }
    Ok(Tokens { texts, kinds })
}

fn texts<'a, S>(gguf: &'a Gguf<S>, key: &str) -> Result<Option<Vec<&'a str>>, Fault> {
    let Some(array) = gguf.array(key)? else { return Ok(None) };
    let text = |it: &'a Stored| match it {
        Stored::Text(it) => Ok(it.as_str()),
        other => Err(Fault::new(key, format_args!("{other:?} is not a text"))),
    };
    array.iter().map(text).collect::<Result<_, _>>().map(Some)
}

fn vocabulary(tokens: &Tokens<'_>) -> Map<String, Value> {
    let entry = |(id, text): (usize, &&str)| ((*text).to_owned(), json!(id));
    tokens.texts.iter().enumerate().map(entry).collect()
}

/// Tokens that are found in a text before anything else.
fn added(tokens: &Tokens<'_>) -> Value {
    let all = tokens.texts.iter().zip(&tokens.kinds).enumerate();
    let apart = all.filter(|(_, (text, kind))| {
        [UNKNOWN, CONTROL, USER_DEFINED].contains(kind) && !text.is_empty()
    });
    let token = apart.map(|(id, (text, kind))| {
        json!({
            "id": id, "content": text, "special": *kind != USER_DEFINED, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false
        })
    });
    token.collect()
}

/// Byte pairs over bytes, and whether such a text begins with a token when the file is silent.
fn byte_level<S>(gguf: &Gguf<S>, tokens: &Tokens<'_>) -> Result<(Value, bool), Fault> {
    const MERGES: &str = "tokenizer.ggml.merges";
    let merges = texts(gguf, MERGES)?.ok_or_else(|| Fault::new(MERGES, "missing"))?;
    let name = gguf.text("tokenizer.ggml.pre")?.unwrap_or("default");
    let split = |regex: &str| {
        json!({
            "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false
        })
    };
    let bytes = |gpt2_split: bool| {
        json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": gpt2_split
        })
    };
    let digits = json!({ "type": "Digits", "individual_digits": true });
    let steps = match name {
        "gpt-2" => vec![bytes(true)],
        "smollm" => vec![digits, bytes(true)],
        "llama-bpe" | "llama-v3" | "llama3" => vec![split(LLAMA3_SPLIT), bytes(false)],
        "qwen2" | "deepseek-r1-qwen" => vec![split(QWEN2_SPLIT), bytes(false)],
        // What llama.cpp does when a file does not say.
        "default" => vec![
            split(r"[\p{P}\$\+<=>\^~\|]+"),
            split(GPT2_SPLIT),
            split(r"\p{N}+"),
            split("[0-9][0-9][0-9]"),
            bytes(false),
        ],
        other => {
            let reason = format_args!(
                "{other:?} is not supported: default, gpt-2, llama-bpe, qwen2 and smollm are"
            );
            return Err(Fault::new("tokenizer.ggml.pre", reason));
        }
    };
    let is_llama3 = matches!(name, "llama-bpe" | "llama-v3" | "llama3");
    let composed = matches!(name, "qwen2" | "deepseek-r1-qwen");
    let json = json!({
        "normalizer": if composed { json!({ "type": "NFC" }) } else { Value::Null },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": steps },
        "decoder": {
            "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true
        },
        "model": {
            "type": "BPE", "vocab": vocabulary(tokens), "merges": merges,
            "ignore_merges": is_llama3
        }
    });
    Ok((json, is_llama3))
}

/// SentencePiece byte pairs: the pair whose union has the best score is merged first.
fn sentence_piece<S>(gguf: &Gguf<S>, tokens: &Tokens<'_>) -> Result<(Value, bool), Fault> {
    const SCORES: &str = "tokenizer.ggml.scores";
    let scores = gguf.array(SCORES)?.ok_or_else(|| Fault::new(SCORES, "missing"))?;
    let score = |it: &Stored| match it {
        Stored::Float(it) if !it.is_nan() => Ok(*it),
        other => Err(Fault::new(SCORES, format_args!("{other:?} is not a score"))),
    };
    let scores: Vec<_> = scores.iter().map(score).collect::<Result<_, _>>()?;
    if scores.len() != tokens.texts.len() {
        let reason = format_args!("{} scores of {} tokens", scores.len(), tokens.texts.len());
        return Err(Fault::new(SCORES, reason));
    }
    if gguf.flag("tokenizer.ggml.remove_extra_whitespaces")? == Some(true) {
        let reason = "true is not supported: the text would not survive";
        return Err(Fault::new("tokenizer.ggml.remove_extra_whitespaces", reason));
    }
    let prefix = gguf.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let mut spaces = vec![json!({
        "type": "Replace", "pattern": { "String": " " }, "content": "\u{2581}"
    })];
    let mut readers = vec![
        json!({ "type": "Replace", "pattern": { "String": "\u{2581}" }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if prefix {
        spaces.insert(0, json!({ "type": "Prepend", "prepend": "\u{2581}" }));
        readers.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    let unknown = tokens.kinds.iter().position(|it| *it == UNKNOWN).map(|it| tokens.texts[it]);
    let json = json!({
        "normalizer": { "type": "Sequence", "normalizers": spaces },
        "decoder": { "type": "Sequence", "decoders": readers },
        "model": {
            "type": "BPE", "vocab": vocabulary(tokens), "merges": merges(tokens, &scores),
            "unk_token": unknown, "fuse_unk": true, "byte_fallback": true
        }
    });
    Ok((json, true))
}

/// Every way to cut a token into two others, the best union first; of equal ones that with the
/// longer left part.
fn merges(tokens: &Tokens<'_>, scores: &[f64]) -> Vec<Value> {
    let apart = |id: usize| [UNKNOWN, CONTROL, USER_DEFINED].contains(&tokens.kinds[id]);
    let ids: BTreeMap<_, _> = tokens.texts.iter().enumerate().map(|(id, it)| (*it, id)).collect();
    let mut pairs = Vec::new();
    for (id, text) in tokens.texts.iter().enumerate().filter(|(id, _)| !apart(*id)) {
        let mut own = Vec::new();
        for (cut, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(cut);
            if let (Some(first), Some(second)) = (ids.get(left), ids.get(right)) {
                own.push((*first, *second, left, right));
            }
        }
        own.sort_unstable();
        pairs.extend(own.into_iter().map(|(_, _, left, right)| (scores[id], left, right)));
    }
    let lengths = |left: &str, right: &str| (left.chars().count(), right.chars().count());
    pairs.sort_by(|one, other| {
        let by_score = other.0.total_cmp(&one.0);
        by_score.then_with(|| lengths(other.1, other.2).cmp(&lengths(one.1, one.2)))
    });
    pairs.into_iter().map(|(_, left, right)| json!([left, right])).collect()
}

#[cfg(test)]
mod tests;
