//! Reads a GGUF header: counts, values and tensor entries, each length checked before it is used.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::fmt;
use std::io::Read;

use kernels::quant::Dtype;

use super::{TensorEntry, Value};
use crate::model::error::Fault;

const MAGIC: [u8; 4] = *b"GGUF";
const STRING_BYTES_MAX: u64 = 16 << 20;
const NAME_BYTES_MAX: u64 = 256;
/// Over all arrays of a file; a vocabulary of a quarter million entries takes about a million.
const ARRAY_ITEMS_MAX: u64 = 8 << 20;
const TENSORS_MAX: u64 = 1 << 16;
const VALUES_MAX: u64 = 1 << 16;
const DIMENSIONS_MAX: u32 = 4;
/// The value type that holds others.
const ARRAY: u32 = 9;

/// The header while it is read.
pub(super) struct Header<S> {
    pub(super) source: S,
    left: u64,
    len: u64,
    items_left: u64,
}

impl<S: Read> Header<S> {
    pub(super) fn new(source: S, len: u64) -> Self {
        Self { source, left: len, len, items_left: ARRAY_ITEMS_MAX }
    }

    pub(super) fn at(&self) -> u64 {
        self.len - self.left
    }

    fn fault(&self, reason: impl fmt::Display) -> Fault {
        Fault::new(format_args!("byte {}", self.at()), reason)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        if self.left < N as u64 {
            return Err(self.fault("the file ends too early"));
        }
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes).map_err(|it| self.fault(it))?;
        self.left -= N as u64;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, Fault> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Fault> {
        self.take().map(u64::from_le_bytes)
    }

    fn string(&mut self, bytes_max: u64) -> Result<String, Fault> {
        let len = self.u64()?;
        if self.left < len {
            return Err(self.fault(format_args!("a text of {len} bytes passes the file's end")));
        }
        if bytes_max < len {
            return Err(self.fault(format_args!("a text of {len} bytes, at most {bytes_max}")));
        }
        let mut bytes = vec![0; usize::try_from(len).expect("bounded above")];
        self.source.read_exact(&mut bytes).map_err(|it| self.fault(it))?;
        self.left -= len;
        String::from_utf8(bytes).map_err(|_| self.fault("a text is not UTF-8"))
    }

    /// Tensors and values.
    pub(super) fn counts(&mut self) -> Result<(u64, u64), Fault> {
        if self.take()? != MAGIC {
            return Err(Fault::whole("not a GGUF file: it does not begin with \"GGUF\""));
        }
        match self.u32()? {
            // Version 2 differs in what a writer may do, not in its layout.
            2 | 3 => {}
            it if it.swap_bytes() <= 3 => {
                return Err(self.fault("a big-endian file, which is not supported"));
            }
            it => return Err(self.fault(format_args!("version {it}; only 3 is supported"))),
        }
        let (tensors, values) = (self.u64()?, self.u64()?);
        if TENSORS_MAX < tensors || VALUES_MAX < values {
            let reason = format_args!("{tensors} tensors and {values} values are too many");
            return Err(self.fault(reason));
        }
        Ok((tensors, values))
    }

    pub(super) fn values(&mut self, count: u64) -> Result<BTreeMap<String, Value>, Fault> {
        let mut values = BTreeMap::new();
        for _ in 0..count {
            let key = self.string(NAME_BYTES_MAX)?;
            let kind = self.u32()?;
            let value = self.value(kind).map_err(|it| it.within(format_args!("key {key:?}")))?;
            match values.entry(key) {
                Slot::Vacant(slot) => slot.insert(value),
                Slot::Occupied(slot) => {
                    return Err(self.fault(format_args!("key {:?} comes twice", slot.key())));
                }
            };
        }
        Ok(values)
    }

