//! Texts that must match: a JSON schema, a pattern, a grammar or one of several strings.

use std::fmt;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use crate::batch::guide::{Guide, Stuck};
use crate::batch::ids::TokenId;
use crate::serve::answer::Refusal;
use crate::serve::fields::{self, Fields};
use crate::serve::speech::Speech;

const CHOICES_MAX: usize = 1024;
/// Some grammars take time, in this engine's loop too, that grows with the square of their length.
const BYTES_MAX: usize = 64 << 10;
/// Rules and schemas that lead to others are read by recursion: chains of them as long as a grammar
/// may be took 18 MiB in a build without most optimisations.
const STACK_BYTES: usize = 256 << 20;

/// What a text must match.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// JSON that fits a schema.
    Json(Value),
    /// A regular expression, from start to end.
    Regex(String),
    /// One of these.
    Choice(Vec<String>),
    /// A grammar in the Lark form of llguidance.
    Lark(String),
}

impl Grammar {
    /// Bytes of the text that says it.
    fn bytes(&self) -> usize {
        match self {
            Self::Json(schema) => schema.to_string().len(),
            Self::Regex(text) | Self::Lark(text) => text.len(),
            Self::Choice(texts) => texts.iter().map(String::len).sum(),
        }
    }
}

/// Takes `response_format` and `structured_outputs`; gives the grammar and the field it stood in.
pub fn take(fields: &mut Fields) -> Result<Option<(Grammar, &'static str)>, Refusal> {
    let format = response_format(fields)?.map(|it| (it, "response_format"));
    let outputs = structured_outputs(fields)?.map(|it| (it, "structured_outputs"));
    match (format, outputs) {
        (Some(_), Some(_)) => {
            let message = "give either response_format or structured_outputs";
            Err(Refusal::field("structured_outputs", "invalid_value", message))
        }
        (format, outputs) => Ok(format.or(outputs)),
    }
}

fn response_format(fields: &mut Fields) -> Result<Option<Grammar>, Refusal> {
    let Some(mut format) = fields.object("response_format")? else { return Ok(None) };
    let kind = format.string("type")?.ok_or_else(|| fields::missing("response_format.type"))?;
    match kind.as_str() {
        "text" => Ok(None),
        "json_object" => Ok(Some(Grammar::Json(json!({ "type": "object" })))),
        "json_schema" => {
            let named = format.object("json_schema")?;
            let path = "response_format.json_schema";
            let mut named = named.ok_or_else(|| fields::missing(path))?;
            let schema = named.value("schema");
            Ok(Some(Grammar::Json(
                schema.ok_or_else(|| fields::missing(&format!("{path}.schema")))?,
            )))
        }
        _ => {
            let message = format!(
                "response_format.type must be text, json_object or json_schema, and is '{kind}'"
            );
            Err(Refusal::field("response_format.type", "unsupported_value", message))
        }
    }
}

fn structured_outputs(fields: &mut Fields) -> Result<Option<Grammar>, Refusal> {
    let Some(mut outputs) = fields.object("structured_outputs")? else { return Ok(None) };
    let mut found = Vec::new();
    if let Some(schema) = outputs.value("json") {
        found.push(Grammar::Json(match schema {
            Value::String(text) => serde_json::from_str(&text).map_err(|error| {
                let path = "structured_outputs.json";
                Refusal::field(path, "invalid_value", format!("{path} is not JSON: {error}"))
            })?,
            schema => schema,
        }));
    }
    found.extend(outputs.string("regex")?.map(Grammar::Regex));
    found.extend(outputs.string("grammar")?.map(Grammar::Lark));
    if let Some(items) = outputs.list("choice", CHOICES_MAX)? {
        let text = |(at, item)| match item {
            Value::String(text) => Ok(text),
            other => {
                let path = format!("structured_outputs.choice[{at}]");
                Err(fields::wrong_type(path, "a string", &other))
            }
        };
        let texts = items.into_iter().enumerate().map(text).collect::<Result<Vec<_>, _>>()?;
        if texts.is_empty() {
            let path = "structured_outputs.choice";
            return Err(Refusal::field(path, "invalid_value", format!("{path} is empty")));
        }
        found.push(Grammar::Choice(texts));
    }
    if let Some(name) = outputs.left().first() {
        return Err(Refusal::field(name, "unknown_parameter", format!("{name} is not known")));
    }
    if found.len() == 1 {
        return Ok(found.pop());
    }
    let message = "structured_outputs must have one of json, regex, choice and grammar";
    Err(Refusal::field("structured_outputs", "invalid_value", message))
}

/// Makes guides for one model's tokens.
pub struct Grammars(ParserFactory);

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

