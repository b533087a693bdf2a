//! Reads calls of tools from a text as it comes.

use serde_json::{Map, Value};

use crate::serve::tools::{CLOSE, Form, OPEN};
use crate::text::stop::StopStrings;

/// A call as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub name: String,
    /// JSON in a string, as clients expect it.
    pub arguments: String,
}

/// Reads calls from a text that comes in pieces.
#[derive(Debug)]
pub struct CallReader {
    form: Form,
    /// Whether there may be more than one call; others are dropped.
    several: bool,
    state: State,
    /// Space behind a call: nobody's text, unless text follows.
    space: String,
    has_called: bool,
    pub calls: u32,
}

#[derive(Debug)]
enum State {
    /// Text for the reader; the matcher looks for the tag that opens a call.
    Text(StopStrings),
    /// Within a call: what was read of it, and the matcher of the tag that closes it.
    Call(String, StopStrings),
    /// Nothing but space has come: a bare call may.
    Start(String),
    /// A bare call, or what looks like one so far.
    Bare(String),
    /// Text that is no bare call.
    Plain,
}

/// What a piece of text turned out to be.
#[derive(Debug, Default, PartialEq)]
pub struct Read {
    pub text: String,
    pub calls: Vec<Call>,
}

impl CallReader {
    pub fn new(form: Form, several: bool) -> Self {
        let state = match form {
            Form::Tagged => State::Text(matcher(OPEN)),
            Form::Bare => State::Start(String::new()),
        };
        Self { form, several, state, space: String::new(), has_called: false, calls: 0 }
    }

    pub fn push(&mut self, piece: &str) -> Read {
        let mut read = Read::default();
        let mut rest = piece.to_owned();
        while let Some(next) = self.step(&rest, &mut read) {
            rest = next;
        }
        self.count(read)
    }

    /// The text is over: what is left of it.
    pub fn finish(&mut self) -> Read {
        let mut read = Read::default();
        match &mut self.state {
            State::Text(matcher) => {
                let rest = matcher.finish();
                self.show(&rest, &mut read);
            }
            State::Call(seen, matcher) => {
                let body = std::mem::take(seen) + &matcher.finish();
                match call(&body, self.form) {
                    Some(call) => read.calls.push(call),
                    None => self.show(&format!("{OPEN}{body}"), &mut read),
                }
            }
            State::Start(text) | State::Bare(text) => {
                let text = std::mem::take(text);
                match bare_calls(&text, self.form) {
                    Some(calls) => read.calls = calls,
                    None => read.text = text,
                }
            }
            State::Plain => {}
        }
        self.count(read)
    }

    fn show(&mut self, text: &str, read: &mut Read) {
        self.space.push_str(text);
        let end = if self.has_called { self.space.trim_end().len() } else { self.space.len() };
        read.text.extend(self.space.drain(..end));
    }

    fn count(&mut self, mut read: Read) -> Read {
        if !self.several {
            read.calls.truncate(usize::from(self.calls == 0));
        }
        self.calls += u32::try_from(read.calls.len()).expect("few in a text");
        read
    }

    /// Reads up to the next change of state; gives what stands behind it.
    fn step(&mut self, piece: &str, read: &mut Read) -> Option<String> {
        match &mut self.state {
            State::Plain => read.text.push_str(piece),
            State::Bare(seen) => seen.push_str(piece),
            State::Start(seen) => {
                seen.push_str(piece);
                let text = seen.trim_start().trim_start_matches("<|python_tag|>");
                let is_open = text.is_empty() || "<|python_tag|>".starts_with(text);
                if text.starts_with('{') {
                    self.state = State::Bare(text.to_owned());
                } else if !is_open {
                    read.text.push_str(seen);
                    self.state = State::Plain;
                }
            }
            State::Text(matcher) => {
                let (shown, rest) = cut(matcher, piece, OPEN);
                self.show(&shown, read);
                let rest = rest?;
                self.state = State::Call(String::new(), self::matcher(CLOSE));
                return Some(rest);
            }
            State::Call(seen, matcher) => {
                let (shown, rest) = cut(matcher, piece, CLOSE);
                seen.push_str(&shown);
                let rest = rest?;
                match call(seen, self.form) {
                    Some(call) => {
                        read.calls.push(call);
                        self.has_called = true;
                        self.space.clear();
                    }
                    None => {
                        let text = format!("{OPEN}{seen}{CLOSE}");
                        self.show(&text, read);
                    }
                }
                self.state = State::Text(self::matcher(OPEN));
                return Some(rest);
            }
        }
        None
    }
}

fn matcher(tag: &str) -> StopStrings {
    StopStrings::new(&[tag.to_owned()], false)
}

/// What stands before the tag as far as it is sure, and what behind it once it is complete.
fn cut(matcher: &mut StopStrings, piece: &str, tag: &str) -> (String, Option<String>) {
    let mut shown = String::new();
    for (at, character) in piece.char_indices() {
        let end = at + character.len_utf8();
        let released = matcher.push(&piece[at..end]);
        shown += &released.text;
        if released.stopped.is_some() {
            debug_assert!(piece[..end].ends_with('>') && tag.ends_with('>'));
            return (shown, Some(piece[end..].to_owned()));
        }
    }
    (shown, None)
}

/// The call that an object describes.
fn call(text: &str, form: Form) -> Option<Call> {
    let object: Map<String, Value> = serde_json::from_str(text.trim()).ok()?;
    of_object(&object, form)
}

fn of_object(object: &Map<String, Value>, form: Form) -> Option<Call> {
    let name = object.get("name")?.as_str()?.to_owned();
    let keys = [form.arguments_key(), "arguments", "parameters"];
    let arguments = keys.iter().find_map(|key| object.get(*key));
    let arguments = match arguments {
        None => "{}".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value @ Value::Object(_)) => value.to_string(),
        Some(_) => return None,
    };
    Some(Call { name, arguments })
}

/// The calls that a whole text consists of, apart from each other by nothing, space or `;`.
fn bare_calls(text: &str, form: Form) -> Option<Vec<Call>> {
    let mut calls = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let mut objects = serde_json::Deserializer::from_str(rest).into_iter();
        let object: Map<String, Value> = objects.next()?.ok()?;
        object.get(form.arguments_key()).or(object.get("arguments"))?;
        calls.push(of_object(&object, form)?);
        let end = objects.byte_offset();
        rest = rest[end..].trim_start_matches(|it: char| it == ';' || it.is_whitespace());
    }
    (!calls.is_empty()).then_some(calls)
}

#[cfg(test)]
mod tests;
