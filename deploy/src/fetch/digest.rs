//! SHA-256 of what was read, in hexadecimal.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

const CHUNK: usize = 1 << 18;

/// The digest of a file.
pub(super) fn of_file(path: &Path) -> io::Result<String> {
    copy(&mut File::open(path)?, &mut io::sink(), &mut |_| ())
}

/// Copies all of `from` to `to`, tells the running byte count, and returns the digest.
pub(super) fn copy(
    from: &mut dyn Read,
    to: &mut dyn Write,
    copied: &mut dyn FnMut(u64),
) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    let mut done = 0;
    loop {
        let len = match from.read(&mut buffer) {
            Ok(0) => return Ok(hexadecimal(&hash.finalize())),
            Ok(len) => len,
            Err(it) if it.kind() == io::ErrorKind::Interrupted => continue,
            Err(it) => return Err(it),
        };
        hash.update(&buffer[..len]);
        to.write_all(&buffer[..len])?;
        done += len as u64;
        copied(done);
    }
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes everything");
        text
    })
}
