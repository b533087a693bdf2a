//! How the words of a step reach the device, and its results the host: through memory of the host
//! that the kernels read and write where it is, by turns one of two boxes.

use bytemuck::{Pod, Zeroable};

use crate::cuda::{Buffer, Device, DeviceError, Inbox, Mapped};
use crate::ops::whole;

/// Words of a line: what a thread takes at once, and what stands before the words of a step.
const LINE: usize = 4;
/// Lines of the longest step that a kernel takes over by itself; longer ones are copied.
const LINES_MAX: usize = 4096;
/// The longest step that is not copied, in words.
const TAKEN_MAX: usize = LINE * (LINES_MAX - 1);

/// The boxes. The twin of what stays on the device counts the steps that were laid, so each that is
/// sent has to be laid once.
#[derive(Debug)]
pub(super) struct Mail {
    boxes: [MailBox; 2],
    /// For steps that are too long for a box.
    copied: Inbox<u32>,
    /// Steps that were laid.
    laid: Buffer<u32>,
    turns: Turns,
}

/// Whose turn it is.
#[derive(Debug, Default)]
struct Turns {
    /// Steps that were sent.
    sent: usize,
    /// Whether a box waits for results that nobody has read.
    unread: [bool; 2],
}

impl Turns {
    /// The box of a step that is sent.
    fn next(&mut self) -> usize {
        let number = self.sent % 2;
        assert!(!self.unread[number], "results are read before the next step but one is sent");
        self.sent += 1;
        number
    }

    /// The box of the step that was sent last, whose results will be read.
    fn expect(&mut self) -> usize {
        let number = (self.sent + 1) % 2;
        self.unread[number] = true;
        number
    }

    fn read(&mut self, number: usize) {
        self.unread[number] = false;
    }

    /// As if the step that was sent last had not been.
    fn take_back(&mut self) {
        self.sent -= 1;
    }
}

#[derive(Debug)]
struct MailBox {
    words: Mapped<u32>,
    results: Mapped<u32>,
}

/// The twin of `Mail` in `cu/rows.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(super) struct MailArgs {
    words: [u64; 2],
    results: [u64; 2],
    laid: u64,
}

impl Mail {
    /// For steps of up to `words` words, with up to `results` words of results.
    pub(super) fn new(device: &Device, words: usize, results: usize) -> Result<Self, DeviceError> {
        let one = || -> Result<MailBox, DeviceError> {
            let words = Mapped::new(device, LINE * LINES_MAX)?;
            Ok(MailBox { words, results: Mapped::new(device, results)? })
        };
        let (boxes, copied) = ([one()?, one()?], Inbox::new(device, words)?);
        Ok(Self { boxes, copied, laid: device.zeros(1)?, turns: Turns::default() })
    }

    pub(super) fn args(&mut self) -> MailArgs {
        let [first, second] = &self.boxes;
        MailArgs {
            words: [first.words.address(), second.words.address()],
            results: [first.results.address(), second.results.address()],
            laid: self.laid.write(),
        }
    }

    /// Puts the words of a step into the next box once the step before last has been read, or
    /// queues their copy to `inbox` and says so there.
    pub(super) fn send(
        &mut self,
        words: &[u32],
        inbox: &mut Buffer<u32>,
    ) -> Result<(), DeviceError> {
        assert!(words.len() <= inbox.len(), "beyond the inbox");
        let number = self.turns.next();
        // Its results come last: whoever has them has had its words read. A kernel that lays the
        // step in between may still look into this box, and drops what it sees.
        self.boxes[number].results.wait()?;
        let to = self.boxes[number].words.wait()?;
        if TAKEN_MAX < words.len() {
            to[0] = 0;
            return self.copied.send(inbox, words);
        }
        to[0] = whole(1 + words.len().div_ceil(LINE));
        to[LINE..][..words.len()].copy_from_slice(words);
        Ok(())
    }

    /// All of the step that was sent last is queued. Gives the number of its box.
    pub(super) fn expect(&mut self) -> Result<usize, DeviceError> {
        let number = self.turns.expect();
        self.boxes[number].results.expect()?;
        Ok(number)
    }

    /// Waits for the results in a box.
    pub(super) fn results(&mut self, number: usize) -> Result<&[u32], DeviceError> {
        self.turns.read(number);
        Ok(self.boxes[number].results.wait()?)
    }

    /// Gives the box of the step that was sent last to the next, once that step is over.
    pub(super) fn take_back(&mut self, device: &Device) -> Result<(), DeviceError> {
        device.synchronize()?;
        self.turns.take_back();
        device.write(&mut self.laid, 0, &[whole(self.turns.sent % 2)])
    }
}

#[cfg(test)]
mod tests;
