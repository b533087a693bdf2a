//! Reads along with heads of requests, for what the HTTP library settles without a word.

const LENGTH: &[u8] = b"content-length:";
const CODING: &[u8] = b"transfer-encoding:";

/// The head of a request as its bytes come in.
///
/// A head that gives both a length and a coding is read in two ways by two readers. Whoever wrote
/// it is broken, or hopes for a reader in front of us that takes the other way.
#[derive(Debug, Default)]
pub(super) struct Head {
    /// The beginning of the current line.
    line: [u8; CODING.len()],
    /// How much of `line` is there.
    len: usize,
    has_begun: bool,
    is_over: bool,
    has_length: bool,
    has_coding: bool,
}

impl Head {
    /// Takes the next bytes; those after the end of the head are not looked at.
    pub(super) fn read(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|it| *it == b'\n') {
            if self.is_over {
                return;
            }
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            let kept = text.len().min(self.line.len() - self.len);
            self.line[self.len..self.len + kept].copy_from_slice(&text[..kept]);
            self.len += kept;
            if text.len() < piece.len() {
                self.end_line();
            }
        }
    }

    fn end_line(&mut self) {
        let line = &self.line[..self.len];
        let begins =
            |name: &[u8]| line.get(..name.len()).is_some_and(|it| it.eq_ignore_ascii_case(name));
        self.has_length |= begins(LENGTH);
        self.has_coding |= begins(CODING);
        // Empty lines before the first one are skipped by everybody.
        let is_empty = matches!(line, b"" | b"\r");
        self.is_over = is_empty && self.has_begun;
        self.has_begun |= !is_empty;
        self.len = 0;
    }

    pub(super) fn is_ambiguous(&self) -> bool {
        self.has_length && self.has_coding
    }
}

#[cfg(test)]
mod tests;
