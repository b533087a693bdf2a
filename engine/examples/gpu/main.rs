//! Holds the CUDA backend to its promises on a GPU, and times it.
//!
//!     gpu pair MODEL HEAD GOLDEN [PROMPTS]    texts against the reference, modes and batches
//!     gpu pair SHAPE [PROMPTS]                texts of random weights against each other
//!     gpu steps [SHAPE...] [BATCH...]         time per step with random weights
//!     gpu prompts [SHAPE...]                  prompts alone and beside texts, random weights
//!     gpu switch [SHAPE...]                   drafts on and off ten times a second
//!
//! `gpu --quantization fp8 ...` stores weights in 8 bits. `gpu --gpus 0,1 ...` computes on these
//! GPUs together. One that is named twice has two ranks: for `pair` alone, which then keeps to
//! small steps.

#![expect(clippy::print_stdout, reason = "a program that prints its findings")]

mod drive;
mod pair;
mod prompts;
mod steps;
mod switch;

use std::error::Error;
use std::process::ExitCode;

use kernels::cuda::Card;
use kernels::ops::matmul::Format;

/// Where and how a model is laid out.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) cards: Vec<Card>,
    pub(crate) weights: Format,
}

/// Takes the options off the front of the words.
fn layout<'a>(mut args: &'a [&'a str]) -> Result<(Layout, &'a [&'a str]), Box<dyn Error>> {
    let mut layout = Layout { cards: vec![Card::Number(0)], weights: Format::Bf16 };
    loop {
        match args {
            ["--gpus", numbers, rest @ ..] => {
                let numbers = numbers.split(',').map(str::parse);
                let numbers: Vec<usize> = numbers.collect::<Result<_, _>>()?;
                layout.cards = numbers.into_iter().map(Card::Number).collect();
                args = rest;
            }
            ["--quantization", "fp8", rest @ ..] => (layout.weights, args) = (Format::Fp8, rest),
            _ => return Ok((layout, args)),
        }
    }
}

fn run(args: &[String]) -> Result<bool, Box<dyn Error>> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (layout, args) = layout(&args)?;
    match args {
        ["pair", shape, rest @ ..] if rest.len() < 2 => {
            let shape = steps::shapes(&[*shape]).next().ok_or("no such shape")?;
            let prompts = rest.first().map_or(Ok(100), |it| it.parse())?;
            pair::check_random(&layout, shape, prompts)
        }
        ["pair", model, head, golden, rest @ ..] => {
            let prompts = rest.first().map_or(Ok(200), |it| it.parse())?;
            pair::check(&layout, model.as_ref(), head.as_ref(), golden.as_ref(), prompts)
        }
        ["steps", wanted @ ..] => steps::time(&layout, wanted).map(|()| true),
        ["prompts", wanted @ ..] => prompts::time(&layout, wanted).map(|()| true),
        ["switch", wanted @ ..] => switch::time(&layout, wanted).map(|()| true),
        _ => Err("usage: gpu [--gpus LIST] [--quantization fp8] \
                  pair MODEL HEAD GOLDEN [PROMPTS] | pair SHAPE [PROMPTS] | \
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
