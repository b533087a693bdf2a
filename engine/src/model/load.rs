//! Reads a model from wherever the operator points: a GGUF file, a folder that holds one, or a
//! Hugging Face folder.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::model::error::Fault;
use crate::model::{LoadError, Model, from_gguf, from_safetensors};

/// What kind of model a path names.
enum Place {
    Gguf(PathBuf),
    Folder(PathBuf),
}

/// The weights alone, without the tokenizer.
///
/// # Errors
///
/// What is wrong with the file, when anything is.
pub fn load_model(path: &Path) -> Result<Model, LoadError> {
    match find(path)? {
        Place::Gguf(file) => {
            let mut gguf = from_gguf::open(&file)?;
            from_gguf::model(&mut gguf, &stem(&file)).map_err(|it| it.at(&file))
        }
        Place::Folder(dir) => from_safetensors::model(&dir, &stem(&dir), &mut Vec::new()),
    }
}

/// The file that `path` names, or what the folder that it names holds.
fn find(path: &Path) -> Result<Place, LoadError> {
    let fault = |it: std::io::Error| Fault::whole(it).at(path);
    // Links and dots are resolved, so that a folder named `.` has a name.
    let path = &fs::canonicalize(path).map_err(fault)?;
    if !path.is_dir() {
        return Ok(Place::Gguf(path.clone()));
    }
    if path.join("config.json").exists() {
        return Ok(Place::Folder(path.clone()));
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(fault)? {
        let entry = entry.map_err(fault)?.path();
        if entry.extension() == Some(OsStr::new("gguf")) {
            found.push(entry);
        }
    }
    match &*found {
        [one] => Ok(Place::Gguf(one.clone())),
        [] => Err(Fault::whole("the folder holds neither config.json nor a GGUF file").at(path)),
        _ => Err(Fault::whole("the folder holds several GGUF files: name one").at(path)),
    }
}

fn stem(path: &Path) -> String {
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    name.unwrap_or_default().to_string_lossy().into_owned()
}
