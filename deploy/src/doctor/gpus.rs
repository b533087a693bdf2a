//! Asks nvidia-smi, which comes with every driver.

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::clock;

/// It can hang with a sick card.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// One line for each card; the error says why nothing could be asked.
pub(super) fn list() -> Result<Vec<String>, String> {
    let mut child = Command::new("nvidia-smi")
        .args(["--query-gpu=index,name,memory.total,memory.used", "--format=csv,noheader"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|it| format!("nvidia-smi: {it}"))?;
    let until = clock::now() + ANSWER_MAX;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => break,
            Ok(Some(status)) => return Err(format!("nvidia-smi: {status}")),
            Ok(None) if clock::now() < until => thread::park_timeout(LOOK_EVERY),
            Ok(None) => {
                // Fails when it has ended, which is what is wanted.
                drop(child.kill().and_then(|()| child.wait()));
                return Err(format!("nvidia-smi gave no answer in {} s", ANSWER_MAX.as_secs()));
            }
            Err(it) => return Err(format!("nvidia-smi: {it}")),
        }
    }
    let mut text = String::new();
    let mut output = child.stdout.take().expect("asked for with Stdio::piped");
    output.read_to_string(&mut text).map_err(|it| format!("nvidia-smi: {it}"))?;
    Ok(text.lines().filter_map(describe).collect())
}

/// `0, NAME, 143771 MiB, 4 MiB` for people.
pub(super) fn describe(line: &str) -> Option<String> {
    let mut fields = line.split(',').map(str::trim);
    let (index, name) = (fields.next()?, fields.next()?);
    let (total, used) = (fields.next()?, fields.next()?);
    Some(format!("cuda:{index} {name}, {used} of {total} in use"))
}
