//! Cuts a byte stream into the data of server-sent events.

/// An event longer than this is not one of ours.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// A stream while it comes.
#[derive(Debug, Default)]
pub(crate) struct Events {
    rest: Vec<u8>,
}

impl Events {
    /// The events that `chunk` completes; `None` when the stream is not one of events.
    pub(crate) fn push(&mut self, chunk: &[u8]) -> Option<Vec<String>> {
        self.rest.extend_from_slice(chunk);
        let mut found = Vec::new();
        while let Some(end) = self.rest.iter().position(|&it| it == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8(line).ok()?;
            if let Some(data) = line.trim_end().strip_prefix("data:") {
                found.push(data.trim_start().to_owned());
            }
        }
        (self.rest.len() <= EVENT_BYTES_MAX).then_some(found)
    }
}

#[cfg(test)]
mod tests;
