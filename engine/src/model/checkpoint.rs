//! Reads tensors out of a folder of safetensors files, one file or sharded.
//!
//! Format: <https://github.com/huggingface/safetensors#format>.

use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use kernels::quant::Dtype;
use safetensors::tensor::{Dtype as Stored, Metadata};
use serde_json::Value;

use crate::model::LoadError;
use crate::model::error::Fault;
use crate::model::fields::read_json;
use crate::model::shapes::Shape;

const HEADER_BYTES_MAX: u64 = 100_000_000;
const INDEX_BYTES_MAX: u64 = 64 << 20;
const INDEX: &str = "model.safetensors.index.json";
const WHOLE: &str = "model.safetensors";

/// An open checkpoint whose headers have been read and checked.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    files: Vec<(PathBuf, File)>,
    /// By name without the `model.` prefix that some writers put before some names.
    tensors: BTreeMap<String, TensorEntry>,
}

#[derive(Debug)]
pub(crate) struct TensorEntry {
    pub(crate) stored: Stored,
    pub(crate) dims: Vec<usize>,
    file: usize,
    /// From the start of the file.
    start: u64,
    bytes: usize,
}

impl Checkpoint {
    /// Opens the checkpoint of the folder `dir`.
    pub(crate) fn open(dir: &Path) -> Result<Self, LoadError> {
        let index = dir.join(INDEX);
        let mut checkpoint = Self { files: Vec::new(), tensors: BTreeMap::new() };
        if index.exists() {
            let map = weight_map(&index).map_err(|it| it.at(&index))?;
            let mut names: Vec<_> = map.values().collect();
            names.sort();
            names.dedup();
            for name in names {
                let held = checkpoint.add(dir.join(name))?;
                let matches = |it: &&String| map.get(*it) != Some(name);
                if let Some(stray) = held.iter().find(matches) {
                    let reason = format_args!("not in the index, which lists all of {name:?}");
                    return Err(Fault::new(format_args!("tensor {stray:?}"), reason).at(&index));
                }
                let absent = map.iter().find(|(it, at)| *at == name && !held.contains(*it));
                if let Some((absent, _)) = absent {
                    let reason = format_args!("not in {name:?}, where the index puts it");
                    return Err(Fault::new(format_args!("tensor {absent:?}"), reason).at(&index));
                }
            }
        } else if dir.join(WHOLE).exists() {
            checkpoint.add(dir.join(WHOLE))?;
        } else {
            return Err(no_weights(dir).at(dir));
        }
        Ok(checkpoint)
    }

    pub(crate) fn tensors(&self) -> &BTreeMap<String, TensorEntry> {
        &self.tensors
    }

    /// Forgets a tensor, so that what is left can be compared with what is expected.
    pub(crate) fn drop(&mut self, name: &str) {
        self.tensors.remove(name);
    }

    /// Gives tensors other names.
    pub(crate) fn rename(&mut self, to: impl Fn(&str) -> Option<String>) -> Result<(), Fault> {
        for (name, entry) in std::mem::take(&mut self.tensors) {
            let name = to(&name).unwrap_or(name);
            if self.tensors.insert(name.clone(), entry).is_some() {
                return Err(Fault::new(format_args!("tensor {name:?}"), "comes twice"));
            }
        }
        Ok(())
    }

    /// Forgets tables of rotary frequencies, which old writers saved: they follow from the config.
    pub(crate) fn drop_rotary_tables(&mut self, notes: &mut Vec<String>) {
        let before = self.tensors.len();
        self.tensors.retain(|name, _| !name.ends_with("rotary_emb.inv_freq"));
        if self.tensors.len() < before {
            notes.push("stored rotary frequencies are not read: they are worked out".to_owned());
        }
    }

    /// The bytes of a tensor that [`tensors`](Self::tensors) lists.
    pub(crate) fn read(&mut self, name: &str) -> Result<Vec<u8>, LoadError> {
        let entry = &self.tensors[name];
        let (path, file) = &mut self.files[entry.file];
        let fault = |it: String| Fault::new(format_args!("tensor {name:?}"), it).at(path);
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(entry.bytes)
            .map_err(|_| fault(format!("no memory for {} bytes", entry.bytes)))?;
        bytes.resize(entry.bytes, 0);
        file.seek(SeekFrom::Start(entry.start))
            .and_then(|_| file.read_exact(&mut bytes))
            .map_err(|it| fault(format!("cannot be read: {it}")))?;
        Ok(bytes)
    }

