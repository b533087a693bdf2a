//! Turns tokens into text as they come, never half a character.

use crate::batch::ids::TokenId;
use crate::text::tokenizer::Tokenizer;

/// The text of one answer while it grows.
///
/// The pieces put together are [`Tokenizer::decode`] of all the tokens, or, for an answer that
/// continues a text, the same without the first space being dropped.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// Bytes of a character that is not complete: at most three.
    partial: Vec<u8>,
    /// Whether the next character is the first of a text, whose space some tokenizers invent.
    at_start: bool,
}

impl Detokenizer {
    /// For a text of its own.
    pub fn new(tokenizer: Tokenizer, skip_special: bool) -> Self {
        let at_start = tokenizer.invents_space();
        Self { tokenizer, skip_special, partial: Vec::new(), at_start }
    }

    /// For a text that continues another, as an answer continues its prompt.
    pub fn continuing(tokenizer: Tokenizer, skip_special: bool) -> Self {
        Self { tokenizer, skip_special, partial: Vec::new(), at_start: false }
    }

    /// The characters that `token` completes.
    pub fn push(&mut self, token: TokenId) -> String {
        if self.skip_special && self.tokenizer.is_special(token) {
            return String::new();
        }
        let mut bytes = std::mem::take(&mut self.partial);
        bytes.extend_from_slice(self.tokenizer.bytes(token));
        if self.at_start && !bytes.is_empty() {
            self.at_start = false;
            if bytes[0] == b' ' {
                bytes.remove(0);
            }
        }
        let (text, partial) = decoded(&bytes);
        self.partial = partial.to_vec();
        text
    }

    /// The text is over: a character that never was completed.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.partial)).into_owned()
    }
}

/// The text of `bytes`, wrong ones replaced as [`String::from_utf8_lossy`] does, and what at the
/// end may still become a character.
fn decoded(mut bytes: &[u8]) -> (String, &[u8]) {
    let mut text = String::new();
    loop {
        let error = match str::from_utf8(bytes) {
            Ok(rest) => {
                text.push_str(rest);
                return (text, &[]);
            }
            Err(error) => error,
        };
        let (right, rest) = bytes.split_at(error.valid_up_to());
        text.push_str(str::from_utf8(right).expect("checked up to here"));
        let Some(wrong) = error.error_len() else { return (text, rest) };
        text.push(char::REPLACEMENT_CHARACTER);
        bytes = &rest[wrong..];
    }
}

#[cfg(test)]
mod tests;
