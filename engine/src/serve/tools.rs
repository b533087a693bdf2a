//! Tools: what a request offers, and the grammar that a forced call must match.

use serde_json::{Value, json};

use crate::serve::answer::Refusal;
use crate::serve::fields::{self, Fields};
use crate::serve::speech::{Conversation, Speech};

const TOOLS_MAX: usize = 128;
const NAME_BYTES_MAX: usize = 64;
pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";

/// How a model writes a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Hermes and Qwen do.
    Tagged,
    /// `{"name": ..., "parameters": {...}}` as the whole text, as Llama 3 does.
    Bare,
}

impl Form {
    /// What the chat template asks the model for; `None` if it does not show tools at all.
    pub fn of(speech: &dyn Speech) -> Option<Self> {
        let function = json!({ "name": "look", "description": "", "parameters": {} });
        let mut conversation = Conversation {
            messages: json!([{ "role": "user", "content": "Hello" }]),
            adds_generation_prompt: true,
            ..Conversation::default()
        };
        let plain = speech.render(&conversation).ok()?;
        conversation.tools = Some(json!([{ "type": "function", "function": function }]));
        let with_tools = speech.render(&conversation).ok()?;
        match with_tools {
            it if it == plain => None,
            it if it.contains("dictionary of argument name") => Some(Self::Bare),
            _ => Some(Self::Tagged),
        }
    }

    pub(super) fn arguments_key(self) -> &'static str {
        match self {
            Self::Tagged => "arguments",
            Self::Bare => "parameters",
        }
    }
}

/// What a request offers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Offer {
    /// As they came, for the template.
    pub tools: Vec<Value>,
    pub force: Force,
    /// Whether a text may have more than one call.
    pub several: bool,
}

/// Whether the model must call.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Force {
    /// It may not: the tools are not shown to it.
    Never,
    #[default]
    Free,
    /// It must call one of them.
    Any,
    /// It must call this one.
    Named(String),
}

impl Offer {
    /// Takes `tools`, `tool_choice` and `parallel_tool_calls`.
    pub fn take(fields: &mut Fields) -> Result<Self, Refusal> {
        let tools = fields.list("tools", TOOLS_MAX)?.unwrap_or_default();
        for (at, tool) in tools.iter().enumerate() {
            check_tool(tool, &format!("tools[{at}]"))?;
        }
        let force = force(fields)?;
        let several = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
        let is_forced = matches!(force, Force::Any | Force::Named(_));
        if tools.is_empty() && is_forced {
            let message = "tool_choice asks for a call, and there are no tools";
            return Err(Refusal::field("tool_choice", "invalid_value", message));
        }
        let offer = Self { tools, force, several };
        if let Force::Named(name) = &offer.force
            && !offer.names().any(|it| it == name)
        {
            let message = format!("tool_choice names '{name}', which is not among the tools");
            return Err(Refusal::field("tool_choice", "invalid_value", message));
        }
        Ok(offer)
    }

    pub fn is_empty(&self) -> bool {
        self.tools.is_empty() || self.force == Force::Never
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().filter_map(|it| it["function"]["name"].as_str())
    }

    /// The grammar of a text that must call, in llguidance's Lark form.
    pub fn grammar(&self, form: Form, speech: &dyn Speech) -> Option<String> {
        let wanted: Vec<&Value> = match &self.force {
            Force::Never | Force::Free => return None,
            Force::Any => self.tools.iter().collect(),
            Force::Named(name) => {
                self.tools.iter().filter(|it| it["function"]["name"] == **name).collect()
            }
        };
        let key = form.arguments_key();
        let call = |(at, tool): (usize, &&Value)| {
            let function = &tool["function"];
            let mut parameters = function["parameters"].clone();
            // Nothing is said of them; that they are an object holds all the same.
            if parameters.is_null() || parameters == json!({}) {
                parameters = json!({ "type": "object" });
            }
            let one = if wanted.len() == 1 { String::new() } else { format!("/anyOf/{at}") };
            rebase(&mut parameters, &format!("#{one}/properties/{key}"));
            json!({
                "type": "object",
                "properties": {
                    "name": { "const": function["name"] },
                    key: parameters,
                },
                "required": ["name", key],
                "additionalProperties": false,
            })
        };
        let calls: Vec<Value> = wanted.iter().enumerate().map(call).collect();
        let schema = if calls.len() == 1 { calls[0].clone() } else { json!({ "anyOf": calls }) };
        let is_several = self.several && self.force == Force::Any && form == Form::Tagged;
        let start = if is_several { "call (\"\\n\" call)*" } else { "call" };
        let (open, close) = match form {
            Form::Bare => (String::new(), String::new()),
            Form::Tagged => {
                (tag(OPEN, speech) + " \"\\n\" ", format!(" \"\\n\" {}", tag(CLOSE, speech)))
            }
        };
        Some(format!("start: {start}\ncall: {open}json{close}\njson: %json {schema}"))
    }
}

/// Lets references that begin at a schema's own start begin at `root`, where it stands now. Those
/// to an anchor by its name (`#name`) find it wherever it stands.
fn rebase(schema: &mut Value, root: &str) {
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "$ref" => {
                        if let Some(rest) = text.strip_prefix('#')
                            && (rest.is_empty() || rest.starts_with('/'))
                        {
                            *text = format!("{root}{rest}");
                        }
                    }
                    value => rebase(value, root),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|it| rebase(it, root)),
        _ => {}
    }
}

/// A tag as a token of its own where the model has one that text cannot spell, else as text.
fn tag(tag: &str, speech: &dyn Speech) -> String {
    match speech.encode(tag, false).as_slice() {
        [token] if speech.is_special(*token) => tag.to_owned(),
        _ => format!("\"{tag}\""),
    }
}

fn check_tool(tool: &Value, path: &str) -> Result<(), Refusal> {
    let mut tool = Fields::of(tool.clone(), path)?;
    let kind = tool.string("type")?;
    if kind.as_deref() != Some("function") {
        let path = format!("{path}.type");
        let message = format!("{path} must be 'function'");
        return Err(Refusal::field(path, "unsupported_value", message));
    }
    let function = tool.object("function")?;
    let mut function = function.ok_or_else(|| fields::missing(&format!("{path}.function")))?;
    let path = format!("{path}.function.name");
    let name = function.string("name")?.ok_or_else(|| fields::missing(&path))?;
    let is_plain = |it: u8| it.is_ascii_alphanumeric() || b"_-.".contains(&it);
    if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(is_plain) {
        let message = format!("{path} must have 1 to {NAME_BYTES_MAX} letters, digits, _, - or .");
        return Err(Refusal::field(path, "invalid_value", message));
    }
    function.string("description")?;
    function.object("parameters")?;
    Ok(())
}

fn force(fields: &mut Fields) -> Result<Force, Refusal> {
    match fields.value("tool_choice") {
        None => Ok(Force::Free),
        Some(Value::String(word)) => match word.as_str() {
            "none" => Ok(Force::Never),
            "auto" => Ok(Force::Free),
            "required" => Ok(Force::Any),
            _ => {
                let message = format!("tool_choice must be none, auto or required, not '{word}'");
                Err(Refusal::field("tool_choice", "invalid_value", message))
            }
        },
        Some(value) => {
            let mut choice = Fields::of(value, "tool_choice")?;
            let function = choice.object("function")?;
            let mut function = function.ok_or_else(|| fields::missing("tool_choice.function"))?;
            let name = function.string("name")?;
            Ok(Force::Named(name.ok_or_else(|| fields::missing("tool_choice.function.name"))?))
        }
    }
}

#[cfg(test)]
mod tests;