    /// Adds a file and returns the names that it uses.
    fn add(&mut self, path: PathBuf) -> Result<BTreeSet<String>, LoadError> {
        let opened = File::open(&path).and_then(|it| Ok((it.metadata()?.len(), it)));
        let (len, mut file) = opened.map_err(|it| Fault::whole(it).at(&path))?;
        let (metadata, data) = header(&mut file, len).map_err(|it| it.at(&path))?;
        let mut held = BTreeSet::new();
        for name in metadata.offset_keys() {
            let entry = metadata.info(&name).expect("the names are its own");
            let (start, end) = entry.data_offsets;
            let entry = TensorEntry {
                stored: entry.dtype,
                dims: entry.shape.clone(),
                file: self.files.len(),
                start: data + start as u64,
                bytes: end - start,
            };
            let short = name.strip_prefix("model.").unwrap_or(&name).to_owned();
            match self.tensors.entry(short) {
                Slot::Vacant(slot) => slot.insert(entry),
                Slot::Occupied(_) => {
                    let place = format_args!("tensor {name:?}");
                    return Err(Fault::new(place, "comes twice").at(&path));
                }
            };
            held.insert(name);
        }
        self.files.push((path, file));
        Ok(held)
    }
}

impl TensorEntry {
    /// (outputs, inputs), or `None` for more than two dimensions.
    pub(crate) fn shape(&self) -> Option<Shape> {
        match *self.dims {
            [cols] => Some((1, cols)),
            [rows, cols] => Some((rows, cols)),
            _ => None,
        }
    }

    /// How its weights are stored, when backends can read that.
    pub(crate) fn dtype(&self) -> Result<Dtype, Fault> {
        match self.stored {
            Stored::F32 => Ok(Dtype::F32),
            Stored::F16 => Ok(Dtype::F16),
            Stored::BF16 => Ok(Dtype::BF16),
            other => {
                let reason = format_args!("stored as {other:?}; only F32, F16 and BF16 are read");
                Err(Fault::whole(reason))
            }
        }
    }
}

/// Reads and checks the header of a file of `len` bytes; returns it and where the data starts.
fn header(file: &mut impl Read, len: u64) -> Result<(Metadata, u64), Fault> {
    let short = || Fault::whole(format_args!("truncated: {len} bytes do not hold its header"));
    let mut size = [0; 8];
    file.read_exact(&mut size).map_err(|_| short())?;
    let size = u64::from_le_bytes(size);
    if HEADER_BYTES_MAX < size {
        return Err(Fault::new("header", format_args!("{size} bytes are too many")));
    }
    let data = 8 + size;
    if len < data {
        return Err(short());
    }
    let mut header = vec![0; usize::try_from(size).expect("bounded above")];
    file.read_exact(&mut header).map_err(Fault::whole)?;
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|it| Fault::new("header", it))?;
    let data_len = metadata.data_len() as u64;
    if data.checked_add(data_len) != Some(len) {
        let reason = format_args!("{len} bytes, but its header describes {data} + {data_len}");
        return Err(Fault::whole(reason));
    }
    Ok((metadata, data))
}

/// Which file holds each tensor. File names are plain: an index cannot point outside its folder.
fn weight_map(index: &Path) -> Result<BTreeMap<String, String>, Fault> {
    let json = read_json(index, INDEX_BYTES_MAX)?;
    let map = json.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| Fault::new("field \"weight_map\"", "missing"))?;
    let mut files = BTreeMap::new();
    for (tensor, file) in map {
        let plain = file.as_str().filter(|it| it.ends_with(".safetensors") && !it.contains('/'));
        let Some(plain) = plain else {
            let place = format_args!("tensor {tensor:?}");
            return Err(Fault::new(place, format_args!("{file} is no file name of this folder")));
        };
        files.insert(tensor.clone(), plain.to_owned());
    }
    Ok(files)
}

fn no_weights(dir: &Path) -> Fault {
    let names = fs::read_dir(dir).into_iter().flatten().flatten();
    let pickled = |it: fs::DirEntry| {
        let name = it.file_name().to_string_lossy().into_owned();
        (name.ends_with(".bin") || name.ends_with(".pt")).then_some(name)
    };
    match names.filter_map(pickled).min() {
        Some(name) => Fault::whole(format_args!(
            "{name:?} is a pickle, which is not read: convert it to {WHOLE}"
        )),
        None => Fault::whole(format_args!("neither {WHOLE} nor {INDEX} is there")),
    }
}

#[cfg(test)]
pub(crate) mod tests;
