//! Where the shipped draft head lies: beside the program, in a share directory, or in the source.

use std::path::{Path, PathBuf};

use crate::config::raw::Environment;

/// The head for the default model.
pub const NAME: &str = "smollm2-135m-instruct-eagle3";

/// The directory of the shipped head, where there is one.
pub fn shipped() -> Option<PathBuf> {
    let environment = Environment::read();
    let beside = environment.executable.as_deref().and_then(Path::parent);
    places(beside).into_iter().find(|it| it.join("config.json").is_file())
}

/// Where to look, the nearest first. `beside` is the directory of the running program: an
/// unpacked archive has `models/` there, an installed one `../share/crossover/models/`, and one
/// that cargo built stands in `target/<profile>/` of the source tree.
fn places(beside: Option<&Path>) -> Vec<PathBuf> {
    let mut roots = Vec::new();
    if let Some(beside) = beside {
        roots.push(beside.join("models"));
        roots.push(beside.join("../share/crossover/models"));
        roots.push(beside.join("../../deploy/models"));
    }
    roots.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("models"));
    roots.push(PathBuf::from("/usr/share/crossover/models"));
    roots.into_iter().map(|it| it.join(NAME)).collect()
}

#[cfg(test)]
mod tests;
