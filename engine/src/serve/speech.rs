//! What the service needs of a model's language: text to tokens, tokens to text, chats to prompts.

use std::fmt;

use serde_json::{Map, Value};

use crate::batch::ids::TokenId;

/// The language of one model. Shared by all requests.
pub trait Speech: fmt::Debug + Send + Sync {
    /// Tokens that the model knows.
    fn vocab(&self) -> u32;

    /// Tokens that end a text by themselves.
    fn stop_tokens(&self) -> &[TokenId];

    /// The tokens of `text`. `adds_special` puts in front what the model expects there.
    fn encode(&self, text: &str, adds_special: bool) -> Vec<TokenId>;

    fn decode(&self, tokens: &[TokenId], skips_special: bool) -> String;

    /// The bytes that a token stands for, whole characters or not; its name if it is special.
    fn bytes(&self, token: TokenId) -> Vec<u8>;

    /// Whether a token is a mark between texts rather than a part of one.
    fn is_special(&self, token: TokenId) -> bool;

    /// Writes a text token by token.
    fn speller(&self, skips_special: bool) -> Box<dyn Speller>;

    /// The prompt for a conversation. The error is the client's: what the template objects to.
    fn render(&self, conversation: &Conversation) -> Result<String, String>;
}

/// Gives the text of tokens as soon as it is sure, never half a character.
pub trait Speller: fmt::Debug + Send {
    fn push(&mut self, token: TokenId) -> String;

    /// What was held back, once no token follows.
    fn finish(&mut self) -> String;
}

/// A chat as the template sees it.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// A list of messages, each an object with a role and a string for content.
    pub messages: Value,
    /// A list of tools.
    pub tools: Option<Value>,
    /// Whether the prompt ends where the assistant's turn begins.
    pub adds_generation_prompt: bool,
    /// Whether the prompt ends in the last message, which the answer goes on with.
    pub continues_final_message: bool,
    /// More values for the template.
    pub extra: Map<String, Value>,
}
