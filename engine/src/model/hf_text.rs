//! Tokenizer, chat template and end tokens of a Hugging Face folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use crate::batch::ids::TokenId;
use crate::model::LoadError;
use crate::model::error::Fault;
use crate::model::fields::{read_bytes, read_json};
use crate::model::load::TextSide;
use crate::text::template::{ChatTemplate, DEFAULT, WITH_TOOLS};
use crate::text::tokenizer::{Options, Tokenizer};

const TOKENIZER_BYTES_MAX: u64 = 256 << 20;
const SMALL_BYTES_MAX: u64 = 16 << 20;

const SPECIALS: &[&str] =
    &["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"];
/// The list of those without a name.
const MORE_SPECIALS: &str = "additional_special_tokens";

/// Reads the folder `dir` of a model with `vocab` rows in its embedding.
pub(crate) fn read(
    dir: &Path,
    vocab: usize,
    notes: &mut Vec<String>,
) -> Result<TextSide, LoadError> {
    let path = dir.join("tokenizer.json");
    let mut json = read_json(&path, TOKENIZER_BYTES_MAX).map_err(|it| it.at(&path))?;
    let mut said = optional(dir, "tokenizer_config.json")?;
    let generation = optional(dir, "generation_config.json")?;
    let config = optional(dir, "config.json")?;
    let specials = named_tokens(dir, &mut said)?;
    complete_tokens(&mut json, &said, &specials);
    // Names of tokens are looked up in the file, since the tokenizer is not built yet.
    let named = |name: &str| specials.get(name).and_then(|it| id_of(&json, it));
    let bos = named("bos_token").or_else(|| ids(&config["bos_token_id"]).first().copied());
    let eos = named("eos_token");
    let options = Options {
        vocab,
        bos,
        eos,
        add_bos: said["add_bos_token"].as_bool(),
        add_eos: said["add_eos_token"].as_bool(),
    };
    let tokenizer = Tokenizer::new(json, &options, notes).map_err(|it| it.at(&path))?;
    let mut stop_tokens = ids(&generation["eos_token_id"]);
    if stop_tokens.is_empty() {
        stop_tokens = ids(&config["eos_token_id"]);
    }
    stop_tokens.extend(eos);
    stop_tokens.sort_unstable();
    stop_tokens.dedup();
    if let Some(beyond) = stop_tokens.iter().find(|it| vocab <= it.0 as usize) {
        let reason = format_args!("{} is no token of {vocab}", beyond.0);
        return Err(Fault::new("field \"eos_token_id\"", reason).at(dir));
    }
    let template = template(dir, &said, specials)?;
    Ok(TextSide { tokenizer, template, stop_tokens, bos })
}

/// A file that need not be there; null when it is not.
fn optional(dir: &Path, name: &str) -> Result<Value, LoadError> {
    let path = dir.join(name);
    if !path.exists() {
        return Ok(Value::Null);
    }
    read_json(&path, SMALL_BYTES_MAX).map_err(|it| it.at(&path))
}

/// Where `tokenizer_config.json` lists no tokens, `special_tokens_map.json` beside it counts more,
/// as older writers have it.
fn named_tokens(dir: &Path, said: &mut Value) -> Result<BTreeMap<String, String>, LoadError> {
    if said["added_tokens_decoder"].is_null()
        && let Value::Object(older) = optional(dir, "special_tokens_map.json")?
    {
        let keys = SPECIALS.iter().chain([&MORE_SPECIALS]);
        let older = keys.filter_map(|it| Some(((*it).to_owned(), older.get(*it)?.clone())));
        match &mut *said {
            Value::Object(it) => it.extend(older),
            it => *it = older.collect(),
        }
    }
    let text = |name: &&str| Some(((*name).to_owned(), text_of(&said[*name])?.to_owned()));
    Ok(SPECIALS.iter().filter_map(text).collect())
}

/// A token written as its text or as an object with one.
fn text_of(token: &Value) -> Option<&str> {
    token.as_str().or(token["content"].as_str())
}

