//! Reads a GGUF file (version 3): its values, and its tensors on demand.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. Every length is checked
//! against what is left of the file before anything is allocated for it.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};

use kernels::quant::Dtype;

use self::header::{Header, place};
use crate::model::error::Fault;

mod header;

const ALIGNMENT_DEFAULT: u64 = 32;

/// An open file whose header has been read and checked.
#[derive(Debug)]
pub(crate) struct Gguf<S> {
    source: S,
    values: BTreeMap<String, Value>,
    tensors: BTreeMap<String, TensorEntry>,
}

/// Where a tensor is and how it is stored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TensorEntry {
    pub(crate) dtype: Dtype,
    /// Fastest first: inputs, then outputs.
    pub(crate) dims: Vec<usize>,
    /// From the start of the file.
    start: u64,
    bytes: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Array(Vec<Self>),
}

impl<S: Read + Seek> Gguf<S> {
    /// Reads the header of `source`, which is `len` bytes long and stands at its start.
    pub(crate) fn open(source: S, len: u64) -> Result<Self, Fault> {
        let mut header = Header::new(source, len);
        let (tensors, values) = header.counts()?;
        let values = header.values(values)?;
        let alignment = match values.get("general.alignment") {
            None => ALIGNMENT_DEFAULT,
            Some(Value::Unsigned(it)) if it.is_power_of_two() && *it <= 1 << 20 => *it,
            Some(it) => return Err(Fault::new("general.alignment", format!("{it:?} is no use"))),
        };
        let mut tensors = header.tensors(tensors)?;
        let data = header.at().next_multiple_of(alignment);
        place(&mut tensors, data, alignment, len)?;
        Ok(Self { source: header.source, values, tensors })
    }

    /// The bytes of a tensor that [`tensors`](Self::tensors) lists.
    pub(crate) fn read(&mut self, name: &str) -> Result<Vec<u8>, Fault> {
        let entry = &self.tensors[name];
        let place = || format!("tensor {name:?}");
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(entry.bytes)
            .map_err(|_| Fault::new(place(), format!("no memory for {} bytes", entry.bytes)))?;
        bytes.resize(entry.bytes, 0);
        self.source
            .seek(SeekFrom::Start(entry.start))
            .and_then(|_| self.source.read_exact(&mut bytes))
            .map_err(|error| Fault::new(place(), format!("cannot be read: {error}")))?;
        Ok(bytes)
    }
}

impl<S> Gguf<S> {
    pub(crate) fn tensors(&self) -> &BTreeMap<String, TensorEntry> {
        &self.tensors
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, Fault> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Text(it)) => Ok(Some(it)),
            Some(it) => Err(wrong_kind(key, it, "a text")),
        }
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, Fault> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Bool(it)) => Ok(Some(*it)),
            Some(it) => Err(wrong_kind(key, it, "true or false")),
        }
    }

    pub(crate) fn float(&self, key: &str) -> Result<Option<f64>, Fault> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Float(it)) => Ok(Some(*it)),
            Some(it) => Err(wrong_kind(key, it, "a float")),
        }
    }

    pub(crate) fn size(&self, key: &str) -> Result<Option<usize>, Fault> {
        self.values.get(key).map(|it| it.to_size(key)).transpose()
    }

    /// A count that some writers give once and others once for each layer: all must agree.
    pub(crate) fn size_everywhere(&self, key: &str) -> Result<Option<usize>, Fault> {
        let Some(Value::Array(items)) = self.values.get(key) else { return self.size(key) };
        let sizes: Vec<_> = items.iter().map(|it| it.to_size(key)).collect::<Result<_, _>>()?;
        match sizes.first() {
            Some(first) if sizes.iter().all(|it| it == first) => Ok(Some(*first)),
            _ => Err(Fault::new(key, "differs between layers, which is not supported")),
        }
    }

    pub(crate) fn array(&self, key: &str) -> Result<Option<&[Value]>, Fault> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Array(it)) => Ok(Some(it)),
            Some(it) => Err(wrong_kind(key, it, "an array")),
        }
    }
}

impl Value {
    pub(crate) fn to_size(&self, key: &str) -> Result<usize, Fault> {
        let size = match self {
            Self::Unsigned(it) => usize::try_from(*it).ok(),
            Self::Signed(it) => usize::try_from(*it).ok(),
            _ => None,
        };
        size.ok_or_else(|| wrong_kind(key, self, "a count"))
    }
}

impl TensorEntry {
    /// (outputs, inputs), or `None` for more than two dimensions.
    pub(crate) fn shape(&self) -> Option<(usize, usize)> {
        match *self.dims {
            [cols] => Some((1, cols)),
            [cols, rows] => Some((rows, cols)),
            _ => None,
        }
    }
}

fn wrong_kind(key: &str, value: &Value, wanted: &str) -> Fault {
    let found = match value {
        Value::Array(items) => format!("an array of {}", items.len()),
        other => format!("{other:?}"),
    };
    Fault::new(format_args!("key {key:?}"), format_args!("{found} is not {wanted}"))
}

#[cfg(test)]
pub(crate) mod tests;
