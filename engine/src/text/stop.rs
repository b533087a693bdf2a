//! Ends a text at the first of several stop strings, however the text was cut into pieces.

/// A matcher over the pieces of one text.
///
/// The stop that is complete first ends the text; of several that are complete with the same
/// character, the longest. So the outcome does not depend on the cuts.
#[derive(Clone, Debug)]
pub struct StopStrings {
    stops: Vec<Matcher>,
    /// Whether the stop string itself is part of the text.
    include: bool,
    /// What may be the start of a stop string, and so has not left yet.
    held: String,
    ended: Option<usize>,
}

/// What a piece makes of the text so far.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Released {
    /// Text that can leave.
    pub text: String,
    /// The stop string, by its index, that ended the text here. Nothing leaves after it.
    pub stopped: Option<usize>,
}

/// One stop string, with how far it has been matched (Knuth, Morris, Pratt).
#[derive(Clone, Debug)]
struct Matcher {
    stop: Vec<u8>,
    /// For each length of a matched start, the next shorter start that also ends there.
    shorter: Vec<usize>,
    matched: usize,
}

impl StopStrings {
    /// Empty strings never stop anything.
    pub fn new(stops: &[String], include: bool) -> Self {
        let stops = stops.iter().map(|it| Matcher::new(it)).collect();
        Self { stops, include, held: String::new(), ended: None }
    }

    /// Takes the next piece of the text.
    pub fn push(&mut self, piece: &str) -> Released {
        if self.ended.is_some() {
            return Released { text: String::new(), stopped: self.ended };
        }
        let before = self.held.len();
        self.held.push_str(piece);
        for (at, byte) in piece.bytes().enumerate() {
            let Some((stop, len)) = self.advance(byte) else { continue };
            let end = before + at + 1;
            self.ended = Some(stop);
            self.held.truncate(if self.include { end } else { end - len });
            return Released { text: std::mem::take(&mut self.held), stopped: self.ended };
        }
        // A start of a stop string begins with a whole character, so this is between characters.
        let keep = self.stops.iter().map(|it| it.matched).max().unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - keep);
        Released { text: std::mem::replace(&mut self.held, kept), stopped: None }
    }

    /// The text is over: what was held back was no stop string after all.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The longest stop that this byte completes, with its length.
    fn advance(&mut self, byte: u8) -> Option<(usize, usize)> {
        let mut complete = None;
        for (at, matcher) in self.stops.iter_mut().enumerate() {
            let len = matcher.stop.len();
            let longer = complete.is_none_or(|(_, longest)| longest < len);
            if matcher.advance(byte) && longer {
                complete = Some((at, len));
            }
        }
        complete
    }
}

impl Matcher {
    fn new(stop: &str) -> Self {
        let stop = stop.as_bytes().to_vec();
        let mut shorter = vec![0; stop.len()];
        let mut len = 0;
        for at in 1..stop.len() {
            while 0 < len && stop[at] != stop[len] {
                len = shorter[len - 1];
            }
            len += usize::from(stop[at] == stop[len]);
            shorter[at] = len;
        }
        Self { stop, shorter, matched: 0 }
    }

    /// Whether `byte` completes the stop string.
    fn advance(&mut self, byte: u8) -> bool {
        while 0 < self.matched && self.stop.get(self.matched) != Some(&byte) {
            self.matched = self.shorter[self.matched - 1];
        }
        self.matched += usize::from(self.stop.get(self.matched) == Some(&byte));
        !self.stop.is_empty() && self.matched == self.stop.len()
    }
}

#[cfg(test)]
mod tests;
