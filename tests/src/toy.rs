//! A language whose tokens are bytes, for tests of the service.

use engine::batch::ids::TokenId;
use engine::serve::speech::{Conversation, Speech, Speller};

/// Special tokens stand before the bytes.
const BYTES_START: u32 = 3;
pub const VOCAB: u32 = BYTES_START + 256;
/// Ends a text.
pub const END: TokenId = TokenId(2);
/// Stands before a text that is encoded with special tokens.
pub const BEGIN: TokenId = TokenId(1);

pub fn token(byte: u8) -> TokenId {
    TokenId(BYTES_START + u32::from(byte))
}

#[derive(Debug)]
pub struct Toy;

#[derive(Debug)]
struct ToySpeller {
    skips_special: bool,
    held: Vec<u8>,
}

impl Speech for Toy {
    fn vocab(&self) -> u32 {
        VOCAB
    }

    fn stop_tokens(&self) -> &[TokenId] {
        &[END]
    }

    fn encode(&self, text: &str, adds_special: bool) -> Vec<TokenId> {
        let begin = adds_special.then_some(BEGIN);
        begin.into_iter().chain(text.bytes().map(token)).collect()
    }

    fn decode(&self, tokens: &[TokenId], skips_special: bool) -> String {
        let mut speller = self.speller(skips_special);
        let mut text: String = tokens.iter().map(|it| speller.push(*it)).collect();
        text.push_str(&speller.finish());
        text
    }

    fn bytes(&self, token: TokenId) -> Vec<u8> {
        match token.0.checked_sub(BYTES_START) {
            Some(byte) => vec![u8::try_from(byte).expect("within the vocabulary")],
            None => format!("<{}>", token.0).into_bytes(),
        }
    }

    fn is_special(&self, token: TokenId) -> bool {
        token.0 < BYTES_START
    }

    fn speller(&self, skips_special: bool) -> Box<dyn Speller> {
        Box::new(ToySpeller { skips_special, held: Vec::new() })
    }

    /// `role>content` for each message, so that a parrot says the content of the last.
    fn render(&self, conversation: &Conversation) -> Result<String, String> {
        let line = |message: &serde_json::Value| {
            let role = message["role"].as_str().expect("checked");
            format!("{role}>{}", message["content"].as_str().expect("checked"))
        };
        let messages = conversation.messages.as_array().expect("a list");
        if messages.iter().any(|it| it["role"] == "nobody") {
            return Err("the role 'nobody' is not known to this model".to_owned());
        }
        let mut lines: Vec<String> = messages.iter().map(line).collect();
        if let Some(tools) = &conversation.tools {
            lines.insert(0, format!("tools>{tools}"));
        }
        if let Some(system) = conversation.extra.get("system") {
            lines.insert(0, format!("system>{system}"));
        }
        Ok(lines.join("\n"))
    }
}

impl Speller for ToySpeller {
    fn push(&mut self, token: TokenId) -> String {
        if BYTES_START <= token.0 || !self.skips_special {
            self.held.extend(Toy.bytes(token));
        }
        let whole = match std::str::from_utf8(&self.held) {
            Ok(text) => text.len(),
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => self.held.len(),
        };
        let rest = self.held.split_off(whole);
        String::from_utf8_lossy(&std::mem::replace(&mut self.held, rest)).into_owned()
    }

    fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}
