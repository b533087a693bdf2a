//! Renders a conversation as the prompt that a model was trained on, from its chat template.
//!
//! Templates are Jinja with what Hugging Face puts around it:
//! <https://huggingface.co/docs/transformers/chat_templating_writing>.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, ErrorKind, context};
use serde_json::{Map, Value as Json, json};

mod json;
mod python;

/// Instructions and, roughly, 64-byte pieces of data that one rendering may take: some tenths of
/// a second and 128 MiB at the very most.
const FUEL: u64 = 2_000_000;
/// The largest that are published have a tenth of this.
const TEMPLATE_BYTES_MAX: usize = 128 << 10;
const DEEP_MAX: usize = 128;
/// Time to compile a model's templates and to try them. Fuel does not bound all that a template can
/// make the engine do: sums of lists are worked out where nobody counts, some of them at once.
const TRIAL_MAX: Duration = Duration::from_secs(5);
/// A chain of operators as long as a template may be is read by recursion.
const TRIAL_STACK_BYTES: usize = 256 << 20;
/// Messages of the longest conversation that is tried.
const TRIAL_MESSAGES: usize = 40;

pub(crate) const DEFAULT: &str = "default";
/// Renders conversations with tools, where a model has it. Others are not used.
pub(crate) const WITH_TOOLS: &str = "tool_use";

/// OpenAI's newer name of the role `system`.
const DEVELOPER: &str = "developer";

/// The templates of a model. Clones share them.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    /// Names of special tokens, such as `bos_token`, and their texts.
    specials: BTreeMap<String, String>,
}

/// A conversation to be rendered.
#[derive(Clone, Copy, Debug)]
pub struct Chat<'a> {
    /// A list of messages, as the OpenAI API has them.
    pub messages: &'a Json,
    /// A list of tools, as the OpenAI API has them.
    pub tools: Option<&'a Json>,
    /// Ends with what begins an answer.
    pub add_generation_prompt: bool,
    /// Ends within the last message, which the answer continues.
    pub continue_final: bool,
    /// Variables for the template beside those above, which they cannot replace.
    pub kwargs: Option<&'a Map<String, Json>>,
}

/// Why a conversation has no prompt. All of them are for its sender to mend.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TemplateError {
    /// The template itself refuses the conversation, in its words.
    Refused(String),
    /// The conversation does not fit the template, or what is asked for makes no sense.
    Failed(String),
    /// Rendering took more steps or memory than any conversation should.
    TooMuch,
    /// Even short conversations take too long, or the template is too large: it is not used.
    Endless,
}

impl ChatTemplate {
    /// Compiles the `sources`, by their names, and tries them; one of them is "default".
    ///
    /// # Errors
    ///
    /// What is wrong with a template.
    pub fn new(
        sources: BTreeMap<String, String>,
        specials: BTreeMap<String, String>,
    ) -> Result<Self, TemplateError> {
        Self::new_within(TRIAL_MAX, sources, specials)
    }

    /// The same in a thread of its own, which is given up after `time_max`: whoever asked does not
    /// use the template, and most likely ends.
    fn new_within(
        time_max: Duration,
        sources: BTreeMap<String, String>,
        specials: BTreeMap<String, String>,
    ) -> Result<Self, TemplateError> {
        let (say, said) = mpsc::sync_channel(1);
        let trial = move || {
            let tried = Self::compile(sources, specials).and_then(|it| it.tried());
            // Nobody may be waiting any more.
            let _late = say.send(tried);
        };
        let thread = thread::Builder::new().name("template".to_owned());
        let spawned = thread.stack_size(TRIAL_STACK_BYTES).spawn(trial);
        spawned.map_err(|error| TemplateError::Failed(error.to_string()))?;
        said.recv_timeout(time_max).unwrap_or(Err(TemplateError::Endless))
    }

