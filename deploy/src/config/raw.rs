//! The environment as it is, read once; nothing else in this crate looks at it.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

/// Variables that matter to the front door; empty ones count as unset.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `HOME`.
    pub home: Option<PathBuf>,
    /// `XDG_CACHE_HOME`; relative paths count as unset, as the XDG base directory rules say.
    pub cache_home: Option<PathBuf>,
    /// `HF_ENDPOINT`: a mirror of the Hugging Face hub.
    pub hub_endpoint: Option<String>,
    /// `HF_TOKEN`: what opens gated repositories.
    pub hub_token: Option<String>,
    /// `CARGO`: set by `cargo run`; the cargo that built this program.
    pub cargo: Option<PathBuf>,
    /// The path of this program, where the system tells.
    pub executable: Option<PathBuf>,
}

impl Environment {
    pub fn read() -> Self {
        Self {
            home: set("HOME").map(PathBuf::from),
            cache_home: set("XDG_CACHE_HOME").map(PathBuf::from).filter(|it| it.is_absolute()),
            hub_endpoint: set("HF_ENDPOINT").and_then(|it| it.into_string().ok()),
            hub_token: set("HF_TOKEN").and_then(|it| it.into_string().ok()),
            cargo: set("CARGO").map(PathBuf::from),
            executable: env::current_exe().ok(),
        }
    }
}

fn set(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|it| !it.is_empty())
}
