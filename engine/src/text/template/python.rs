//! What templates expect of Python and of Hugging Face beside Jinja itself.

use std::fmt;

use chrono::DateTime;
use chrono::format::{Item, StrftimeItems};
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, escape_formatter};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::DEEP_MAX;
use super::json::{float, to_json};

/// Of what is printed or written as JSON at once; an item counts as a few bytes at least.
const PRINTED_BYTES_MAX: usize = 16 << 20;
const ITEM_BYTES: usize = 8;

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
    environment.add_filter("string", string);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment.set_formatter(print_bounded);
}

/// Prints a value, lists only when they are of a size that conversations have. A list that was
/// doubled thirty times takes no room and no fuel until somebody looks at all of it.
fn print_bounded(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    check_size(value)?;
    match float_text(value) {
        Some(text) => out.write_str(&text).map_err(Error::from),
        None => escape_formatter(out, state, value),
    }
}

/// The filter `string`, which bounds what it writes as printing does.
fn string(value: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() {
        return Ok(value.clone());
    }
    check_size(value)?;
    Ok(Value::from(float_text(value).unwrap_or_else(|| value.to_string())))
}

fn float_text(value: &Value) -> Option<String> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    f64::try_from(value.clone()).ok().filter(|_| is_float).map(float)
}

/// The test `iterable`: none is not, though a loop over it would end at once.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// The test `sequence`: what has a length and items, in Python texts and dictionaries too.
fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Map, Seq, String, Undefined};
    matches!(value.kind(), Map | Seq | String | Undefined)
}

/// Refuses a value that is larger, or deeper, than conversations are.
pub(super) fn check_size(value: &Value) -> Result<(), Error> {
    if takes(value, &mut { PRINTED_BYTES_MAX }, 0) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::OutOfFuel, "a list too long"))
}

/// Takes what `value` prints, roughly, off `left`; false when that is too much.
fn takes(value: &Value, left: &mut usize, depth: usize) -> bool {
    let is_map = value.kind() == ValueKind::Map;
    let own = value.as_str().map_or(ITEM_BYTES, str::len);
    let Some(rest) = left.checked_sub(own) else { return false };
    *left = rest;
    if !is_map && !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return true;
    }
    let Ok(mut items) = value.try_iter() else { return true };
    depth < DEEP_MAX
        && items.all(|item| {
            let held = if is_map { value.get_item(&item) } else { Ok(item) };
            held.is_ok_and(|it| takes(&it, left, depth + 1))
        })
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