    fn compile(
        sources: BTreeMap<String, String>,
        specials: BTreeMap<String, String>,
    ) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        let lines = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(lines.map_err(TemplateError::from)?);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(DEEP_MAX);
        python::add(&mut environment);
        let used = |it: &(String, String)| [DEFAULT, WITH_TOOLS].contains(&&*it.0);
        for (name, source) in sources.into_iter().filter(used) {
            if TEMPLATE_BYTES_MAX < source.len() {
                return Err(TemplateError::Endless);
            }
            let source = python::without_generation_marks(&source);
            environment.add_template_owned(name, source).map_err(TemplateError::from)?;
        }
        environment.get_template(DEFAULT).map_err(TemplateError::from)?;
        Ok(Self { environment: Arc::new(environment), specials })
    }

    /// Gives the template back if short conversations are not too much for it. That it refuses them
    /// is its right.
    fn tried(self) -> Result<Self, TemplateError> {
        let tools = json!([{
            "type": "function", "function": { "name": "f", "parameters": { "type": "object" } }
        }]);
        for (count, tools) in [(1, None), (2, Some(&tools)), (TRIAL_MESSAGES, None)] {
            let message = |at: usize| {
                let role = if at.is_multiple_of(2) { "user" } else { "assistant" };
                json!({ "role": role, "content": "Hello" })
            };
            let messages: Json = (0..count).map(message).collect();
            let chat = Chat {
                messages: &messages,
                tools,
                add_generation_prompt: true,
                continue_final: false,
                kwargs: None,
            };
            if self.render(&chat, 0) == Err(TemplateError::TooMuch) {
                return Err(TemplateError::Endless);
            }
        }
        Ok(self)
    }

    /// The prompt of `chat`. Some templates tell the date: `now_s` is seconds since 1970, UTC.
    ///
    /// # Errors
    ///
    /// Why the conversation has no prompt.
    pub fn render(&self, chat: &Chat<'_>, now_s: i64) -> Result<String, TemplateError> {
        if chat.continue_final && chat.add_generation_prompt {
            let reason = "an answer either begins a message or continues one, not both";
            return Err(TemplateError::Failed(reason.to_owned()));
        }
        if !chat.continue_final {
            return self.show(chat, now_s);
        }
        let marked = Marked::new(chat)?;
        let mut prompt = self.show(&Chat { messages: &marked.messages, ..*chat }, now_s)?;
        let Some(end) = prompt.rfind(&marked.mark) else {
            let reason = "the template does not show the last message as it is";
            return Err(TemplateError::Failed(reason.to_owned()));
        };
        prompt.truncate(end);
        // A template that shows the message more than once has left marks before this one. Space
        // at the end is kept where the template keeps it.
        if !marked.space.is_empty() {
            let plain = self.show(chat, now_s)?;
            for before in [marked.space.as_str(), ""] {
                let spaced = prompt.replace(&marked.mark, before) + &marked.space;
                if plain.starts_with(&spaced) {
                    return Ok(spaced);
                }
            }
        }
        Ok(prompt.replace(&marked.mark, ""))
    }

    fn show(&self, chat: &Chat<'_>, now_s: i64) -> Result<String, TemplateError> {
        let named = |name| self.environment.get_template(name);
        let with_tools = chat.tools.and_then(|_| named(WITH_TOOLS).ok());
        let template = match with_tools {
            Some(template) => template,
            None => named(DEFAULT).map_err(TemplateError::from)?,
        };
        let mut variables: BTreeMap<String, Value> = BTreeMap::new();
        for (name, text) in &self.specials {
            variables.insert(name.clone(), Value::from(text.as_str()));
        }
        for (name, value) in chat.kwargs.into_iter().flatten() {
            variables.insert(name.clone(), Value::from(Serde(value)));
        }
        let knows_developers = template.source().contains(DEVELOPER);
        let renamed = if knows_developers { None } else { without_developers(chat.messages) };
        let fixed = context! {
            messages => Value::from(Serde(renamed.as_ref().unwrap_or(chat.messages))),
            tools => Value::from(Serde(chat.tools)),
            documents => (),
            add_generation_prompt => chat.add_generation_prompt,
            strftime_now => python::strftime(now_s),
        };
        let variables = context! { ..fixed, ..Value::from(variables) };
        template.render(variables).map_err(TemplateError::from)
    }
}

/// The messages with the older name of the role, if one has the newer: most templates know the
/// older one alone, and leave out what others say without a word.
fn without_developers(messages: &Json) -> Option<Json> {
    let is_developer = |it: &Json| it["role"] == DEVELOPER;
    messages.as_array().filter(|it| it.iter().any(is_developer))?;
    let mut messages = messages.clone();
    for message in messages.as_array_mut()?.iter_mut().filter(|it| is_developer(it)) {
        message["role"] = json!("system");
    }
    Some(messages)
}

/// A conversation with a mark behind its last words, at which its prompt is cut. The words alone
/// may be as short as `<`, and stand in what the template writes behind them too.
struct Marked {
    messages: Json,
    mark: String,
    /// What stood behind the words instead.
    space: String,
}

impl Marked {
    fn new(chat: &Chat<'_>) -> Result<Self, TemplateError> {
        let failed = |reason: &str| Err(TemplateError::Failed(reason.to_owned()));
        let mut messages = chat.messages.clone();
        let last = messages.as_array_mut().and_then(|it| it.last_mut());
        let Some(words) = last.and_then(|it| it.get_mut("content")).and_then(last_text) else {
            return failed("the last message has no text to continue");
        };
        let core = words.trim_end();
        if core.is_empty() {
            return failed("the last message is empty: there is nothing to continue");
        }
        let space = words[core.len()..].to_owned();
        let mark = mark(&json!([chat.messages, chat.tools, chat.kwargs]).to_string());
        *words = format!("{core}{mark}");
        Ok(Self { messages, mark, space })
    }
}

/// The text of a message's content, or of the last part of it that has one.
fn last_text(content: &mut Json) -> Option<&mut String> {
    match content {
        Json::String(text) => Some(text),
        Json::Array(parts) => {
            let mut texts = parts.iter_mut().filter_map(|it| it.get_mut("text"));
            texts.rfind(|it| it.is_string()).and_then(last_text)
        }
        _ => None,
    }
}

/// Letters that stand nowhere in `sent`.
fn mark(sent: &str) -> String {
    let longest = sent.split(|it| it != 'x').map(str::len).max().unwrap_or(0);
    format!("y{}y", "x".repeat(longest.max(16) + 1))
}

impl From<minijinja::Error> for TemplateError {
    fn from(error: minijinja::Error) -> Self {
        if error.kind() == ErrorKind::OutOfFuel {
            return Self::TooMuch;
        }
        if let Some(words) = python::raised(&error) {
            return Self::Refused(words);
        }
        Self::Failed(error.to_string().replace('\n', " "))
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(words) => write!(out, "the chat template refuses this: {words}"),
            Self::Failed(reason) => write!(out, "the chat template cannot show this: {reason}"),
            Self::TooMuch => out.write_str("the conversation is too much for the chat template"),
            Self::Endless => {
                let size = TEMPLATE_BYTES_MAX >> 10;
                let seconds = TRIAL_MAX.as_secs();
                write!(
                    out,
                    "the template is larger than {size} KiB, or short conversations take it more \
                     than {seconds} s or too much memory"
                )
            }
        }
    }
}

impl Error for TemplateError {}

#[cfg(test)]
mod tests;
