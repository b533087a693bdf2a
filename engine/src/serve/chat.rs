//! POST /v1/chat/completions: what it takes and how it writes.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::serve::answer::Refusal;
use crate::serve::calls::{Call, CallReader, Read};
use crate::serve::choice::{Delta, Ending};
use crate::serve::fields::{self, Fields};
use crate::serve::generate::Order;
use crate::serve::grammar::{self, Grammar};
use crate::serve::logprobs;
use crate::serve::ready::Ready;
use crate::serve::speech::Conversation;
use crate::serve::tools::Offer;
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
    /// For each answer what reads its calls, where tools are offered.
    readers: Vec<CallReader>,
    /// Names of calls begin with this.
    call_base: String,
}

/// What the request asks for; its unknown fields are left in `fields`.
pub async fn read(ready: &Arc<Ready>, fields: &mut Fields) -> Result<(Order, Chat), Refusal> {
    ready.check_model(fields)?;
    let (conversation, offer) = conversation(fields)?;
    let mut wishes = Wishes::take(fields, ready.bounds())?;
    let mut grammar = grammar::take(fields)?;
    let has_logprobs = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", TOP_LOGPROBS_MAX)?;
    if top.is_some_and(|it| 0 < it) && !has_logprobs {
        let message = "top_logprobs has a meaning only with logprobs: true";
        return Err(Refusal::field("top_logprobs", "invalid_value", message));
    }
    wishes.sampling.logprobs = has_logprobs.then_some(top.unwrap_or(0));
    let mut readers = Vec::new();
    if !offer.is_empty() {
        let form = ready.form().await?.ok_or_else(no_tools)?;
        if let Some(text) = offer.grammar(form, &*ready.speech) {
            if grammar.is_some() {
                let message = "a forced call and another format exclude each other";
                return Err(Refusal::field("tool_choice", "invalid_value", message));
            }
            grammar = Some((Grammar::Lark(text), "tools"));
        }
        // Tags of calls may be special tokens.
        wishes.skip_special_tokens = false;
        readers.extend((0..wishes.n).map(|_| CallReader::new(form, offer.several)));
    }
    let adds_special = fields.boolean("add_special_tokens")?.unwrap_or(false);
    let (role, before) = opening(&conversation, wishes.echo);
    let tokens = ready.encode_chat(conversation, adds_special).await?;
    let prompts = vec![(tokens, before.chars().count())];
    let new_max_default = None;
    let order = Order { prompts, wishes, grammar, new_max_default, prompt_param: "messages" };
    let call_base = format!("call_{:014x}", ready.seeds.draw());
    Ok((order, Chat { role, before, has_logprobs, readers, call_base }))
}

fn no_tools() -> Refusal {
    let message = "this model's chat template does not show tools to the model";
    Refusal::field("tools", "unsupported_parameter", message)
}

/// The fields that make the prompt.
pub fn conversation(fields: &mut Fields) -> Result<(Conversation, Offer), Refusal> {
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
    let offer = Offer::take(fields)?;
    let conversation = Conversation {
        messages,
        tools: (!offer.is_empty()).then(|| offer.tools.clone().into()),
        adds_generation_prompt: adds_prompt.unwrap_or(!continues),
        continues_final_message: continues,
        extra,
    };
    Ok((conversation, offer))
}

/// A message as templates expect it: its content as one string, and nothing that says nothing.
fn message(value: Value, path: &str) -> Result<Value, Refusal> {
    let Value::Object(mut message) = value else {
        return Err(fields::wrong_type(path, "an object", &value));
    };
    // Clients send answers back with every field that they know, and some templates take a field
    // that is there for one that is used.
    let is_empty = |name: &str, it: &Value| name == "tool_calls" && *it == json!([]);
    message.retain(|name, it| !(it.is_null() || is_empty(name, it)));
    match message.get("role") {
        Some(Value::String(_)) => {}
        Some(other) => return Err(fields::wrong_type(format!("{path}.role"), "a string", other)),
        None => return Err(fields::missing(&format!("{path}.role"))),
    }
    let content = match message.remove("content") {
        None => String::new(),
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => parts_text(parts, &format!("{path}.content"))?,
        Some(other) => {
            let path = format!("{path}.content");
            return Err(fields::wrong_type(path, "a string or a list of parts", &other));
        }
    };
    message.insert("content".to_owned(), content.into());
    if let Some(calls) = message.get_mut("tool_calls") {
        read_arguments(calls, &format!("{path}.tool_calls"))?;
    }
    Ok(message.into())
}

