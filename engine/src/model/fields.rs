//! Takes the fields of a JSON object one by one, so that those nobody took can be refused.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};

use crate::model::error::{Fault, listed};

/// What is left of an object.
#[derive(Debug)]
pub(crate) struct Fields {
    left: Map<String, Value>,
}

impl Fields {
    pub(crate) fn new(object: Map<String, Value>) -> Self {
        Self { left: object }
    }

    /// Reads a file that holds one object, of at most `bytes_max`.
    pub(crate) fn read(path: &Path, bytes_max: u64) -> Result<Self, Fault> {
        match read_json(path, bytes_max)? {
            Value::Object(it) => Ok(Self::new(it)),
            _ => Err(Fault::whole("not a JSON object")),
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.left.get(name).is_some_and(|it| !it.is_null())
    }

    /// Whether it is there at all, `null` or not.
    pub(crate) fn names(&self, name: &str) -> bool {
        self.left.contains_key(name)
    }

    /// `null` counts as absent.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.left.remove(name).filter(|it| !it.is_null())
    }

    pub(crate) fn size(&mut self, name: &str) -> Result<Option<usize>, Fault> {
        self.typed(name, "a count", |it| usize::try_from(it.as_u64()?).ok())
    }

    pub(crate) fn needed_size(&mut self, name: &str) -> Result<usize, Fault> {
        self.size(name)?.ok_or_else(|| missing(name))
    }

    pub(crate) fn float(&mut self, name: &str) -> Result<Option<f64>, Fault> {
        self.typed(name, "a number", Value::as_f64)
    }

    pub(crate) fn needed_float(&mut self, name: &str) -> Result<f64, Fault> {
        self.float(name)?.ok_or_else(|| missing(name))
    }

    pub(crate) fn flag(&mut self, name: &str) -> Result<Option<bool>, Fault> {
        self.typed(name, "true or false", Value::as_bool)
    }

    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, Fault> {
        self.typed(name, "a text", |it| it.as_str().map(str::to_owned))
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Self>, Fault> {
        self.typed(name, "an object", |it| it.as_object().cloned().map(Self::new))
    }

    pub(crate) fn sizes(&mut self, name: &str) -> Result<Option<Vec<usize>>, Fault> {
        let size = |it: &Value| usize::try_from(it.as_u64()?).ok();
        self.typed(name, "a list of counts", |it| it.as_array()?.iter().map(size).collect())
    }

    /// A flag that may only say what this engine does anyway.
    pub(crate) fn only(&mut self, name: &str, supported: bool) -> Result<(), Fault> {
        match self.flag(name)? {
            Some(it) if it != supported => Err(Fault::new(name, format!("{it} is not supported"))),
            _ => Ok(()),
        }
    }

    pub(crate) fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.left.remove(*name);
        }
    }

    /// Refuses what nobody took: it may change the arithmetic.
    pub(crate) fn finish(mut self) -> Result<(), Fault> {
        self.left.retain(|_, it| !it.is_null());
        let names: Vec<_> = self.left.keys().map(|it| format!("{it:?}")).collect();
        if names.is_empty() {
            return Ok(());
        }
        let reason = "may change the arithmetic and is not known (delete it if it does not)";
        Err(Fault::new(format_args!("field {}", listed(&names)), reason))
    }

    fn typed<T>(
        &mut self,
        name: &str,
        wanted: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, Fault> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let wrong =
            || Fault::new(format_args!("field {name:?}"), format!("{value} is not {wanted}"));
        read(&value).map(Some).ok_or_else(wrong)
    }
}

pub(crate) fn missing(name: &str) -> Fault {
    Fault::new(format_args!("field {name:?}"), "missing")
}

/// Reads a JSON file of at most `bytes_max`.
pub(crate) fn read_json(path: &Path, bytes_max: u64) -> Result<Value, Fault> {
    let bytes = read_bytes(path, bytes_max)?;
    serde_json::from_slice(&bytes).map_err(|it| Fault::whole(format_args!("not JSON: {it}")))
}

/// Reads a whole file of at most `bytes_max`.
pub(crate) fn read_bytes(path: &Path, bytes_max: u64) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|it| it.take(bytes_max + 1).read_to_end(&mut bytes))
        .map_err(Fault::whole)?;
    if bytes_max < bytes.len() as u64 {
        return Err(Fault::whole(format_args!("larger than {bytes_max} bytes")));
    }
    Ok(bytes)
}
