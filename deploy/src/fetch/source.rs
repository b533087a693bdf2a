//! How a model is named on the command line.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::FetchError;
use super::hub::Repository;

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The pinned pair of this project.
    Default,
    /// A GGUF file or a directory of safetensors on this machine.
    Path(PathBuf),
    /// A repository of the Hugging Face hub.
    Hub(Repository),
}

impl FromStr for Source {
    type Err = FetchError;

    /// `default`, a path that exists, or `owner/name[@revision][:file.gguf]`.
    fn from_str(text: &str) -> Result<Self, FetchError> {
        if text == "default" {
            return Ok(Self::Default);
        }
        let path = Path::new(text);
        if path.exists() {
            return Ok(Self::Path(path.to_owned()));
        }
        let not_found =
            |hint: &str| FetchError::NotFound { asked: text.to_owned(), hint: hint.to_owned() };
        if text.starts_with(['.', '/', '~']) {
            return Err(not_found("there is no such file or directory"));
        }
        Repository::parse(text).map(Self::Hub).ok_or_else(|| {
            not_found(
                "give `default`, a GGUF file, a directory of safetensors, or a hub repository as \
                 owner/name[@revision][:file.gguf]",
            )
        })
    }
}