    fn value(&mut self, kind: u32) -> Result<Value, Fault> {
        if kind == ARRAY {
            return self.array_value();
        }
        Ok(match kind {
            0 => Value::Unsigned(u8::from_le_bytes(self.take()?).into()),
            1 => Value::Signed(i8::from_le_bytes(self.take()?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.take()?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.take()?).into()),
            4 => Value::Unsigned(self.u32()?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.take()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.take()?).into()),
            7 => match self.take()? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [it] => return Err(self.fault(format_args!("{it} is neither true nor false"))),
            },
            8 => Value::Text(self.string(STRING_BYTES_MAX)?),
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.take()?)),
            12 => Value::Float(f64::from_le_bytes(self.take()?)),
            it => return Err(self.fault(format_args!("value type {it} is not known"))),
        })
    }

    fn array_value(&mut self) -> Result<Value, Fault> {
        let kind = self.u32()?;
        let count = self.u64()?;
        let item_bytes_min = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            ARRAY => return Err(self.fault("an array of arrays, which is not supported")),
            it => return Err(self.fault(format_args!("value type {it} is not known"))),
        };
        if self.left / item_bytes_min < count {
            return Err(self.fault(format_args!("{count} items pass the file's end")));
        }
        if self.items_left < count {
            return Err(self.fault(format_args!("{count} items are too many")));
        }
        self.items_left -= count;
        let mut items = Vec::with_capacity(usize::try_from(count).expect("bounded above"));
        for _ in 0..count {
            items.push(self.value(kind)?);
        }
        Ok(Value::Array(items))
    }

    /// The entries, with `start` still relative to the data.
    pub(super) fn tensors(&mut self, count: u64) -> Result<BTreeMap<String, TensorEntry>, Fault> {
        let mut tensors = BTreeMap::new();
        for _ in 0..count {
            let name = self.string(NAME_BYTES_MAX)?;
            let entry = self.tensor().map_err(|it| it.within(format_args!("tensor {name:?}")))?;
            match tensors.entry(name) {
                Slot::Vacant(slot) => slot.insert(entry),
                Slot::Occupied(slot) => {
                    return Err(self.fault(format_args!("tensor {:?} comes twice", slot.key())));
                }
            };
        }
        Ok(tensors)
    }

    fn tensor(&mut self) -> Result<TensorEntry, Fault> {
        let count = self.u32()?;
        if count == 0 || DIMENSIONS_MAX < count {
            return Err(self.fault(format_args!("{count} dimensions")));
        }
        let mut dims = Vec::new();
        for _ in 0..count {
            let it = self.u64()?;
            dims.push(usize::try_from(it).map_err(|_| self.fault("a dimension is too large"))?);
        }
        let dtype = dtype(self.u32()?).map_err(|it| self.fault(it))?;
        let len = dims.iter().try_fold(1, |len: usize, it| len.checked_mul(*it));
        let whole_rows = dims[0].is_multiple_of(dtype.block_len());
        let bytes = len.filter(|_| whole_rows).and_then(|it| dtype.bytes(it));
        let bytes = bytes.filter(|it| 0 < *it);
        let Some(bytes) = bytes else {
            return Err(self.fault(format_args!("{dims:?} cannot be stored as {dtype:?}")));
        };
        Ok(TensorEntry { dtype, dims, start: self.u64()?, bytes })
    }
}

/// The storage format of a ggml type number.
fn dtype(kind: u32) -> Result<Dtype, String> {
    Ok(match kind {
        0 => Dtype::F32,
        1 => Dtype::F16,
        2 => Dtype::Q4_0,
        3 => Dtype::Q4_1,
        6 => Dtype::Q5_0,
        7 => Dtype::Q5_1,
        8 => Dtype::Q8_0,
        12 => Dtype::Q4_K,
        13 => Dtype::Q5_K,
        14 => Dtype::Q6_K,
        30 => Dtype::BF16,
        10 => return Err("stored as Q2_K, which is not supported".to_owned()),
        11 => return Err("stored as Q3_K, which is not supported".to_owned()),
        39 => return Err("stored as MXFP4, which is not supported".to_owned()),
        it => return Err(format!("stored as ggml type {it}, which is not supported")),
    })
}

/// Moves the entries to their place in the file and checks that they lie in it, aligned and apart.
pub(super) fn place(
    tensors: &mut BTreeMap<String, TensorEntry>,
    data: u64,
    alignment: u64,
    len: u64,
) -> Result<(), Fault> {
    let mut ranges = Vec::new();
    for (name, entry) in tensors {
        let fault = |reason: &str| {
            Err(Fault::new(format_args!("tensor {name:?}"), format_args!("its data {reason}")))
        };
        if !entry.start.is_multiple_of(alignment) {
            return fault("is not aligned");
        }
        let start = data.checked_add(entry.start);
        let end = start.and_then(|it| it.checked_add(entry.bytes as u64));
        let (Some(start), Some(end)) = (start, end) else { return fault("has no valid offset") };
        if len < end {
            return fault(&format!("ends at byte {end}, the file at {len}: it is truncated"));
        }
        entry.start = start;
        ranges.push((start, end, name));
    }
    ranges.sort();
    for pair in ranges.windows(2) {
        let ((_, end, first), (start, _, second)) = (&pair[0], &pair[1]);
        if start < end {
            let reason = format_args!("its data overlaps that of {second:?}");
            return Err(Fault::new(format_args!("tensor {first:?}"), reason));
        }
    }
    Ok(())
}
