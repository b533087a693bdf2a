//! Man pages and shell completions of the three programs, from their own descriptions.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate_to};

fn main() -> io::Result<()> {
    let dir = std::env::args_os().nth(1).ok_or_else(|| io::Error::other("name a directory"))?;
    write_all(Path::new(&dir))
}

/// `man/NAME.1`, one for each subcommand too, and `completions/` in the names that the shells look
/// for.
pub(crate) fn write_all(dir: &Path) -> io::Result<()> {
    let commands = [
        deploy::config::flags::Line::command(),
        engine::config::raw::Line::command(),
        router::config::raw::Args::command(),
    ];
    commands.into_iter().try_for_each(|it| write(it, dir))
}

fn write(mut command: Command, dir: &Path) -> io::Result<()> {
    let name = command.get_name().to_owned();
    let (man, completions) = (dir.join("man"), dir.join("completions"));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut command, &name, &completions)?;
    }
    clap_mangen::generate_to(command, man)
}
