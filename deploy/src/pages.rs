//! Man pages and shell completions, made from the command line's own description.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_complete::generate_to;

use crate::config::flags::{Line, Pages};
use crate::screen::Screen;

pub(crate) fn run(flags: &Pages) -> ExitCode {
    match write(&flags.dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(it) => {
            Screen::new().error(&format!("crossover: cannot write {}: {it}", flags.dir.display()));
            ExitCode::FAILURE
        }
    }
}

/// `man/*.1` and `completions/*` below `dir`.
fn write(dir: &Path) -> io::Result<()> {
    let (man, completions) = (dir.join("man"), dir.join("completions"));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;
    let mut command = Line::command();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut command, "crossover", &completions)?;
    }
    clap_mangen::Man::new(command).render(&mut File::create(man.join("crossover.1"))?)
}
