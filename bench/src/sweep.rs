//! Climbs a ladder of concurrencies against several targets in one run, round after round.

use std::path::PathBuf;

use crate::client::{Ask, Client, Target};
use crate::clock::Clock;
use crate::load::Run;
use crate::load::closed::Closed;
use crate::prompts::{self, Set};
use crate::report::{self, Cell};
use crate::target;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// NAME=URL, or NAME=URL@ROLE to ask a router for a role; may be given several times.
    #[arg(long = "target", required = true, value_parser = target::parse)]
    pub targets: Vec<Target>,
    /// Requests in flight, in the order measured.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16")]
    pub concurrency: Vec<u32>,
    /// How often the whole ladder is climbed.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Requests of one step: this many times its concurrency, and at least `--requests-min`.
    #[arg(long, default_value_t = 3)]
    pub requests_each: u32,
    #[arg(long, default_value_t = 6)]
    pub requests_min: u32,
    #[arg(long, value_enum, default_value = "chat")]
    pub prompts: Set,
    /// Tokens asked of each request.
    #[arg(long, default_value_t = 128)]
    pub tokens: u32,
    #[arg(long, default_value_t = 0.0)]
    pub temperature: f64,
    /// Go on past the model's own end, so that every request has the same length.
    #[arg(long)]
    pub ignore_eos: bool,
    #[arg(long, default_value = "default")]
    pub model: String,
    /// Folder for the raw lines and the table.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Allow targets that are not on this machine.
    #[arg(long)]
    pub allow_remote: bool,
}

/// Runs the sweep, prints its table and keeps its lines.
pub async fn run(args: Args) -> Result<(), String> {
    args.targets.iter().try_for_each(|it| target::check(it, args.allow_remote))?;
    let client = Client::new(Clock::start());
    let mut cells: Vec<Cell> = Vec::new();
    let mut samples = Vec::new();
    for round in 0..args.rounds {
        for &concurrency in &args.concurrency {
            for target in &args.targets {
                let done = step(&client, &args, target, concurrency).await;
                report::progress(round, target, concurrency, &done);
                cells.push(Cell::of(target, concurrency, &done));
                samples.extend(done.samples.into_iter().map(|mut it| {
                    it.round = round;
                    it
                }));
            }
        }
    }
    let table = report::table(&args.targets, &args.concurrency, &cells, &samples);
    report::show(&table);
    if let Some(folder) = &args.out {
        report::keep(folder, &table, &samples)
            .map_err(|error| format!("cannot write {}: {error}", folder.display()))?;
    }
    Ok(())
}

async fn step(client: &Client, args: &Args, target: &Target, concurrency: u32) -> Run {
    let closed =
        Closed { concurrency, requests: (concurrency * args.requests_each).max(args.requests_min) };
    let target = Target { model: args.model.clone(), ..target.clone() };
    let args = args.clone();
    let ask = move |index| Ask {
        prompt: index,
        text: prompts::prompt(args.prompts, index),
        tokens_max: args.tokens,
        temperature: args.temperature,
        seed: u64::from(index),
        ignore_eos: args.ignore_eos,
    };
    closed.run(client, &target, ask).await
}
