//! What templates expect of Python and of Hugging Face beside Jinja itself.

use std::fmt::{self, Write};

use chrono::DateTime;
use chrono::format::{Item, StrftimeItems};
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, escape_formatter};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::json::to_json;

/// Of one list or mapping.
pub(super) const PRINTED_BYTES_MAX: usize = 16 << 20;

/// Words of a template that refuses a conversation.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// Adds the functions, filters and methods.
pub(super) fn add(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.add_function("raise_exception", |words: String| -> Result<Value, Error> {
        let error = Error::new(ErrorKind::InvalidOperation, "raise_exception");
        Err(error.with_source(Raised(words)))
    });
    environment.add_filter("tojson", to_json);
    environment.set_formatter(print_bounded);
}

/// Prints a value. The engine counts the text of a list only when it has been made, and a list
/// that was doubled sixty times takes no room until then.
fn print_bounded(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
        return escape_formatter(out, state, value);
    }
    let mut text = Bounded(String::new());
    write!(text, "{value}").map_err(|_| Error::new(ErrorKind::OutOfFuel, "a list too long"))?;
    out.write_str(&text.0).map_err(Error::from)
}

/// A text of at most [`PRINTED_BYTES_MAX`].
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if PRINTED_BYTES_MAX < self.0.len() + text.len() {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// The words that a template gave to `raise_exception`, when that is what happened.
pub(super) fn raised(error: &Error) -> Option<String> {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(it) = cause {
        if let Some(Raised(words)) = it.downcast_ref() {
            return Some(words.clone());
        }
        cause = it.source();
    }
    None
}

/// The function `strftime_now` at a time in seconds since 1970, UTC.
pub(super) fn strftime(now_s: i64) -> Value {
    Value::from_function(move |format: &str| -> Result<String, Error> {
        let wrong = || Error::new(ErrorKind::InvalidOperation, "strftime_now: no such format");
        let now = DateTime::from_timestamp(now_s, 0).ok_or_else(wrong)?;
        let items: Vec<_> = StrftimeItems::new(format).collect();
        if items.contains(&Item::Error) {
            return Err(wrong());
        }
        Ok(now.format_with_items(items.into_iter()).to_string())
    })
}

/// Training marks what the assistant said with `{% generation %}`, which prints what it holds.
pub(super) fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start + 2..].find("%}") else { break };
        let (tag, after) = rest[start..].split_at(2 + len);
        let word = tag[2..].trim_matches(|it: char| it.is_whitespace() || "+-".contains(it));
        out.push_str(&rest[..start]);
        match word {
            "generation" => out.push_str(&tag.replace(word, "if true")),
            "endgeneration" => out.push_str(&tag.replace(word, "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}
