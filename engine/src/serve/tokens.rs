//! POST /tokenize and /detokenize.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::serve::answer::Refusal;
use crate::serve::chat;
use crate::serve::completions;
use crate::serve::fields::{self, Fields};
use crate::serve::ready::Ready;

pub async fn tokenize(ready: &Ready, fields: &mut Fields) -> Result<Value, Refusal> {
    ready.check_model(fields)?;
    let adds_special = fields.boolean("add_special_tokens")?;
    let with_strings = fields.boolean("return_token_strs")?.unwrap_or(false);
    let tokens = match fields.string("prompt")? {
        Some(prompt) => ready.encode(prompt, adds_special.unwrap_or(true)).await?,
        None => {
            let (conversation, _) = chat::conversation(fields)?;
            ready.encode_chat(conversation, adds_special.unwrap_or(false)).await?
        }
    };
    let text = |token| String::from_utf8_lossy(&ready.speech.bytes(token)).into_owned();
    let strings: Option<Vec<String>> =
        with_strings.then(|| tokens.iter().map(|it| text(*it)).collect());
    Ok(json!({
        "count": tokens.len(),
        "max_model_len": ready.about.context_max,
        "tokens": tokens.iter().map(|it| it.0).collect::<Vec<_>>(),
        "token_strs": strings,
    }))
}

pub async fn detokenize(ready: &Ready, fields: &mut Fields) -> Result<Value, Refusal> {
    ready.check_model(fields)?;
    let items = fields.list("tokens", 10_000_000)?.ok_or_else(|| fields::missing("tokens"))?;
    let tokens = completions::tokens(&items, "tokens", ready.speech.vocab())?;
    let speech = Arc::clone(&ready.speech);
    let text = ready.aside.run("tokens", move || speech.decode(&tokens, false)).await?;
    Ok(json!({ "prompt": text }))
}
