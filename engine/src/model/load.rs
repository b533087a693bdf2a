//! Reads a model from wherever the operator points: a GGUF file, or a folder that holds one.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::model::error::Fault;
use crate::model::{LoadError, Model, from_gguf};

/// The weights alone, without the tokenizer.
///
/// # Errors
///
/// What is wrong with the file, when anything is.
pub fn load_model(path: &Path) -> Result<Model, LoadError> {
    let path = find(path)?;
    let mut gguf = from_gguf::open(&path)?;
    from_gguf::model(&mut gguf, &stem(&path)).map_err(|it| it.at(&path))
}

/// The file that `path` names, or the only GGUF file in the folder that it names.
fn find(path: &Path) -> Result<PathBuf, LoadError> {
    let fault = |it: std::io::Error| Fault::whole(it).at(path);
    if !fs::metadata(path).map_err(fault)?.is_dir() {
        return Ok(path.to_owned());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(fault)? {
        let entry = entry.map_err(fault)?.path();
        if entry.extension() == Some(OsStr::new("gguf")) {
            found.push(entry);
        }
    }
    match &*found {
        [one] => Ok(one.clone()),
        [] => Err(Fault::whole("the folder holds no model").at(path)),
        _ => Err(Fault::whole("the folder holds several GGUF files: name one").at(path)),
    }
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}
