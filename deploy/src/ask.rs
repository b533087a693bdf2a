//! Asks another program a short question, and waits for the answer so long and no longer.

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::clock;

const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What a pipe holds; one who says more than that does not come to an end.
const BYTES_MAX: u64 = 1 << 16;

/// What it wrote to standard output.
///
/// # Errors
/// A sentence without the program's name: it did not start, failed, or took too long.
pub(crate) fn output(command: &mut Command, answer_max: Duration) -> Result<String, String> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|it| it.to_string())?;
    let until = clock::now() + answer_max;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => break,
            Ok(Some(status)) => return Err(status.to_string()),
            Ok(None) if clock::now() < until => thread::park_timeout(LOOK_EVERY),
            Ok(None) => {
                // Not waited for: one that hangs in the kernel does not even die at once.
                drop(child.kill());
                return Err(format!("no answer in {} s", answer_max.as_secs()));
            }
            Err(it) => return Err(it.to_string()),
        }
    }
    let mut said = Vec::new();
    let output = child.stdout.take().expect("asked for with Stdio::piped");
    output.take(BYTES_MAX).read_to_end(&mut said).map_err(|it| it.to_string())?;
    Ok(String::from_utf8_lossy(&said).into_owned())
}

#[cfg(test)]
mod tests;
