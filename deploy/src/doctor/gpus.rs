//! Asks nvidia-smi, which comes with every driver.

use std::process::Command;
use std::time::Duration;

use crate::ask;

/// It can hang with a sick card.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// One line for each card; the error says why nothing could be asked.
pub(super) fn list() -> Result<Vec<String>, String> {
    let mut command = Command::new("nvidia-smi");
    command.args(["--query-gpu=index,name,memory.total,memory.used", "--format=csv,noheader"]);
    let text = ask::output(&mut command, ANSWER_MAX).map_err(|it| format!("nvidia-smi: {it}"))?;
    Ok(text.lines().filter_map(describe).collect())
}

/// `0, NAME, 143771 MiB, 4 MiB` for people.
pub(super) fn describe(line: &str) -> Option<String> {
    let mut fields = line.split(',').map(str::trim);
    let (index, name) = (fields.next()?, fields.next()?);
    let (total, used) = (fields.next()?, fields.next()?);
    Some(format!("cuda:{index} {name}, {used} of {total} in use"))
}
