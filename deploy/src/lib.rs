//! Puts a pair of engines and the router up on one machine, and says what a machine is worth.

#![forbid(unsafe_code)]

use std::process::ExitCode;

pub mod config;
pub mod exposition;
pub mod fetch;
pub mod head;
pub mod machine;
pub mod screen;

mod ask;
mod body;
mod clock;
mod doctor;
mod run_child;
mod settings;
mod status;
mod units;
mod up;

use config::flags::{Command, Fetch};
use screen::Screen;

/// Does what the command line says; the code is 0, 1 (it failed) or 64 (it makes no sense).
pub fn run(command: &Command) -> ExitCode {
    match command {
        Command::Up(flags) => up::run(flags),
        Command::Fetch(flags) => fetch(flags),
        Command::Doctor(flags) => doctor::run(flags),
        Command::Status(flags) => status::run(flags),
        Command::Config(settings) => settings::run(settings),
        Command::Units(units) => units::run(units),
        Command::RunChild(flags) => run_child::run(flags),
    }
}

fn fetch(flags: &Fetch) -> ExitCode {
    let mut screen = Screen::new();
    let cache = config::cache(flags.model.cache.as_deref());
    let model = cache.and_then(|cache| {
        fetch::model(&flags.model.model.parse()?, &cache, &mut |it| screen.progress(it))
    });
    screen.clear();
    match model {
        Ok(path) => {
            screen.line(&path.display().to_string());
            ExitCode::SUCCESS
        }
        Err(it) => {
            screen.error(&format!("crossover: {it}"));
            ExitCode::FAILURE
        }
    }
}
