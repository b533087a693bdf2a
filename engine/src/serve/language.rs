//! The language of a loaded model: its tokenizer, its template, the tokens that end its texts.

use crate::batch::ids::TokenId;
use crate::clock;
use crate::serve::speech::{Conversation, Speech, Speller};
use crate::text::detokenizer::Detokenizer;
use crate::text::template::{Chat, ChatTemplate};
use crate::text::tokenizer::Tokenizer;

#[derive(Debug)]
pub struct Language {
    pub tokenizer: Tokenizer,
    pub template: Option<ChatTemplate>,
    pub stop_tokens: Vec<TokenId>,
    /// Tokens that the model can choose.
    pub vocab: u32,
}

impl Speech for Language {
    fn vocab(&self) -> u32 {
        self.vocab
    }

    fn stop_tokens(&self) -> &[TokenId] {
        &self.stop_tokens
    }

    fn encode(&self, text: &str, adds_special: bool) -> Vec<TokenId> {
        self.tokenizer.encode(text, adds_special)
    }

    fn decode(&self, tokens: &[TokenId], skips_special: bool) -> String {
        self.tokenizer.decode(tokens, skips_special)
    }

    fn bytes(&self, token: TokenId) -> Vec<u8> {
        self.tokenizer.bytes(token).to_vec()
    }

    fn is_special(&self, token: TokenId) -> bool {
        self.tokenizer.is_special(token)
    }

    fn speller(&self, skips_special: bool) -> Box<dyn Speller> {
        Box::new(Detokenizer::continuing(self.tokenizer.clone(), skips_special))
    }

    fn render(&self, conversation: &Conversation) -> Result<String, String> {
        let Some(template) = &self.template else {
            return Err("this model has no chat template: use /v1/completions".to_owned());
        };
        let chat = Chat {
            messages: &conversation.messages,
            tools: conversation.tools.as_ref(),
            add_generation_prompt: conversation.adds_generation_prompt,
            continue_final: conversation.continues_final_message,
            kwargs: Some(&conversation.extra),
        };
        let now_s = i64::try_from(clock::unix_seconds()).unwrap_or(i64::MAX);
        template.render(&chat, now_s).map_err(|error| error.to_string())
    }
}

impl Speller for Detokenizer {
    fn push(&mut self, token: TokenId) -> String {
        Self::push(self, token)
    }

    fn finish(&mut self) -> String {
        Self::finish(self)
    }
}
