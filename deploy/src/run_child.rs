//! `crossover run-child`: becomes another program that the system ends with its parent.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::config::flags::RunChild;
use crate::screen::Screen;

/// Returns only when it fails. The wish survives the exec; a parent that died before it was made is
/// seen by its number.
pub(crate) fn run(flags: &RunChild) -> ExitCode {
    if let Err(it) = set_parent_process_death_signal(Some(Signal::KILL)) {
        Screen::new().error(&format!("crossover: cannot follow its parent: {it}"));
        return ExitCode::FAILURE;
    }
    let parent = getppid().map(|it| it.as_raw_nonzero().get().unsigned_abs());
    if parent != Some(flags.parent) {
        return ExitCode::FAILURE;
    }
    let (program, args) = flags.command.split_first().expect("clap requires one word");
    let error = Command::new(program).args(args).exec();
    Screen::new().error(&format!("crossover: {}: {error}", program.display()));
    ExitCode::FAILURE
}