/// Clients send arguments as JSON in a string; templates expect what it stands for, and an object
/// where there are none.
fn read_arguments(calls: &mut Value, path: &str) -> Result<(), Refusal> {
    let Value::Array(calls) = calls else { return Err(fields::wrong_type(path, "a list", calls)) };
    for (at, call) in calls.iter_mut().enumerate() {
        let function = call.get_mut("function").and_then(Value::as_object_mut);
        let Some(function) = function else { continue };
        let arguments = function.entry("arguments").or_insert(Value::Null);
        if let Value::String(text) = &*arguments {
            let text = if text.trim().is_empty() { "null" } else { text };
            *arguments = serde_json::from_str(text).map_err(|error| {
                let path = format!("{path}[{at}].function.arguments");
                let message = format!("{path} is not JSON: {error}");
                Refusal::field(path, "invalid_value", message)
            })?;
        }
        if arguments.is_null() {
            *arguments = json!({});
        }
    }
    Ok(())
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

    /// What a part of a text turns out to be, and the number of its first call.
    fn read(&mut self, index: usize, delta: &Delta) -> (Read, u32) {
        let Some(reader) = self.readers.get_mut(index) else {
            return (Read { text: delta.text.clone(), calls: Vec::new() }, 0);
        };
        let first = reader.calls;
        let mut read = reader.push(&delta.text);
        if delta.finish.is_some() {
            let rest = reader.finish();
            read.text += &rest.text;
            read.calls.extend(rest.calls);
        }
        (read, first)
    }

    fn calls(&self, index: usize, calls: &[Call], first: u32) -> Vec<Value> {
        let call = |(number, call): (u32, &Call)| {
            json!({
                "index": number,
                "id": format!("{}{index:03}{number:03}", self.call_base),
                "type": "function",
                "function": { "name": call.name, "arguments": call.arguments },
            })
        };
        (first..).zip(calls).map(call).collect()
    }

    fn finish(&self, index: usize, delta: &Delta) -> Option<&'static str> {
        let has_called = self.readers.get(index).is_some_and(|it| 0 < it.calls);
        match delta.finish? {
            Ending::Stop if has_called => Some("tool_calls"),
            ending => Some(ending.name()),
        }
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

    fn delta(&mut self, ready: &Ready, index: usize, delta: &Delta) -> Option<Value> {
        let (read, first) = self.read(index, delta);
        let mut part = Map::new();
        if !read.text.is_empty() {
            part.insert("content".to_owned(), read.text.into());
        }
        if !read.calls.is_empty() {
            part.insert("tool_calls".to_owned(), self.calls(index, &read.calls, first).into());
        }
        let finish = self.finish(index, delta);
        if part.is_empty() && delta.logprobs.is_empty() && finish.is_none() {
            return None;
        }
        let logprobs = self.logprobs(ready, delta);
        Some(json!({ "delta": part, "logprobs": logprobs, "finish_reason": finish }))
    }

    fn whole(&mut self, ready: &Ready, index: usize, delta: &Delta) -> Value {
        let (read, first) = self.read(index, delta);
        let content = format!("{}{}", self.before, read.text);
        let is_empty = content.is_empty() && !read.calls.is_empty();
        let content = if is_empty { Value::Null } else { content.into() };
        let mut message = json!({ "role": self.role, "content": content, "refusal": null });
        if !read.calls.is_empty() {
            let mut calls = self.calls(index, &read.calls, first);
            for call in calls.iter_mut().filter_map(Value::as_object_mut) {
                call.shift_remove("index");
            }
            message["tool_calls"] = calls.into();
        }
        let finish = self.finish(index, delta);
        let logprobs = self.logprobs(ready, delta);
        json!({ "message": message, "logprobs": logprobs, "finish_reason": finish })
    }
}

#[cfg(test)]
mod tests;
