//! What a `tokenizer.json` may hold, so that nothing in it can fail or surprise later.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::model::error::{Fault, listed};

/// Normalisers and pre-tokenisers that are known to be total and to depend on the text alone.
const NORMALISERS: &[&str] = &["NFC", "NFD", "NFKC", "NFKD", "Prepend", "Replace", "Sequence"];
const SPLITTERS: &[&str] = &["ByteLevel", "Digits", "Metaspace", "Sequence", "Split"];
const AFTERWARDS: &[&str] = &["ByteLevel", "Sequence", "TemplateProcessing"];

const NESTED_MAX: usize = 8;

/// A token beside the byte pairs, such as a control token.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Added {
    pub(super) id: u32,
    pub(super) content: String,
    pub(super) special: bool,
}

/// Refuses what is not supported and takes out what would change a text behind our back.
pub(super) fn check(json: &mut Value, vocab: usize, notes: &mut Vec<String>) -> Result<(), Fault> {
    let Value::Object(object) = &mut *json else { return Err(Fault::whole("not an object")) };
    // Both belong to whoever asks, never to the tokenizer: a text is not cut or filled up.
    object.remove("truncation");
    object.remove("padding");
    kinds(&json["normalizer"], "normalizer", NORMALISERS, 0)?;
    kinds(&json["pre_tokenizer"], "pre_tokenizer", SPLITTERS, 0)?;
    kinds(&json["post_processor"], "post_processor", AFTERWARDS, 0)?;
    byte_pairs(&json["model"]).map_err(|it| it.within("model"))?;
    drop_added_beyond(json, vocab, notes)
}

pub(super) fn added_tokens(json: &Value) -> Result<Vec<Added>, Fault> {
    let wrong = |it: &Value| Fault::new("added_tokens", format_args!("{it} is no token"));
    let tokens = json["added_tokens"].as_array().map_or(&[][..], Vec::as_slice);
    let read = tokens.iter().map(|it| {
        let id = it["id"].as_u64().and_then(|it| u32::try_from(it).ok());
        let content = it["content"].as_str().filter(|it| !it.is_empty());
        let (Some(id), Some(content)) = (id, content) else { return Err(wrong(it)) };
        let special = it["special"].as_bool().unwrap_or(false);
        Ok(Added { id, content: content.to_owned(), special })
    });
    read.collect()
}

/// Entries of the vocabulary, text and token.
pub(super) fn vocabulary(model: &Value) -> Result<Vec<(&str, u32)>, Fault> {
    let wrong = |text: &str| Fault::new(format_args!("vocab {text:?}"), "not a token number");
    let vocab = model["vocab"].as_object().ok_or_else(|| Fault::new("vocab", "missing"))?;
    let read = vocab.iter().map(|(text, id)| {
        let id = id.as_u64().and_then(|it| u32::try_from(it).ok());
        Ok((text.as_str(), id.ok_or_else(|| wrong(text))?))
    });
    read.collect()
}

/// Two texts of a merge, written as a list or with a space between them.
pub(super) fn merge(merge: &Value) -> Option<(&str, &str)> {
    match merge {
        Value::String(it) => it.split_once(' '),
        Value::Array(it) => match it.as_slice() {
            [left, right] => Some((left.as_str()?, right.as_str()?)),
            _ => None,
        },
        _ => None,
    }
}

/// Whether every step of a chain is one of `known`.
fn kinds(step: &Value, place: &str, known: &[&str], nested: usize) -> Result<(), Fault> {
    if step.is_null() {
        return Ok(());
    }
    let kind = step["type"].as_str().unwrap_or_default();
    if !known.contains(&kind) || nested == NESTED_MAX {
        let reason = format_args!("{kind:?} is not supported: {} are", known.join(", "));
        return Err(Fault::new(place, reason));
    }
    if kind == "Replace" && step["pattern"]["String"].as_str() == Some("") {
        return Err(Fault::new(place, "replaces an empty text"));
    }
    let inner = ["normalizers", "pretokenizers", "processors"];
    let inner = inner.iter().filter_map(|it| step[*it].as_array()).flatten();
    inner.into_iter().try_for_each(|it| kinds(it, place, known, nested + 1))
}

/// Byte pairs whose merges stay in the vocabulary, without chance.
fn byte_pairs(model: &Value) -> Result<(), Fault> {
    let kind = model["type"].as_str().unwrap_or("BPE");
    if kind != "BPE" {
        return Err(Fault::new("type", format_args!("{kind:?} is not supported: BPE is")));
    }
    if model["dropout"].as_f64().is_some_and(|it| it != 0.0) {
        return Err(Fault::new("dropout", "makes tokens a matter of chance"));
    }
    for name in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if model[name].as_str().is_some_and(|it| !it.is_empty()) {
            return Err(Fault::new(name, "is not supported"));
        }
    }
    let texts: BTreeSet<_> = vocabulary(model)?.into_iter().map(|it| it.0).collect();
    if let Some(unknown) = model["unk_token"].as_str().filter(|it| !texts.contains(it)) {
        return Err(Fault::new("unk_token", format_args!("{unknown:?} is not in the vocabulary")));
    }
    let merges = model["merges"].as_array().ok_or_else(|| Fault::new("merges", "missing"))?;
    for (at, pair) in merges.iter().enumerate() {
        let place = || format!("merge {at}");
        let Some((left, right)) = merge(pair) else {
            return Err(Fault::new(place(), format_args!("{pair} is no pair")));
        };
        let both = format!("{left}{right}");
        if let Some(it) = [left, right, &both].iter().find(|it| !texts.contains(**it)) {
            return Err(Fault::new(place(), format_args!("{it:?} is not in the vocabulary")));
        }
    }
    Ok(())
}

/// A token without a row in the embedding cannot be fed, so its name is an ordinary text.
fn drop_added_beyond(json: &mut Value, vocab: usize, notes: &mut Vec<String>) -> Result<(), Fault> {
    let model = vocabulary(&json["model"])?;
    if let Some((text, id)) = model.iter().find(|it| vocab <= it.1 as usize) {
        let reason = format_args!("token {id} has no row in an embedding of {vocab}");
        return Err(Fault::new(format_args!("vocab {text:?}"), reason));
    }
    let beyond = |it: &Value| it["id"].as_u64().is_some_and(|it| vocab as u64 <= it);
    let Some(Value::Array(added)) = json.get_mut("added_tokens") else { return Ok(()) };
    let names = added.iter().filter(|it| beyond(it)).map(|it| it["content"].to_string());
    let names: Vec<_> = names.collect();
    if !names.is_empty() {
        added.retain(|it| !beyond(it));
        let names = listed(&names);
        notes.push(format!("not in the embedding, so not taken for tokens: {names}"));
    }
    Ok(())
}
