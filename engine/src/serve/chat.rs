//! POST /v1/chat/completions: what it takes and how it writes.

use serde_json::{Map, Value, json};

use crate::serve::answer::Refusal;
use crate::serve::choice::Delta;
use crate::serve::fields::{self, Fields};
use crate::serve::generate::Order;
use crate::serve::logprobs;
use crate::serve::ready::Ready;
use crate::serve::speech::Conversation;
use crate::serve::wishes::{TOP_LOGPROBS_MAX, Wishes};
use crate::serve::writer::Shape;

const MESSAGES_MAX: usize = 10_000;

/// How answers are written.
#[derive(Debug)]
pub struct Chat {
    role: String,
    /// The text that is put before each answer.
    before: String,
    has_logprobs: bool,
}

/// What the request asks for; its unknown fields are left in `fields`.
pub async fn read(ready: &Ready, fields: &mut Fields) -> Result<(Order, Chat), Refusal> {
    ready.check_model(fields)?;
    let conversation = conversation(fields)?;
    let mut wishes = Wishes::take(fields, ready.bounds())?;
    let has_logprobs = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", TOP_LOGPROBS_MAX)?;
    if top.is_some_and(|it| 0 < it) && !has_logprobs {
        let message = "top_logprobs has a meaning only with logprobs: true";
        return Err(Refusal::field("top_logprobs", "invalid_value", message));
    }
    wishes.sampling.logprobs = has_logprobs.then_some(top.unwrap_or(0));
    let adds_special = fields.boolean("add_special_tokens")?.unwrap_or(false);
    let (role, before) = opening(&conversation, wishes.echo);
    let tokens = ready.encode_chat(conversation, adds_special).await?;
    let prompts = vec![(tokens, before.chars().count())];
    let order = Order { prompts, wishes, new_max_default: None, prompt_param: "messages" };
    Ok((order, Chat { role, before, has_logprobs }))
}

/// The fields that make the prompt.
pub fn conversation(fields: &mut Fields) -> Result<Conversation, Refusal> {
    let messages = match fields.list("messages", MESSAGES_MAX)? {
        Some(messages) if !messages.is_empty() => messages,
        Some(_) => return Err(Refusal::field("messages", "invalid_value", "messages is empty")),
        None => return Err(fields::missing("messages")),
    };
    let read = |(at, message)| self::message(message, &format!("messages[{at}]"));
    let messages = messages.into_iter().enumerate().map(read);
    let messages: Value = messages.collect::<Result<Vec<_>, _>>()?.into();
    let continues = fields.boolean("continue_final_message")?.unwrap_or(false);
    let adds_prompt = fields.boolean("add_generation_prompt")?;
    if continues && adds_prompt == Some(true) {
        let message = "continue_final_message and add_generation_prompt exclude each other";
        return Err(Refusal::field("continue_final_message", "invalid_value", message));
    }
    let extra = match fields.value("chat_template_kwargs") {
        None => Map::new(),
        Some(Value::Object(map)) => map,
        Some(other) => {
            return Err(fields::wrong_type("chat_template_kwargs", "an object", &other));
        }
    };
    refuse_tools(fields)?;
    Ok(Conversation {
        messages,
        tools: None,
        adds_generation_prompt: adds_prompt.unwrap_or(!continues),
        continues_final_message: continues,
        extra,
    })
}

fn refuse_tools(fields: &mut Fields) -> Result<(), Refusal> {
    fields.refuse("tools", &[json!([])])?;
    fields.refuse("tool_choice", &[json!("none"), json!("auto")])?;
    fields.boolean("parallel_tool_calls")?;
    fields.refuse("response_format", &[json!({ "type": "text" })])
}

/// A message with its content as one string, as templates expect it.
fn message(value: Value, path: &str) -> Result<Value, Refusal> {
    let Value::Object(mut message) = value else {
        return Err(fields::wrong_type(path, "an object", &value));
    };
    match message.get("role") {
        Some(Value::String(_)) => {}
        Some(other) => return Err(fields::wrong_type(format!("{path}.role"), "a string", other)),
        None => return Err(fields::missing(&format!("{path}.role"))),
    }
    let content = match message.remove("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => parts_text(parts, &format!("{path}.content"))?,
        Some(other) => {
            let path = format!("{path}.content");
            return Err(fields::wrong_type(path, "a string or a list of parts", &other));
        }
    };
    message.insert("content".to_owned(), content.into());
    Ok(message.into())
}

fn parts_text(parts: Vec<Value>, path: &str) -> Result<String, Refusal> {
    let mut text = String::new();
    for (at, part) in parts.into_iter().enumerate() {
        let path = format!("{path}[{at}]");
        let mut part = Fields::of(part, &path)?;
        let kind = part.string("type")?.unwrap_or_else(|| "text".to_owned());
        if kind != "text" {
            let message = format!("{path}.type is '{kind}', and this model reads text only");
            return Err(Refusal::field(format!("{path}.type"), "unsupported_value", message));
        }
        let piece = part.string("text")?;
        text += &piece.ok_or_else(|| fields::missing(&format!("{path}.text")))?;
    }
    Ok(text)
}

/// The role of the answer, and what an echo puts before it: the last message, if the answer is of
/// the same role.
fn opening(conversation: &Conversation, echo: bool) -> (String, String) {
    let messages = conversation.messages.as_array().expect("made a list");
    let last = messages.last().expect("checked not to be empty");
    let last_role = last["role"].as_str().expect("checked");
    let role = if conversation.adds_generation_prompt { "assistant" } else { last_role };
    let content = last["content"].as_str().expect("made a string");
    let before = if echo && last_role == role { content } else { "" };
    (role.to_owned(), before.to_owned())
}

impl Chat {
    fn logprobs(&self, ready: &Ready, delta: &Delta) -> Value {
        json!(self.has_logprobs.then(|| logprobs::for_chat(ready, &delta.logprobs)))
    }
}

impl Shape for Chat {
    fn objects(&self) -> (&'static str, &'static str) {
        ("chat.completion", "chat.completion.chunk")
    }

    fn opening(&self, _: usize) -> Option<Value> {
        let delta = json!({ "role": self.role, "content": self.before });
        Some(json!({ "delta": delta, "logprobs": null, "finish_reason": null }))
    }

    fn delta(&self, ready: &Ready, delta: &Delta) -> Value {
        let content = json!({ "content": delta.text });
        let content = if delta.text.is_empty() { json!({}) } else { content };
        let finish = delta.finish.map(|it| it.name());
        let logprobs = self.logprobs(ready, delta);
        json!({ "delta": content, "logprobs": logprobs, "finish_reason": finish })
    }

    fn whole(&self, ready: &Ready, _: usize, delta: &Delta) -> Value {
        let content = format!("{}{}", self.before, delta.text);
        let message = json!({ "role": self.role, "content": content, "refusal": null });
        let finish = delta.finish.map(|it| it.name());
        let logprobs = self.logprobs(ready, delta);
        json!({ "message": message, "logprobs": logprobs, "finish_reason": finish })
    }
}
