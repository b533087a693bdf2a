//! Writes JSON as Python's `json.dumps` does, since that is what models were trained on.

use std::io::{Result, Write};

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use super::python::check_size;

const INDENT_MAX: usize = 16;

/// The filter `tojson`: a space after each colon and comma, other alphabets as they are.
pub(super) fn to_json(
    value: &Value,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> std::result::Result<Value, Error> {
    let wrong = |what: &str| Error::new(ErrorKind::InvalidOperation, format!("tojson: {what}"));
    let indent = match indent {
        Some(indent) => Some(indent),
        None => kwargs.get::<Option<Value>>("indent")?,
    };
    let indent = match indent.filter(|it| !it.is_none() && !it.is_undefined()) {
        None => None,
        Some(it) => {
            let width = usize::try_from(it).ok().filter(|it| *it <= INDENT_MAX);
            Some(width.ok_or_else(|| wrong("no such indent"))?)
        }
    };
    let ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let mut separators = (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned());
    if let Some(given) = kwargs.get::<Option<Vec<String>>>("separators")? {
        let [item, key] = given.try_into().map_err(|_| wrong("separators are two texts"))?;
        separators = (item, key);
    }
    let sorted = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let style =
        || Python { separators: separators.clone(), indent, ascii, depth: 0, is_empty: true };
    check_size(value)?;
    let text = written(value, style())?;
    if !sorted {
        return Ok(Value::from(text));
    }
    let json = serde_json::from_str::<serde_json::Value>(&text);
    let mut json = json.map_err(|it| wrong(&it.to_string()))?;
    json.sort_all_objects();
    Ok(Value::from(written(&json, style())?))
}

fn written(value: &impl Serialize, style: Python) -> std::result::Result<String, Error> {
    let mut out = Vec::new();
    let done = value.serialize(&mut Serializer::with_formatter(&mut out, style));
    let wrong = |it: &dyn std::fmt::Display| {
        Error::new(ErrorKind::InvalidOperation, format!("tojson: {it}"))
    };
    done.map_err(|it| wrong(&it))?;
    String::from_utf8(out).map_err(|it| wrong(&it))
}

/// A number as Python writes it: the exponent has a sign and at least two digits.
pub(super) fn float(value: f64) -> String {
    let written = format!("{value:?}");
    let Some((digits, exponent)) = written.split_once('e') else { return written };
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(it) => ('-', it),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

/// How `json.dumps` lays JSON out.
struct Python {
    /// Between items, and between a key and its value.
    separators: (String, String),
    indent: Option<usize>,
    ascii: bool,
    depth: usize,
    is_empty: bool,
}

impl Python {
    fn line<W: ?Sized + Write>(&self, out: &mut W) -> Result<()> {
        match self.indent {
            Some(width) => write!(out, "\n{:1$}", "", width * self.depth),
            None => Ok(()),
        }
    }

    fn open<W: ?Sized + Write>(&mut self, out: &mut W, sign: u8) -> Result<()> {
        self.depth += 1;
        self.is_empty = true;
        out.write_all(&[sign])
    }

    fn close<W: ?Sized + Write>(&mut self, out: &mut W, sign: u8) -> Result<()> {
        self.depth -= 1;
        if !self.is_empty {
            self.line(out)?;
        }
        self.is_empty = false;
        out.write_all(&[sign])
    }

    fn item<W: ?Sized + Write>(&self, out: &mut W, first: bool) -> Result<()> {
        if !first {
            out.write_all(self.separators.0.as_bytes())?;
        }
        self.line(out)
    }
}

impl Formatter for Python {
    fn write_f64<W: ?Sized + Write>(&mut self, out: &mut W, value: f64) -> Result<()> {
        out.write_all(float(value).as_bytes())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> Result<()> {
        self.open(out, b'[')
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> Result<()> {
        self.close(out, b']')
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> Result<()> {
        self.item(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> Result<()> {
        self.is_empty = false;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> Result<()> {
        self.open(out, b'{')
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> Result<()> {
        self.close(out, b'}')
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> Result<()> {
        self.item(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> Result<()> {
        out.write_all(self.separators.1.as_bytes())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> Result<()> {
        self.is_empty = false;
        Ok(())
    }

    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> Result<()> {
        const DELETE: u8 = 0x7f;
        if !self.ascii || fragment.bytes().all(|it| it < DELETE) {
            return out.write_all(fragment.as_bytes());
        }
        for unit in fragment.encode_utf16() {
            match u8::try_from(unit).ok().filter(|it| *it < DELETE) {
                Some(it) => out.write_all(&[it])?,
                None => write!(out, "\\u{unit:04x}")?,
            }
        }
        Ok(())
    }
}
