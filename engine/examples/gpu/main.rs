//! Holds the CUDA backend to its promises on a GPU, and times it.
//!
//!     gpu pair MODEL HEAD GOLDEN [PROMPTS]    texts against the reference, modes and batches
//!     gpu steps [SHAPE...] [BATCH...]         time per step with random weights
//!     gpu prompts [SHAPE...]                  prompts alone and beside texts, random weights
//!     gpu switch [SHAPE...]                   drafts on and off ten times a second
//!
//! `gpu --gpus 0,1 ...` computes on these GPUs together. One that is named twice has two ranks: for
//! `pair` alone, which then keeps to small steps.

#![expect(clippy::print_stdout, reason = "a program that prints its findings")]

mod drive;
mod pair;
mod prompts;
mod steps;
mod switch;

use std::error::Error;
use std::process::ExitCode;

use kernels::cuda::Card;

fn run(args: &[String]) -> Result<bool, Box<dyn Error>> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (numbers, args) = match args.as_slice() {
        ["--gpus", numbers, rest @ ..] => (*numbers, rest),
        all => ("0", all),
    };
    let numbers: Vec<usize> = numbers.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let cards: Vec<Card> = numbers.into_iter().map(Card::Number).collect();
    match args {
        ["pair", model, head, golden, rest @ ..] => {
            let prompts = rest.first().map_or(Ok(200), |it| it.parse())?;
            pair::check(&cards, model.as_ref(), head.as_ref(), golden.as_ref(), prompts)
        }
        ["steps", wanted @ ..] => steps::time(&cards, wanted).map(|()| true),
        ["prompts", wanted @ ..] => prompts::time(&cards, wanted).map(|()| true),
        ["switch", wanted @ ..] => switch::time(&cards, wanted).map(|()| true),
        _ => Err("usage: gpu [--gpus LIST] pair MODEL HEAD GOLDEN [PROMPTS] | \
                  steps [SHAPE...] [BATCH...] | prompts [SHAPE...] | switch [SHAPE...]"
            .into()),
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
