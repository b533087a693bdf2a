//! Holds the CUDA backend to its promises on a GPU, and times it.
//!
//!     gpu pair MODEL HEAD GOLDEN [PROMPTS]    texts against the reference, modes and batches
//!     gpu steps [SHAPE...] [BATCH...]         time per step with random weights
//!     gpu prompts [SHAPE...]                  prompts alone and beside texts, random weights
//!     gpu switch [SHAPE...]                   drafts on and off ten times a second

#![expect(clippy::print_stdout, reason = "a program that prints its findings")]

mod drive;
mod pair;
mod prompts;
mod steps;
mod switch;

use std::error::Error;
use std::process::ExitCode;

fn run(args: &[String]) -> Result<bool, Box<dyn Error>> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["pair", model, head, golden, rest @ ..] => {
            let prompts = rest.first().map_or(Ok(200), |it| it.parse())?;
            pair::check(model.as_ref(), head.as_ref(), golden.as_ref(), prompts)
        }
        ["steps", wanted @ ..] => steps::time(wanted).map(|()| true),
        ["prompts", wanted @ ..] => prompts::time(wanted).map(|()| true),
        ["switch", wanted @ ..] => switch::time(wanted).map(|()| true),
        _ => {
            Err("usage: gpu pair MODEL HEAD GOLDEN [PROMPTS] | gpu steps [SHAPE...] [BATCH...] | \
                 gpu prompts [SHAPE...] | gpu switch [SHAPE...]"
                .into())
        }
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
