//! POST /v1/completions: what it takes and how it writes.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::batch::ids::TokenId;
use crate::serve::answer::Refusal;
use crate::serve::choice::Delta;
use crate::serve::fields::{self, Fields};
use crate::serve::generate::Order;
use crate::serve::grammar;
use crate::serve::logprobs::{self, Prompt};
use crate::serve::ready::Ready;
use crate::serve::wishes::{self, CHOICES_MAX, TOP_LOGPROBS_MAX, Wishes};
use crate::serve::writer::Shape;

/// Tokens of an answer when the client does not say.
const NEW_MAX: u32 = 16;

/// How answers are written.
#[derive(Debug)]
pub struct Completions {
    /// For each choice what is put before it.
    before: Vec<Before>,
    has_logprobs: bool,
}

/// A prompt that is put before its answers.
#[derive(Clone, Debug)]
struct Before {
    text: String,
    /// Where their log-probabilities are asked for.
    tokens: Vec<TokenId>,
    skips_special: bool,
}

/// One prompt as it was sent.
#[derive(Debug)]
enum Sent {
    Text(String),
    Tokens(Vec<TokenId>),
}

/// What the request asks for; its unknown fields are left in `fields`.
pub async fn read(
    ready: &Arc<Ready>,
    fields: &mut Fields,
) -> Result<(Order, Completions), Refusal> {
    ready.check_model(fields)?;
    let prompts = prompts(fields, ready.speech.vocab())?;
    let mut wishes = Wishes::take(fields, ready.bounds())?;
    let top = fields.count("logprobs", TOP_LOGPROBS_MAX)?;
    wishes.sampling.logprobs = top;
    let adds_special = fields.boolean("add_special_tokens")?.unwrap_or(true);
    let grammar = grammar::take(fields)?;
    let count = u32::try_from(prompts.len()).unwrap_or(u32::MAX);
    if CHOICES_MAX < count.saturating_mul(wishes.n) {
        let message = format!("{count} prompts times n = {} is more than {CHOICES_MAX}", wishes.n);
        return Err(Refusal::field("prompt", "invalid_value", message));
    }
    if wishes.echo && top.is_some() && !ready.about.scores_prompts {
        let message =
            "echo with logprobs is not supported on a GPU: prompts have no logprobs there";
        return Err(Refusal::field("echo", "unsupported_value", message));
    }
    wishes.sampling.prompt_logprobs = top.filter(|_| wishes.echo);
    let is_scored = wishes.sampling.prompt_logprobs.is_some();
    let mut order = Vec::with_capacity(prompts.len());
    let mut before = Vec::new();
    for prompt in prompts {
        let echo = match &prompt {
            _ if !wishes.echo => String::new(),
            Sent::Text(text) => text.clone(),
            Sent::Tokens(tokens) => ready.speech.decode(tokens, wishes.skip_special_tokens),
        };
        let tokens = match prompt {
            Sent::Text(text) => ready.encode(text, adds_special).await?,
            Sent::Tokens(tokens) => tokens,
        };
        if tokens.is_empty() {
            return Err(Refusal::field("prompt", "invalid_value", "prompt is empty"));
        }
        let skips_special = wishes.skip_special_tokens;
        let scored = if is_scored { tokens.clone() } else { Vec::new() };
        let one = Before { text: echo, tokens: scored, skips_special };
        order.push((tokens, one.text.chars().count()));
        before.extend((0..wishes.n).map(|_| one.clone()));
    }
    // Who wants at least so many has not asked for fewer.
    let new_max_default = Some(NEW_MAX.max(wishes.stops.tokens_min));
    let order = Order { prompts: order, wishes, grammar, new_max_default, prompt_param: "prompt" };
    Ok((order, Completions { before, has_logprobs: top.is_some() }))
}

/// A string, a list of strings, a list of token ids, or a list of such lists.
fn prompts(fields: &mut Fields, vocab: u32) -> Result<Vec<Sent>, Refusal> {
    let value = fields.value("prompt").ok_or_else(|| fields::missing("prompt"))?;
    let items = match value {
        Value::String(text) => return Ok(vec![Sent::Text(text)]),
        Value::Array(items) if !items.is_empty() => items,
        Value::Array(_) => {
            return Err(Refusal::field("prompt", "invalid_value", "prompt is an empty list"));
        }
        other => return Err(fields::wrong_type("prompt", "a string or a list", &other)),
    };
    if items[0].is_number() {
        return Ok(vec![Sent::Tokens(tokens(&items, "prompt", vocab)?)]);
    }
    let read = |(at, item): (usize, Value)| match item {
        Value::String(text) => Ok(Sent::Text(text)),
        Value::Array(ids) => tokens(&ids, &format!("prompt[{at}]"), vocab).map(Sent::Tokens),
        other => {
            let path = format!("prompt[{at}]");
            Err(fields::wrong_type(path, "a string or a list of token ids", &other))
        }
    };
    items.into_iter().enumerate().map(read).collect()
}

pub fn tokens(items: &[Value], path: &str, vocab: u32) -> Result<Vec<TokenId>, Refusal> {
    let read = |(at, item)| wishes::token(item, &format!("{path}[{at}]"), vocab);
    items.iter().enumerate().map(read).collect()
}

impl Completions {
    fn entry(&self, ready: &Ready, index: usize, text: &str, delta: &Delta) -> Map<String, Value> {
        let mut entry = Map::new();
        entry.insert("text".to_owned(), json!(text));
        let logprobs = self.has_logprobs.then(|| {
            let Before { tokens, skips_special, .. } = &self.before[index];
            let prompt = Prompt { tokens, skips_special: *skips_special, scores: &delta.prompt };
            logprobs::for_completions(ready, prompt, &delta.logprobs)
        });
        entry.insert("logprobs".to_owned(), json!(logprobs));
        entry.insert("finish_reason".to_owned(), json!(delta.finish.map(|it| it.name())));
        entry
    }
}

impl Shape for Completions {
    fn objects(&self) -> (&'static str, &'static str) {
        ("text_completion", "text_completion")
    }

    fn opening(&self, index: usize) -> Option<Value> {
        let before = &self.before[index].text;
        let entry = json!({ "text": before, "logprobs": null, "finish_reason": null });
        (!before.is_empty()).then_some(entry)
    }

    fn delta(&mut self, ready: &Ready, index: usize, delta: &Delta) -> Option<Value> {
        let has_logprobs = !delta.logprobs.is_empty() || !delta.prompt.is_empty();
        if delta.text.is_empty() && !has_logprobs && delta.finish.is_none() {
            return None;
        }
        Some(self.entry(ready, index, &delta.text, delta).into())
    }

    fn whole(&mut self, ready: &Ready, index: usize, delta: &Delta) -> Value {
        let text = format!("{}{}", self.before[index].text, delta.text);
        self.entry(ready, index, &text, delta).into()
    }
}