impl Grammars {
    /// Sorts the model's tokens by their bytes. The error is for the client: this model cannot.
    pub fn new(speech: &dyn Speech) -> Result<Self, String> {
        let ends: Vec<u32> = speech.stop_tokens().iter().map(|it| it.0).collect();
        let Some(&end) = ends.first() else {
            return Err("this model has no token that ends a text".to_owned());
        };
        let word = |id| {
            let bytes = speech.bytes(TokenId(id));
            let is_name = speech.is_special(TokenId(id)) && !bytes.is_empty();
            if is_name { [&[TokTrie::SPECIAL_TOKEN_MARKER], &*bytes].concat() } else { bytes }
        };
        let words: Vec<Vec<u8>> = (0..speech.vocab()).map(word).collect();
        let trie = TokTrie::from(&TokRxInfo::new(speech.vocab(), end), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie.with_eos_tokens(&ends)));
        let mut factory = ParserFactory::new_simple(&env).map_err(|error| error.to_string())?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits { verbose_errors: false, ..ParserLimits::default() };
        Ok(Self(factory))
    }

    /// `count` guides, each at the start of the grammar. The error says what is wrong with it.
    pub fn guides(&self, grammar: &Grammar, count: usize) -> Result<Vec<Box<dyn Guide>>, String> {
        let bytes = grammar.bytes();
        if BYTES_MAX < bytes {
            return Err(format!("it has {bytes} bytes, and {BYTES_MAX} is the most"));
        }
        thread::scope(|scope| {
            let thread = thread::Builder::new().name("grammar".to_owned()).stack_size(STACK_BYTES);
            let compiling = thread.spawn_scoped(scope, || self.compile(grammar, count));
            let compiling = compiling.map_err(|error| error.to_string())?;
            compiling.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    fn compile(&self, grammar: &Grammar, count: usize) -> Result<Vec<Box<dyn Guide>>, String> {
        let grammar = match grammar {
            Grammar::Json(schema) => TopLevelGrammar::from_json_schema(schema.clone()),
            Grammar::Regex(pattern) => TopLevelGrammar::from_regex(pattern),
            Grammar::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
            Grammar::Choice(texts) => {
                let quoted: Vec<String> = texts.iter().map(|it| json!(it).to_string()).collect();
                TopLevelGrammar::from_lark(format!("start: {}", quoted.join(" | ")))
            }
        };
        let matcher = Matcher::new(self.0.create_parser(grammar));
        if let Some(error) = matcher.get_error() {
            return Err(error.lines().next().unwrap_or_default().to_owned());
        }
        let copies: Vec<Matcher> = (0..count).map(|_| matcher.deep_clone()).collect();
        let start = Arc::new(Mutex::new(matcher));
        let walker = |matcher| {
            let start = Arc::clone(&start);
            Box::new(Walker { matcher, start, walked: Vec::new() }) as Box<dyn Guide>
        };
        Ok(copies.into_iter().map(walker).collect())
    }
}

/// Walks a grammar.
struct Walker {
    matcher: Matcher,
    /// As it was before any token.
    start: Arc<Mutex<Matcher>>,
    walked: Vec<u32>,
}

impl Walker {
    /// Walks from the start. A matcher that failed once fails for ever, but a text must not end
    /// by a token that was only tried.
    fn walk_again(&mut self) {
        self.matcher = self.start.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        // It was possible before; if it is not now, the next mask says so.
        let _walked = self.matcher.try_consume_tokens(&self.walked);
    }
}

impl fmt::Debug for Walker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Walker").field("stop", &self.matcher.stop_reason()).finish_non_exhaustive()
    }
}

impl Guide for Walker {
    fn allow(&mut self, mask: &mut [u32]) -> Result<(), Stuck> {
        let allowed = self.matcher.compute_mask_or_eos();
        let allowed = allowed.map_err(|error| Stuck { detail: error.to_string() })?;
        if allowed.is_zero() {
            return Err(Stuck { detail: "no token can follow".to_owned() });
        }
        for (word, bits) in mask.iter_mut().zip(allowed.as_slice()) {
            *word = *bits;
        }
        Ok(())
    }

    fn advance(&mut self, token: TokenId) -> bool {
        let fits = !self.matcher.is_stopped()
            && self.matcher.try_consume_tokens(&[token.0]).is_ok_and(|it| it == 1);
        if fits {
            self.walked.push(token.0);
        }
        fits
    }

    fn rewind(&mut self, tokens: u32) {
        self.walked.truncate(self.walked.len() - tokens as usize);
        if self.matcher.rollback(tokens as usize).is_err() {
            self.walk_again();
        }
    }

    fn is_complete(&self) -> bool {
        self.matcher.is_stopped()
    }
}

#[cfg(test)]
mod tests;
