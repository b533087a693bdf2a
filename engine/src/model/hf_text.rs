//! Tokenizer, chat template and end tokens of a Hugging Face folder.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::batch::ids::TokenId;
use crate::model::LoadError;
use crate::model::error::Fault;
use crate::model::fields::{read_bytes, read_json};
use crate::model::load::TextSide;
use crate::text::template::ChatTemplate;
use crate::text::tokenizer::{Options, Tokenizer};

const TOKENIZER_BYTES_MAX: u64 = 256 << 20;
const SMALL_BYTES_MAX: u64 = 16 << 20;

const SPECIALS: &[&str] = &["bos_token", "eos_token", "unk_token", "pad_token"];

/// Reads the folder `dir` of a model with `vocab` rows in its embedding.
pub(crate) fn read(
    dir: &Path,
    vocab: usize,
    notes: &mut Vec<String>,
) -> Result<TextSide, LoadError> {
    let path = dir.join("tokenizer.json");
    let json = read_json(&path, TOKENIZER_BYTES_MAX).map_err(|it| it.at(&path))?;
    let said = optional(dir, "tokenizer_config.json")?;
    let generation = optional(dir, "generation_config.json")?;
    let config = optional(dir, "config.json")?;
    let specials: BTreeMap<_, _> = SPECIALS.iter().filter_map(|it| special(&said, it)).collect();
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

/// A special token by its name, written as a text or as an object with one.
fn special(said: &Value, name: &&str) -> Option<(String, String)> {
    let text = said[*name].as_str().or(said[*name]["content"].as_str())?;
    Some(((*name).to_owned(), text.to_owned()))
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
/// name.
fn template(
    dir: &Path,
    said: &Value,
    specials: BTreeMap<String, String>,
) -> Result<Option<ChatTemplate>, LoadError> {
    const DEFAULT: &str = "default";
    let path = dir.join("chat_template.jinja");
    let mut sources = BTreeMap::new();
    if path.exists() {
        let bytes = read_bytes(&path, SMALL_BYTES_MAX).map_err(|it| it.at(&path))?;
        let source = String::from_utf8(bytes);
        let source = source.map_err(|_| Fault::whole("not UTF-8").at(&path))?;
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
    if sources.is_empty() {
        return Ok(None);
    }
    let template = ChatTemplate::new(sources, specials);
    template.map(Some).map_err(|it| Fault::new("chat template", it).at(dir))
}
