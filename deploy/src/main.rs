//! The front door: reads the command line and does what it says.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use deploy::config::EXIT_USAGE;
use deploy::config::flags::Line;

fn main() -> ExitCode {
    match Line::try_parse() {
        Ok(line) => deploy::run(&line.command),
        Err(it) => {
            let code = if it.use_stderr() { EXIT_USAGE.into() } else { ExitCode::SUCCESS };
            // Nobody is left to tell when standard error is closed.
            drop(it.print());
            code
        }
    }
}
