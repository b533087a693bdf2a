//! Finds stop strings in a text that comes in pieces, and holds back what may become one.

/// What a piece of text makes visible.
#[derive(Debug, Default, PartialEq)]
pub struct Found {
    pub text: String,
    /// Whether the text ends here.
    pub stopped: bool,
}

#[derive(Debug)]
pub struct StopFinder {
    strings: Vec<String>,
    includes: bool,
    /// Seen and not shown: the longest end of the text that may begin a stop string.
    held: String,
}

impl StopFinder {
    pub fn new(strings: Vec<String>, includes: bool) -> Self {
        Self { strings, includes, held: String::new() }
    }

    /// The text ends at the stop string that is complete first; of two, at the one that began
    /// first.
    pub fn push(&mut self, piece: &str) -> Found {
        if self.strings.is_empty() {
            return Found { text: piece.to_owned(), stopped: false };
        }
        self.held.push_str(piece);
        let ends = self.strings.iter().filter_map(|stop| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start))
        });
        if let Some((end, start)) = ends.min() {
            self.held.truncate(if self.includes { end } else { start });
            return Found { text: std::mem::take(&mut self.held), stopped: true };
        }
        let keep = self.strings.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let text = self.held.drain(..self.held.len() - keep).collect();
        Found { text, stopped: false }
    }

    /// What was held back, once no text follows.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of `text` that a whole `stop` may begin with.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    let begins = |len: &usize| stop.as_bytes().starts_with(&text.as_bytes()[text.len() - len..]);
    (1..=longest).rev().find(begins).unwrap_or(0)
}

#[cfg(test)]
mod tests;
