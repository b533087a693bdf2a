//! Text to tokens and back, from a `tokenizer.json` or from the metadata of a GGUF file.

use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use self::pieces::{Pieces, byte_of};
use crate::batch::ids::TokenId;
use crate::model::error::Fault;

pub(crate) mod gguf;
mod pieces;
mod spec;

/// A tokenizer. Clones share it.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    model: tokenizers::Tokenizer,
    pieces: Pieces,
    /// What stands before and after a text of its own, such as the token that begins it.
    before: Vec<TokenId>,
    after: Vec<TokenId>,
}

/// What a model says about its tokenizer beside the tokenizer itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Options {
    /// Rows of the embedding: a token beyond them does not exist.
    pub(crate) vocab: usize,
    pub(crate) bos: Option<TokenId>,
    pub(crate) eos: Option<TokenId>,
    /// Whether a text begins with `bos` and ends with `eos`, when the model says so itself.
    pub(crate) add_bos: Option<bool>,
    pub(crate) add_eos: Option<bool>,
}

impl Tokenizer {
    /// Builds it from the content of a `tokenizer.json`, after checking that it is of a kind
    /// that is supported and cannot fail later. What deserves a warning is added to `notes`.
    pub(crate) fn new(
        mut json: Value,
        options: &Options,
        notes: &mut Vec<String>,
    ) -> Result<Self, Fault> {
        spec::check(&mut json, options.vocab, notes)?;
        let pieces = Pieces::new(&json, options.vocab)?;
        let added = spec::added_tokens(&json)?;
        let model: tokenizers::Tokenizer = serde_json::from_value(json).map_err(Fault::whole)?;
        for token in added {
            let id = model.token_to_id(&token.content);
            if id != Some(token.id) {
                let place = format_args!("added token {:?}", token.content);
                return Err(Fault::new(place, format_args!("its id {} becomes {id:?}", token.id)));
            }
        }
        let mut inner = Inner { model, pieces, before: Vec::new(), after: Vec::new() };
        (inner.before, inner.after) = inner.surroundings(options)?;
        Ok(Self(Arc::new(inner)))
    }

    /// The tokens of `text`, in which the names of control tokens stand for these tokens.
    ///
    /// `own` says that the text is one of its own: it gets what the model wants around a text,
    /// such as a first token. The output of a chat template has that already.
    pub fn encode(&self, text: &str, own: bool) -> Vec<TokenId> {
        let tokens = self.0.encode(text);
        if !own {
            return tokens;
        }
        [&*self.0.before, &tokens, &self.0.after].concat()
    }

    /// The text of `tokens`, bytes that are no UTF-8 replaced.
    pub fn decode(&self, tokens: &[TokenId], skip_special: bool) -> String {
        let mut bytes = Vec::new();
        for token in tokens.iter().filter(|it| !skip_special || !self.is_special(**it)) {
            bytes.extend_from_slice(self.bytes(*token));
        }
        let invented = usize::from(self.invents_space() && bytes.first() == Some(&b' '));
        String::from_utf8_lossy(&bytes[invented..]).into_owned()
    }

    /// What a token adds to a text; nothing when there is no such token.
    pub fn bytes(&self, token: TokenId) -> &[u8] {
        self.0.pieces.bytes(token)
    }

    /// Whether it is a control token, which a reader of the text does not see.
    pub fn is_special(&self, token: TokenId) -> bool {
        self.0.pieces.is_special(token)
    }

    /// The token that is exactly this text, such as a control token by its name.
    pub fn token(&self, text: &str) -> Option<TokenId> {
        self.0.model.token_to_id(text).map(TokenId)
    }

    /// One more than the largest token.
    pub fn vocab(&self) -> usize {
        self.0.pieces.len()
    }

    /// Whether a text gets a space at its front when it is encoded, and loses it when decoded.
    pub(crate) fn invents_space(&self) -> bool {
        self.0.pieces.invents_space()
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Tokenizer").field("vocab", &self.vocab()).finish_non_exhaustive()
    }
}

impl Inner {
    fn encode(&self, text: &str) -> Vec<TokenId> {
        let encoding = self.model.encode_fast(text, false);
        let encoding = encoding.expect("byte pairs without dropout, its unknown token known");
        encoding.get_ids().iter().map(|it| TokenId(*it)).collect()
    }

    /// What stands around a text: as the post-processor puts it, corrected by what the model
    /// says itself.
    fn surroundings(&self, options: &Options) -> Result<(Vec<TokenId>, Vec<TokenId>), Fault> {
        let alone = self.encode("a");
        let whole = self.model.encode_fast("a", true).map_err(Fault::whole)?;
        let whole: Vec<_> = whole.get_ids().iter().map(|it| TokenId(*it)).collect();
        let start = whole.windows(alone.len().max(1)).position(|it| it == alone);
        let Some(start) = start else {
            return Err(Fault::new("post_processor", "changes more than the ends of a text"));
        };
        let mut before = whole[..start].to_vec();
        let mut after = whole[start + alone.len()..].to_vec();
        if let (Some(wanted), Some(bos)) = (options.add_bos, options.bos) {
            before.retain(|it| *it != bos);
            if wanted {
                before.insert(0, bos);
            }
        }
        if let (Some(wanted), Some(eos)) = (options.add_eos, options.eos) {
            after.retain(|it| *it != eos);
            if wanted {
                after.push(eos);
            }
        }
        let mut around = before.iter().chain(&after);
        if let Some(beyond) = around.find(|it| options.vocab <= it.0 as usize) {
            let (beyond, vocab) = (beyond.0, options.vocab);
            let reason =
                format_args!("{beyond}, which stands around a text, is no token of {vocab}");
            return Err(Fault::new("post_processor", reason));
        }
        Ok((before, after))
    }
}

/// A `tokenizer.json` in which each byte is a token.
pub(crate) fn byte_level() -> Value {
    let characters = (0..0x200_u32).filter_map(char::from_u32);
    let spelled = characters.filter_map(|it| Some((it.to_string(), json!(byte_of(it)?))));
    let vocab: Value = spelled.collect();
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true });
    json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": bytes,
        "post_processor": null, "decoder": bytes,
        "model": { "type": "BPE", "vocab": vocab, "merges": [] }
    })
}

#[cfg(test)]
pub(crate) mod tests;