/// Makes `added_tokens` of a `tokenizer.json` complete, as transformers does: how
/// `tokenizer_config.json` says that a token is found counts, and a special token is found in a
/// text though only the vocabulary has it.
fn complete_tokens(json: &mut Value, said: &Value, specials: &BTreeMap<String, String>) {
    let listed = said["added_tokens_decoder"].as_object().into_iter().flatten();
    let listed =
        listed.filter_map(|(id, it)| Some((id.parse().ok()?, it["content"].as_str()?, it)));
    let mut listed: Vec<(u64, &str, &Value)> = listed.collect();
    listed.sort_by_key(|it| it.0);
    let told: BTreeMap<_, _> = listed.iter().map(|it| (it.1, it.2)).collect();
    let mut tokens = json["added_tokens"].as_array().cloned().unwrap_or_default();
    let mut known = BTreeSet::from([String::new()]);
    let vocab = json["model"]["vocab"].as_object();
    // The number that the next token beside the vocabulary gets.
    let mut next = vocab.map_or(0, |it| it.len() as u64);
    for token in &mut tokens {
        let Some(text) = token["content"].as_str().map(str::to_owned) else { continue };
        if let Some(told) = told.get(&*text) {
            // What one of both calls special is.
            let is_special = token["special"] == true || told["special"] == true;
            set_flags(token, told, is_special);
        }
        known.insert(text);
        next = next.max(token["id"].as_u64().map_or(0, |it| it.saturating_add(1)));
    }
    let in_vocab = |text: &str| vocab.and_then(|it| it.get(text)).and_then(Value::as_u64);
    let mut add = |id: u64, text: &str, told: &Value, is_special: bool| {
        let mut token = json!({ "id": id, "content": text });
        set_flags(&mut token, told, is_special);
        tokens.push(token);
    };
    for (id, text, told) in listed {
        // One with a gap before it would get another number.
        let id = in_vocab(text).or((id == next).then_some(id));
        if let Some(id) = id.filter(|_| known.insert(text.to_owned())) {
            add(id, text, told, told["special"] == true);
            next = next.max(id.saturating_add(1));
        }
    }
    let more = said[MORE_SPECIALS].as_array().into_iter().flatten().filter_map(text_of);
    for text in specials.values().map(String::as_str).chain(more) {
        if let Some(id) = in_vocab(text).filter(|_| known.insert(text.to_owned())) {
            add(id, text, &Value::Null, true);
        }
    }
    if let Value::Object(object) = json {
        object.insert("added_tokens".to_owned(), Value::Array(tokens));
    }
}

/// Writes how a token is found in a text.
fn set_flags(token: &mut Value, told: &Value, is_special: bool) {
    for flag in ["normalized", "single_word", "lstrip", "rstrip"] {
        let known = token[flag].as_bool().unwrap_or(false);
        token[flag] = told[flag].as_bool().unwrap_or(known).into();
    }
    token["special"] = is_special.into();
}

/// The token of a text in a `tokenizer.json`.
fn id_of(json: &Value, text: &str) -> Option<TokenId> {
    let mut added = json["added_tokens"].as_array().into_iter().flatten();
    let added = added.find(|it| it["content"] == text).map(|it| &it["id"]);
    let id = added.unwrap_or(&json["model"]["vocab"][text]).as_u64()?;
    u32::try_from(id).ok().map(TokenId)
}

/// One token or a list of them.
fn ids(value: &Value) -> Vec<TokenId> {
    let id = |it: &Value| it.as_u64().and_then(|it| u32::try_from(it).ok()).map(TokenId);
    match value {
        Value::Array(items) => items.iter().filter_map(id).collect(),
        one => id(one).into_iter().collect(),
    }
}

/// The template in a file of its own, or in the tokenizer's configuration: one, or several by
/// name. The one for tools may be in a file of its own too.
fn template(
    dir: &Path,
    said: &Value,
    specials: BTreeMap<String, String>,
) -> Result<Option<ChatTemplate>, LoadError> {
    let mut sources = BTreeMap::new();
    if let Some(source) = source(&dir.join("chat_template.jinja"))? {
        sources.insert(DEFAULT.to_owned(), source);
    } else if let Some(source) = said["chat_template"].as_str() {
        sources.insert(DEFAULT.to_owned(), source.to_owned());
    } else {
        for named in said["chat_template"].as_array().into_iter().flatten() {
            let both = (named["name"].as_str(), named["template"].as_str());
            if let (Some(name), Some(source)) = both {
                sources.insert(name.to_owned(), source.to_owned());
            }
        }
    }
    // One for tools alone serves no chat without them.
    if sources.contains_key(DEFAULT)
        && let Some(source) = source(&dir.join("additional_chat_templates/tool_use.jinja"))?
    {
        sources.insert(WITH_TOOLS.to_owned(), source);
    }
    if sources.is_empty() {
        return Ok(None);
    }
    let template = ChatTemplate::new(sources, specials);
    template.map(Some).map_err(|it| Fault::new("chat template", it).at(dir))
}

/// What a file of its own holds, where there is one.
fn source(path: &Path) -> Result<Option<String>, LoadError> {
    if !path.exists() {
        return Ok(None);
    }
    let bytes = read_bytes(path, SMALL_BYTES_MAX).map_err(|it| it.at(path))?;
    let source = String::from_utf8(bytes);
    source.map(Some).map_err(|_| Fault::whole("not UTF-8").at(path))
}

#[cfg(test)]
mod tests;
