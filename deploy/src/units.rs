//! `crossover units install`: the systemd units and what they need, without a package.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::config::EXIT_USAGE;
use crate::config::flags::{Example, Install, Units};
use crate::config::raw::Environment;
use crate::head;
use crate::screen::Screen;
use crate::settings::example;

/// (place below the root, text); the unit files name programs in /usr/bin.
const FILES: [(&str, &str); 9] = [
    ("etc/systemd/system/crossover.target", include_str!("../units/crossover.target")),
    (
        "etc/systemd/system/crossover-router.socket",
        include_str!("../units/crossover-router.socket"),
    ),
    (
        "etc/systemd/system/crossover-router.service",
        include_str!("../units/crossover-router.service"),
    ),
    (
        "etc/systemd/system/crossover-router-bridge.service",
        include_str!("../units/crossover-router-bridge.service"),
    ),
    (
        "etc/systemd/system/crossover-router.service.d/keys.conf.example",
        include_str!("../units/crossover-router.service.d/keys.conf.example"),
    ),
    (
        "etc/systemd/system/crossover-engine@.service",
        include_str!("../units/crossover-engine@.service"),
    ),
    ("etc/sysusers.d/crossover.conf", include_str!("../units/crossover.sysusers")),
    ("etc/tmpfiles.d/crossover.conf", include_str!("../units/crossover.tmpfiles")),
    ("etc/crossover/README", include_str!("../units/README.installed")),
];

/// Configurations, which are the operator's own once they are there.
const SETTINGS: [(&str, Example); 3] = [
    ("etc/crossover/router.toml", Example::Router),
    ("etc/crossover/engine-speculative.toml", Example::Speculative),
    ("etc/crossover/engine-throughput.toml", Example::Throughput),
];

/// What a unit's program cannot see, by `ProtectHome=` and `PrivateTmp=`.
const HIDDEN: [&str; 5] = ["/home", "/root", "/run/user", "/tmp", "/var/tmp"];

pub(crate) fn run(units: &Units) -> ExitCode {
    let Units::Install(flags) = units;
    let screen = Screen::new();
    let beside = Environment::read().executable.and_then(|it| it.parent().map(Path::to_owned));
    let programs = flags.programs.clone().or(beside).unwrap_or_else(|| "/usr/bin".into());
    let programs = match seen_by_units(&programs) {
        Ok(programs) => programs,
        Err(why) => {
            screen.error(&format!("crossover: --programs: {} {why}", programs.display()));
            return EXIT_USAGE.into();
        }
    };
    match install(flags, &programs) {
        Ok(lines) => {
            lines.iter().for_each(|it| screen.line(it));
            if !flags.dry_run {
                screen.line(
                    "\nNothing was started. Look at /etc/crossover, then:\n    systemd-sysusers && \
                     systemd-tmpfiles --create && systemctl daemon-reload\n    \
                     systemctl enable --now crossover.target",
                );
            }
            ExitCode::SUCCESS
        }
        Err((path, it)) => {
            screen.error(&format!("crossover: cannot write {}: {it}", path.display()));
            ExitCode::FAILURE
        }
    }
}

/// The directory as a unit can name it: whole, of plain characters, where its programs see.
fn seen_by_units(programs: &Path) -> Result<PathBuf, String> {
    let whole = std::path::absolute(programs).map_err(|it| format!("has no whole path: {it}"))?;
    let is_plain = |it: u8| it.is_ascii_alphanumeric() || b"/-_.+:@".contains(&it);
    if !whole.as_os_str().as_encoded_bytes().iter().copied().all(is_plain) {
        return Err("has characters that mean something else in a unit".to_owned());
    }
    let real = fs::canonicalize(&whole).unwrap_or_else(|_| whole.clone());
    let is_below = |it: &&&str| whole.starts_with(it) || real.starts_with(it);
    match HIDDEN.iter().find(is_below) {
        Some(hidden) => Err(format!(
            "is below {hidden}, where units see nothing; put the programs elsewhere, such as \
             /opt/crossover"
        )),
        None => Ok(whole),
    }
}

/// Writes every file; one line for each.
fn install(flags: &Install, programs: &Path) -> Result<Vec<String>, (PathBuf, io::Error)> {
    let mut said = Vec::new();
    for (place, text) in FILES {
        let path = flags.root.join(place);
        if !flags.dry_run {
            let text =
                text.replace("/usr/bin/crossover", &format!("{}/crossover", programs.display()));
            write(&path, &text).map_err(|it| (path.clone(), it))?;
        }
        said.push(format!("wrote {}", path.display()));
    }
    for (place, which) in SETTINGS {
        let path = flags.root.join(place);
        if path.exists() {
            said.push(format!("kept  {}", path.display()));
            continue;
        }
        if !flags.dry_run {
            let text = with_head(example(which), programs);
            write(&path, &text).map_err(|it| (path.clone(), it))?;
        }
        said.push(format!("wrote {}", path.display()));
    }
    if flags.dry_run {
        said = said.into_iter().map(|it| it.replacen("wrote", "would write", 1)).collect();
    }
    Ok(said)
}

/// An unpacked archive has the shipped head beside the programs.
fn with_head(text: &str, programs: &Path) -> String {
    let beside = programs.join("models");
    if beside.join(head::NAME).is_dir() {
        text.replace("/usr/share/crossover/models", &beside.display().to_string())
    } else {
        text.to_owned()
    }
}

/// Whole or not at all, as a unit may be read at any time.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let dir = path.parent().expect("a place below a root");
    fs::create_dir_all(dir)?;
    let made = path.with_extension("new");
    fs::write(&made, text)?;
    fs::rename(&made, path)
}

#[cfg(test)]
mod tests;
