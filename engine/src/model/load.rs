//! Reads a model from wherever the operator points: a GGUF file, a folder that holds one, or a
//! Hugging Face folder.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

use crate::batch::ids::TokenId;
use crate::model::error::Fault;
use crate::model::gguf::Gguf;
use crate::model::{LoadError, Model, from_gguf, from_safetensors, hf_text};
use crate::text::template::{ChatTemplate, DEFAULT, WITH_TOOLS};
use crate::text::tokenizer::{Tokenizer, gguf};

/// Everything of a model that a server needs.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub model: Model,
    pub tokenizer: Tokenizer,
    pub template: Option<ChatTemplate>,
    /// Tokens that end an answer, in their order.
    pub stop_tokens: Vec<TokenId>,
    /// The token that begins a text.
    pub bos: Option<TokenId>,
    /// What the operator should know, one line each.
    pub notes: Vec<String>,
}

/// What belongs to the text side of a model.
#[derive(Debug)]
pub(crate) struct TextSide {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) stop_tokens: Vec<TokenId>,
    pub(crate) bos: Option<TokenId>,
}

/// What kind of model a path names.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    Gguf(PathBuf),
    Folder(PathBuf),
}

/// Control tokens that end a turn, though a GGUF file often names only one end.
const TURN_ENDS: &[&str] = &["<|im_end|>", "<|eot_id|>", "<|eom_id|>"];

/// Reads the model at `path`: a GGUF file, a folder with one, or a folder with `config.json`.
///
/// # Errors
///
/// What is wrong with which file, in one line.
pub fn load(path: &Path) -> Result<Loaded, LoadError> {
    let mut notes = Vec::new();
    let (model, text) = match find(path)? {
        Place::Gguf(file) => {
            let mut gguf = from_gguf::open(&file)?;
            let model = from_gguf::model(&mut gguf, &stem(&file)).map_err(|it| it.at(&file))?;
            let text = gguf_text(&gguf, model.config.vocab, &mut notes);
            (model, text.map_err(|it| it.at(&file))?)
        }
        Place::Folder(dir) => {
            let model = from_safetensors::model(&dir, &stem(&dir), &mut notes)?;
            let text = hf_text::read(&dir, model.config.vocab, &mut notes)?;
            (model, text)
        }
    };
    let TextSide { tokenizer, template, stop_tokens, bos } = text;
    if template.is_none() {
        notes.push("no chat template: only plain completions are served".to_owned());
    }
    if stop_tokens.is_empty() {
        notes.push("no end token is known: answers end by length or stop string".to_owned());
    }
    Ok(Loaded { model, tokenizer, template, stop_tokens, bos, notes })
}

/// The weights alone, without the tokenizer.
///
/// # Errors
///
/// What is wrong with the file, when anything is.
pub fn load_model(path: &Path) -> Result<Model, LoadError> {
    match find(path)? {
        Place::Gguf(file) => {
            let mut gguf = from_gguf::open(&file)?;
            from_gguf::model(&mut gguf, &stem(&file)).map_err(|it| it.at(&file))
        }
        Place::Folder(dir) => from_safetensors::model(&dir, &stem(&dir), &mut Vec::new()),
    }
}

/// Tokenizer, template and ends of an open GGUF file.
fn gguf_text<S: Read + Seek>(
    gguf: &Gguf<S>,
    vocab: usize,
    notes: &mut Vec<String>,
) -> Result<TextSide, Fault> {
    const TEMPLATE: &str = "tokenizer.chat_template";
    let (json, options) = gguf::json(gguf, vocab)?;
    let tokenizer = Tokenizer::new(json, &options, notes);
    let tokenizer = tokenizer.map_err(|it| it.within("tokenizer"))?;
    let mut stop_tokens = Vec::new();
    for name in ["eos", "eot", "eom"] {
        let key = format!("tokenizer.ggml.{name}_token_id");
        stop_tokens.extend(gguf::token_id(gguf, &key, vocab)?);
    }
    let ends = TURN_ENDS.iter().filter_map(|it| tokenizer.token(it));
    stop_tokens.extend(ends.filter(|it| tokenizer.is_special(*it)));
    stop_tokens.sort_unstable();
    stop_tokens.dedup();
    let mut specials = BTreeMap::new();
    for (name, key) in [("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")] {
        let key = format!("tokenizer.ggml.{key}_token_id");
        if let Some(id) = gguf::token_id(gguf, &key, vocab)? {
            let text = String::from_utf8_lossy(tokenizer.bytes(id)).into_owned();
            specials.insert(format!("{name}_token"), text);
        }
    }
    let mut sources = BTreeMap::new();
    let tools = format!("{TEMPLATE}.{WITH_TOOLS}");
    for (name, key) in [(DEFAULT, TEMPLATE), (WITH_TOOLS, &*tools)] {
        let source = gguf.text(key)?.map(|it| (name.to_owned(), it.to_owned()));
        sources.extend(source);
    }
    // One for tools alone serves no chat without them.
    let sources = sources.contains_key(DEFAULT).then_some(sources);
    let template = sources.map(|it| ChatTemplate::new(it, specials)).transpose();
    let template = template.map_err(|it| Fault::new(TEMPLATE, it))?;
    Ok(TextSide { tokenizer, template, stop_tokens, bos: options.bos })
}

/// The file that `path` names, or what the folder that it names holds.
pub(crate) fn find(path: &Path) -> Result<Place, LoadError> {
    let fault = |it: std::io::Error| Fault::whole(it).at(path);
    // Links and dots are resolved, so that a folder named `.` has a name.
    let path = &fs::canonicalize(path).map_err(fault)?;
    if !path.is_dir() {
        return Ok(Place::Gguf(path.clone()));
    }
    if path.join("config.json").exists() {
        return Ok(Place::Folder(path.clone()));
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(fault)? {
        let entry = entry.map_err(fault)?.path();
        if entry.extension() == Some(OsStr::new("gguf")) {
            found.push(entry);
        }
    }
    match &*found {
        [one] => Ok(Place::Gguf(one.clone())),
        [] => Err(Fault::whole("the folder holds neither config.json nor a GGUF file").at(path)),
        _ => Err(Fault::whole("the folder holds several GGUF files: name one").at(path)),
    }
}

pub(crate) fn stem(path: &Path) -> String {
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    name.unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;
