//! The fields of a JSON request, taken one by one: what is wrong is named, what is left over too.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::serve::answer::Refusal;

/// An object whose fields are taken by name. A field that is null counts as absent.
#[derive(Debug)]
pub struct Fields {
    map: Map<String, Value>,
    /// Where the object stands in the request: empty, or a path that ends in a dot.
    prefix: String,
}

impl Fields {
    pub fn parse(body: &[u8]) -> Result<Self, Refusal> {
        let malformed = |message| Refusal::Malformed { message };
        if body.is_empty() {
            return Err(malformed("the request has no body".to_owned()));
        }
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Self { map, prefix: String::new() }),
            Ok(other) => {
                Err(malformed(format!("the body must be an object, not {}", kind(&other))))
            }
            Err(error) => Err(malformed(format!("the body is not valid JSON: {error}"))),
        }
    }

    /// The fields of `value`, which stands at `path` of the request.
    pub fn of(value: Value, path: &str) -> Result<Self, Refusal> {
        match value {
            Value::Object(map) => Ok(Self { map, prefix: format!("{path}.") }),
            other => Err(wrong_type(path, "an object", &other)),
        }
    }

    pub fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Whatever the field holds.
    pub fn value(&mut self, name: &str) -> Option<Value> {
        self.map.shift_remove(name).filter(|it| !it.is_null())
    }

    pub fn string(&mut self, name: &str) -> Result<Option<String>, Refusal> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(self.path(name), "a string", &other)),
        }
    }

    pub fn boolean(&mut self, name: &str) -> Result<Option<bool>, Refusal> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(wrong_type(self.path(name), "true or false", &other)),
        }
    }

    pub fn number(
        &mut self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, Refusal> {
        let Some(value) = self.value(name) else { return Ok(None) };
        number(&value, &self.path(name), range).map(Some)
    }

    pub fn whole(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, Refusal> {
        let Some(value) = self.value(name) else { return Ok(None) };
        whole(&value, &self.path(name), range).map(Some)
    }

    /// A whole number from 0 to `max`.
    pub fn count(&mut self, name: &str, max: u32) -> Result<Option<u32>, Refusal> {
        let found = self.whole(name, 0..=max.into())?;
        Ok(found.map(|it| u32::try_from(it).expect("checked against max")))
    }

    pub fn list(&mut self, name: &str, len_max: usize) -> Result<Option<Vec<Value>>, Refusal> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Array(items)) if items.len() <= len_max => Ok(Some(items)),
            Some(Value::Array(items)) => {
                let message = format!(
                    "{} has {} entries, and {len_max} are the most",
                    self.path(name),
                    items.len()
                );
                Err(Refusal::field(self.path(name), "invalid_value", message))
            }
            Some(other) => Err(wrong_type(self.path(name), "a list", &other)),
        }
    }

    pub fn object(&mut self, name: &str) -> Result<Option<Self>, Refusal> {
        let path = self.path(name);
        self.value(name).map(|value| Self::of(value, &path)).transpose()
    }

    /// A field that must not ask for anything: absent, or one of `neutral`.
    pub fn refuse(&mut self, name: &str, neutral: &[Value]) -> Result<(), Refusal> {
        match self.value(name) {
            Some(value) if !neutral.contains(&value) => {
                let path = self.path(name);
                let message = format!("{path} is not supported by this engine");
                Err(Refusal::field(path, "unsupported_parameter", message))
            }
            _ => Ok(()),
        }
    }

    /// Names of the fields that nobody took.
    pub fn left(self) -> Vec<String> {
        let Self { map, prefix } = self;
        map.into_iter().map(|(name, _)| format!("{prefix}{name}")).collect()
    }
}

pub fn number(value: &Value, path: &str, range: RangeInclusive<f64>) -> Result<f64, Refusal> {
    let (low, high) = (range.start(), range.end());
    match value.as_f64() {
        Some(number) if range.contains(&number) => Ok(number),
        Some(number) => {
            let message = format!("{path} must be from {low} to {high}, and is {number}");
            Err(Refusal::field(path, "invalid_value", message))
        }
        None => Err(wrong_type(path, &format!("a number from {low} to {high}"), value)),
    }
}

/// A whole number; one that is written as `3.0` counts.
pub fn whole(value: &Value, path: &str, range: RangeInclusive<i64>) -> Result<i64, Refusal> {
    let (low, high) = (range.start(), range.end());
    match integer(value) {
        Some(number) if range.contains(&number) => Ok(number),
        _ if value.is_number() => {
            let message =
                format!("{path} must be a whole number from {low} to {high}, and is {value}");
            Err(Refusal::field(path, "invalid_value", message))
        }
        _ => Err(wrong_type(path, &format!("a whole number from {low} to {high}"), value)),
    }
}

fn integer(value: &Value) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "whole and within 2^53")]
    let of_float = |it: f64| (it.fract() == 0.0 && it.abs() < 9.0e15).then_some(it as i64);
    value.as_i64().or_else(|| value.as_f64().filter(|_| value.is_f64()).and_then(of_float))
}

pub fn wrong_type(path: impl Into<String>, wanted: &str, found: &Value) -> Refusal {
    let path = path.into();
    let message = format!("{path} must be {wanted}, not {}", kind(found));
    Refusal::field(path, "invalid_type", message)
}

pub fn missing(path: &str) -> Refusal {
    Refusal::field(path, "missing_required_parameter", format!("{path} is missing"))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests;
