//! A Hugging Face repository by its id, such as `Qwen/Qwen3-0.6B`: looked for where the hub's own
//! tools keep what they have fetched. Nothing is fetched here.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// The folder that `path` means: itself where it exists or is no id, else the snapshot of the
/// repository of that name under `cache`, which is laid out as `huggingface_hub` does.
///
/// # Errors
///
/// The repository was not fetched, and how to do so; one line.
pub fn resolve(path: &Path, cache: &Path) -> Result<PathBuf, String> {
    let Some(id) = id(path).filter(|_| !path.exists()) else { return Ok(path.to_owned()) };
    let repository = cache.join(format!("models--{}", id.replace('/', "--")));
    let revision = fs::read_to_string(repository.join("refs/main"));
    let snapshot = revision.ok().map(|it| repository.join("snapshots").join(it.trim()));
    snapshot.filter(|it| it.is_dir()).ok_or_else(|| {
        format!(
            "{id}: there is no such path, and {} has no such Hugging Face repository; \
             `hf download {id}` fetches it",
            cache.display()
        )
    })
}

/// The path read as the id of a repository: an owner and a name.
pub fn id(path: &Path) -> Option<&str> {
    let text = path.to_str()?;
    let is_name = |it: &str| {
        let plain = |it: u8| it.is_ascii_alphanumeric() || b"-_.".contains(&it);
        !it.is_empty() && !it.starts_with('.') && it.bytes().all(plain)
    };
    let (owner, name) = text.split_once('/')?;
    let is_file = path.extension().is_some_and(|it| it == "gguf" || it == "safetensors");
    let is_plain = path.components().all(|it| matches!(it, Component::Normal(_)));
    (is_plain && !is_file && is_name(owner) && is_name(name)).then_some(text)
}

#[cfg(test)]
mod tests;
