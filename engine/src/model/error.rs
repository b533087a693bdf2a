//! What is wrong with a file: which one, where in it and why, in one line.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};

const TEXT_CHARS_MAX: usize = 600;

/// A file that cannot be used. Its text is one line: path, place, reason.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadError {
    pub path: PathBuf,
    /// A field, a tensor or a byte offset; empty when it is the file as a whole.
    pub place: String,
    pub reason: String,
}

/// A [`LoadError`] of a reader that does not know its file's path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fault {
    place: String,
    reason: String,
}

impl Fault {
    pub(crate) fn new(place: impl fmt::Display, reason: impl fmt::Display) -> Self {
        Self { place: one_line(&place.to_string()), reason: one_line(&reason.to_string()) }
    }

    /// A fault of the file as a whole.
    pub(crate) fn whole(reason: impl fmt::Display) -> Self {
        Self::new("", reason)
    }

    /// The place moved inside `outer`.
    pub(crate) fn within(self, outer: impl fmt::Display) -> Self {
        let place = if self.place.is_empty() {
            outer.to_string()
        } else {
            format!("{outer}: {}", self.place)
        };
        Self::new(place, self.reason)
    }

    pub(crate) fn at(self, path: &Path) -> LoadError {
        LoadError { path: path.to_owned(), place: self.place, reason: self.reason }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: ", one_line(&self.path.display().to_string()))?;
        if !self.place.is_empty() {
            write!(out, "{}: ", self.place)?;
        }
        out.write_str(&self.reason)
    }
}

impl Error for LoadError {}

/// The text with control characters as spaces, cut where it stops being a message: names come
/// from files that may hold anything.
pub(crate) fn one_line(text: &str) -> String {
    let clean = |it: char| if it.is_control() { ' ' } else { it };
    let mut line: String = text.chars().take(TEXT_CHARS_MAX).map(clean).collect();
    if text.chars().nth(TEXT_CHARS_MAX).is_some() {
        line.push_str(" ...");
    }
    line
}

/// A list for a message: at most eight entries, then how many more there are.
pub(crate) fn listed(entries: &[String]) -> String {
    const SHOWN_MAX: usize = 8;
    let shown = entries[..entries.len().min(SHOWN_MAX)].join("; ");
    match entries.len().saturating_sub(SHOWN_MAX) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}
