//! Tells HTTP/2 from HTTP/1 by the first bytes of a connection.

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What every connection over HTTP/2 begins with, as its bytes come in.
#[derive(Debug, Default)]
pub(super) struct Preface {
    seen: usize,
    /// It is HTTP/1, or nonsense.
    differs: bool,
}

impl Preface {
    /// Takes the next bytes of the connection.
    pub(super) fn read(&mut self, bytes: &[u8]) {
        let due = &PREFACE[self.seen..];
        let len = if self.differs { 0 } else { due.len().min(bytes.len()) };
        self.differs |= due[..len] != bytes[..len];
        self.seen += len;
    }

    /// All of it has come: frames follow.
    pub(super) fn is_whole(&self) -> bool {
        !self.differs && self.seen == PREFACE.len()
    }
}

#[cfg(test)]
mod tests;
