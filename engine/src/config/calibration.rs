//! The calibration file, as far as an engine reads it: how many drafts pay at which load.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::draft::DRAFTS_MAX;

/// Depths from a file whose form ARCHITECTURE.md gives. Other keys are the router's.
#[derive(Debug, Deserialize)]
pub struct Calibration {
    pub format: u32,
    /// (decoding requests at most, drafts), rising; beyond the last none.
    #[serde(default)]
    pub depth: Vec<(u32, u32)>,
}

impl Calibration {
    /// The error is a whole sentence that names the file.
    pub fn read(path: &Path) -> Result<Self, String> {
        let at = path.display();
        let text =
            fs::read_to_string(path).map_err(|error| format!("cannot read {at}: {error}"))?;
        Self::parse(&text).map_err(|detail| format!("{at}: {detail}"))
    }

    pub fn parse(text: &str) -> Result<Self, String> {
        let read: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if read.format != 1 {
            return Err(format!("has format {}, and this engine reads format 1", read.format));
        }
        if !read.depth.windows(2).all(|two| two[0].0 < two[1].0) {
            return Err("its depths do not rise in requests".to_owned());
        }
        if let Some((_, drafts)) = read.depth.iter().find(|(_, drafts)| DRAFTS_MAX < *drafts) {
            return Err(format!("asks for {drafts} drafts, and {DRAFTS_MAX} is the most"));
        }
        Ok(read)
    }
}
