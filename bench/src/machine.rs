//! What a result was measured on: machine, commit, command; and what this client itself used.

use std::path::Path;
use std::process::Command;

use serde::Serialize;

use crate::clock;

/// Written beside every result.
#[derive(Clone, Debug, Serialize)]
pub struct Origin {
    /// UTC.
    pub date: String,
    pub processor: String,
    pub cores: usize,
    pub memory_gib: u64,
    pub kernel: String,
    /// Of the folder that the command ran in; `+` when files differ from it.
    pub commit: String,
    pub command: String,
}

impl Origin {
    pub fn now() -> Self {
        let line = |path: &str, name: &str| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let line = text.lines().find(|it| it.starts_with(name));
            let value = line.and_then(|it| it.split_once(':')).map(|it| it.1.trim().to_owned());
            value.unwrap_or_else(|| "unknown".to_owned())
        };
        let memory_kib = line("/proc/meminfo", "MemTotal");
        let memory_kib = memory_kib.split(' ').next().and_then(|it| it.parse::<u64>().ok());
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            date: clock::utc(),
            processor: line("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gib: memory_kib.unwrap_or(0) >> 20,
            kernel: release.trim().to_owned(),
            commit: commit(),
            command: command(std::env::args()),
        }
    }

    /// The day alone, for the names of folders.
    pub fn day(&self) -> &str {
        self.date.split('T').next().unwrap_or_default()
    }
}

fn commit() -> String {
    let git = |args: &[&str]| {
        let done = Command::new("git").args(args).output().ok()?;
        let text = String::from_utf8(done.stdout).ok()?;
        done.status.success().then(|| text.trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    let is_clean =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|it| it.is_empty());
    if is_clean { commit } else { commit + "+" }
}

/// The command as it could be typed; the program without its folder.
fn command(mut args: impl Iterator<Item = String>) -> String {
    let program = args.next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy();
    let quoted = |it: String| {
        let is_plain = |it: char| it.is_ascii_alphanumeric() || "-_=:/.,@{}+".contains(it);
        if !it.is_empty() && it.chars().all(is_plain) { it } else { format!("'{it}'") }
    };
    [program.into_owned()].into_iter().chain(args.map(quoted)).collect::<Vec<_>>().join(" ")
}

/// Seconds of processor time that this program has used; `None` where the system does not tell.
pub fn cpu_seconds() -> Option<f64> {
    cpu_seconds_of("self")
}

/// Seconds of processor time that another program has used.
pub fn cpu_seconds_of(pid: &str) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    ticks(&text).map(|it| it / TICKS_PER_SECOND)
}

/// KiB of memory that another program has resident.
pub fn resident_kib(pid: &str) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|it| it.strip_prefix("VmRSS:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

/// Linux tells processor time in hundredths of a second, whatever its own clock does.
const TICKS_PER_SECOND: f64 = 100.0;

/// User and system time of a line of `/proc/PID/stat`; the name in it may hold anything.
fn ticks(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut field = || fields.next()?.parse::<f64>().ok();
    Some(field()? + field()?)
}

#[cfg(test)]
mod tests;
