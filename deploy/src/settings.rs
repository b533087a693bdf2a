//! `crossover config`: the shipped configurations, and whether one would run.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use crate::config::EXIT_USAGE;
use crate::config::flags::{Example, Settings};
use crate::config::raw::Environment;
use crate::screen::Screen;
use crate::up::programs::{ENGINE, ROUTER};

const EXAMPLES: [(Example, &str); 3] = [
    (Example::Router, include_str!("../config/router.toml")),
    (Example::Speculative, include_str!("../config/engine-speculative.toml")),
    (Example::Throughput, include_str!("../config/engine-throughput.toml")),
];

pub(crate) fn run(settings: &Settings) -> ExitCode {
    let screen = Screen::new();
    match settings {
        Settings::Example { which } => {
            screen.line(example(*which).trim_end());
            ExitCode::SUCCESS
        }
        Settings::Check { files } => {
            let verdicts: Vec<_> = files.iter().map(|it| (it, check(it))).collect();
            for (file, verdict) in &verdicts {
                match verdict {
                    Ok(()) => screen.line(&format!("{}: good", file.display())),
                    Err(why) => screen.error(&format!("{}: {why}", file.display())),
                }
            }
            if verdicts.iter().all(|(_, it)| it.is_ok()) {
                ExitCode::SUCCESS
            } else {
                EXIT_USAGE.into()
            }
        }
    }
}

/// The text of a shipped configuration.
pub(crate) fn example(which: Example) -> &'static str {
    let found = EXAMPLES.iter().find(|(it, _)| *it == which);
    found.expect("every example has a text").1
}

/// Only an engine's file names a model or a mode; any other is told what a router's lacks.
fn judge(table: &toml::Table) -> &'static str {
    let is_engines = ["model", "mode", "device", "draft"].iter().any(|it| table.contains_key(*it));
    if is_engines { ENGINE } else { ROUTER }
}

/// Asks the program that would run the file, so that there is one judge only.
fn check(file: &Path) -> Result<(), String> {
    let text = fs::read_to_string(file).map_err(|it| it.to_string())?;
    let table: toml::Table = text.parse().map_err(|it| format!("{it}").trim_end().to_owned())?;
    let name = judge(&table);
    let front =
        Environment::read().executable.ok_or("the system does not tell this program's path")?;
    let beside = front.with_file_name(name);
    let program = if beside.is_file() { beside.as_os_str() } else { OsStr::new(name) };
    let output = Command::new(program)
        .arg("--config")
        .arg(file)
        .arg("--print-config")
        .stdin(Stdio::null())
        .output()
        .map_err(|it| format!("cannot ask {name}: {it}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{name} refuses it:\n{}", String::from_utf8_lossy(&output.stderr).trim_end()))
}

#[cfg(test)]
mod tests;
