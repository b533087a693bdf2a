//! Loads several targets in turns, round after round, and keeps what it saw.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};

use crate::arrivals::{Arrivals, Shape};
use crate::cell::{Cell, Place, Promise};
use crate::client::{Ask, Client, Target};
use crate::clock::{self, Clock};
use crate::lengths::Lengths;
use crate::load::Run;
use crate::load::closed::Closed;
use crate::load::open::Open;
use crate::machine::{self, Origin};
use crate::prompts::{Prompts, Set};
use crate::report::{self, Results};
use crate::sample::{Outcome, Sample, failures_told};
use crate::{scrape, target};

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// NAME=URL, or NAME=URL@ROLE to ask a router for a role; may be given several times.
    #[arg(long = "target", required = true, value_parser = target::parse)]
    pub targets: Vec<Target>,
    #[command(flatten)]
    pub load: LoadArgs,
}

/// How to load every target.
#[derive(Clone, Debug, clap::Args)]
pub struct LoadArgs {
    /// Closed loops: requests in flight, in the order measured
    /// [default: 1,2,4,8,16 if there are no --arrivals]
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=65_536)
    )]
    pub concurrency: Vec<u32>,
    /// An open loop: poisson:RATE, bursts:RATExSIZE, square:LOW-HIGH@HERTZ or trace:FILE; may be
    /// given several times
    #[arg(long)]
    pub arrivals: Vec<Shape>,
    /// How long requests come in an open loop.
    #[arg(long, default_value_t = 30.0, value_parser = crate::simulate::parse_seconds)]
    pub seconds: f64,
    /// What this client keeps open at most in an open loop; beyond it, it sends late.
    #[arg(
        long,
        default_value_t = 512,
        value_parser = clap::value_parser!(u32).range(1..=65_536)
    )]
    pub in_flight_max: u32,
    /// How often everything is measured.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Requests of one closed step: this many times its concurrency, and at least `--requests-min`.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub requests_each: u32,
    #[arg(long, default_value_t = 6)]
    pub requests_min: u32,
    #[arg(long, value_enum, default_value = "chat")]
    pub prompts: Set,
    /// A prompt a line, instead of a built-in set; a line may be a JSON string.
    #[arg(long)]
    pub prompts_file: Option<PathBuf>,
    /// Send all targets the same prompts within a round. Servers that know no `cache_salt` (vLLM
    /// and Crossover do) may then answer one target from what another left in a prefix cache.
    #[arg(long)]
    pub same_prompts: bool,
    /// Tokens asked of each request: N, LOW-HIGH or tail:MEAN.
    #[arg(long, default_value = "128")]
    pub tokens: Lengths,
    #[arg(long, default_value_t = 0.0)]
    pub temperature: f64,
    /// Go on past the model's own end, so that every request has the length it asked for.
    #[arg(long)]
    pub ignore_eos: bool,
    /// The model's name [default: the first that each target serves]
    #[arg(long)]
    pub model: Option<String>,
    /// A request is good when its first token came within this many milliseconds
    #[arg(long)]
    pub slo_ttft_ms: Option<f64>,
    /// and each further one took at most this many.
    #[arg(long)]
    pub slo_tpot_ms: Option<f64>,
    /// Metrics pages of the engines, to tell tokens a round; may be given several times.
    #[arg(long)]
    pub metrics: Vec<String>,
    /// Folder for raw lines, tables and pictures; `{date}` in it becomes the day.
    #[arg(long)]
    pub out: Option<String>,
    /// Allow targets that are not on this machine.
    #[arg(long)]
    pub allow_remote: bool,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// One kind of step.
#[derive(Clone, Debug)]
enum Load {
    Closed(u32),
    Open(Shape),
}

impl Load {
    fn label(&self) -> String {
        match self {
            Self::Closed(concurrency) => concurrency.to_string(),
            Self::Open(shape) => shape.to_string(),
        }
    }

    fn at(&self) -> f64 {
        match self {
            Self::Closed(concurrency) => f64::from(*concurrency),
            Self::Open(shape) => shape.rate_mean(),
        }
    }
}

/// Runs the sweep, prints its table and keeps its lines.
pub async fn run(args: Args) -> Result<(), String> {
    let results = measure(args.targets, &args.load).await?;
    report::show(&report::table(&results));
    some_done(&results)
}

/// An error when there is nothing behind the figures.
pub fn some_done(results: &Results) -> Result<(), String> {
    let is_done = results.samples.iter().any(|it| it.outcome == Outcome::Done);
    if is_done { Ok(()) } else { Err(failures_told(&results.samples).unwrap_or_default()) }
}

/// Writes the folder, where one was asked for.
fn keep(results: &Results, args: &LoadArgs) -> Result<(), String> {
    let Some(folder) = folder(results, args) else { return Ok(()) };
    report::folder::write(&folder, results)
        .map_err(|error| format!("cannot write {}: {error}", folder.display()))
}

fn folder(results: &Results, args: &LoadArgs) -> Option<PathBuf> {
    let folder = args.out.as_ref()?;
    Some(PathBuf::from(folder.replace("{date}", results.origin.day())))
}

/// Measures every target under every load in every round, and keeps it as it goes.
pub async fn measure(targets: Vec<Target>, args: &LoadArgs) -> Result<Results, String> {
    let sweep = Sweep::new(targets, args).await?;
    let steps = sweep.loads.len() * sweep.targets.len();
    let bar = ProgressBar::new(u64::from(args.rounds) * steps as u64);
    let form = "{wide_bar} {pos}/{len} steps, {eta} left";
    bar.set_style(ProgressStyle::with_template(form).expect("the form above is one"));
    let mut results = Results {
        origin: Origin::now(),
        targets: sweep.targets.iter().map(|it| it.name.clone()).collect(),
        loads: sweep.loads.iter().map(Load::label).collect(),
        cells: Vec::new(),
        samples: Vec::new(),
    };
    if let Some(folder) = folder(&results, args) {
        // What cannot be kept is not measured.
        std::fs::create_dir_all(&folder)
            .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    }
    bar.tick();
    for round in 0..args.rounds {
        for load in 0..sweep.loads.len() {
            for target in 0..sweep.targets.len() {
                let (cell, samples) = sweep.step(round, load, target).await;
                bar.suspend(|| {
                    report::progress(&cell.line());
                    failures_told(&samples).iter().for_each(|it| report::progress(it));
                });
                bar.inc(1);
                results.cells.push(cell);
                results.samples.extend(samples);
            }
            // Whoever stops it early has what was measured until then.
            keep(&results, args)?;
        }
    }
    bar.finish_and_clear();
    Ok(results)
}

struct Sweep<'a> {
    client: Client,
    targets: Vec<Target>,
    loads: Vec<Load>,
    prompts: Arc<Prompts>,
    args: &'a LoadArgs,
    /// Prompts of one step.
    block: u32,
    /// Another sweep on the same servers has another number.
    salt: u64,
}

impl<'a> Sweep<'a> {
    async fn new(mut targets: Vec<Target>, args: &'a LoadArgs) -> Result<Self, String> {
        targets.iter().try_for_each(|it| target::check(it, args.allow_remote))?;
        let client = Client::new(Clock::start());
        for target in &mut targets {
            target.model = match &args.model {
                Some(model) => model.clone(),
                None => client.model(target).await?,
            };
        }
        let closed = match &args.concurrency[..] {
            [] if args.arrivals.is_empty() => &[1, 2, 4, 8, 16],
            asked => asked,
        };
        let closed = closed.iter().copied().map(Load::Closed);
        let open = args.arrivals.iter().cloned().map(Load::Open);
        let loads: Vec<Load> = closed.chain(open).collect();
        // What is called the same could not be told apart in any table.
        distinct("target", targets.iter().map(|it| it.name.clone()))?;
        distinct("load", loads.iter().map(Load::label))?;
        let mut block = 0;
        for load in &loads {
            block = block.max(requests(load, args)?);
        }
        if !args.metrics.is_empty() && scrape::speculation(&client, &args.metrics).await.is_none() {
            return Err(format!("--metrics {}: cannot be read", args.metrics.join(", ")));
        }
        let prompts = Arc::new(Prompts::new(args.prompts, args.prompts_file.as_deref())?);
        let salt = clock::unix_ns();
        Ok(Self { client, targets, loads, prompts, args, block, salt })
    }

    async fn step(&self, round: u32, load: usize, target: usize) -> (Cell, Vec<Sample>) {
        let of_metrics = || scrape::speculation(&self.client, &self.args.metrics);
        let (before, cpu_before) = (of_metrics().await, machine::cpu_seconds());
        let start_ms = self.client.clock().ms();
        let run = self.load(round, load, target).await;
        let seconds = (self.client.clock().ms() - start_ms) / 1e3;
        let cpu = cpu_before.zip(machine::cpu_seconds());
        let promise =
            Promise { ttft_ms_max: self.args.slo_ttft_ms, tpot_ms_max: self.args.slo_tpot_ms };
        let place = Place {
            target: self.targets[target].name.clone(),
            load: self.loads[load].label(),
            at: self.loads[load].at(),
            round,
        };
        let mut cell = Cell::of(place, &run, &promise);
        cell.round_tokens = scrape::round_tokens(before, of_metrics().await);
        cell.client_cores = cpu.map(|(before, after)| (after - before) / seconds.max(1e-3));
        let samples = run.samples.into_iter().map(|it| Sample { round, ..it }).collect();
        (cell, samples)
    }

    async fn load(&self, round: u32, load: usize, target: usize) -> Run {
        let same = self.args.same_prompts;
        let block = match same {
            // One for each load and round, whatever the target.
            true => block(0, round as usize * self.loads.len() + load, 0, 1),
            false => block(round, load, target, self.targets.len()),
        };
        let first = block.wrapping_mul(self.block);
        // Prompts come again, from round to round and from target to target: none may be answered
        // from what an earlier step left in a prefix cache.
        let salt = format!("{}-{round}-{load}-{target}", self.salt);
        let (prompts, args) = (Arc::clone(&self.prompts), self.args.clone());
        let ask = move |index: u32| {
            let prompt = first.wrapping_add(index);
            Ask {
                prompt,
                text: prompts.text(prompt),
                tokens_max: args.tokens.of(prompt),
                temperature: args.temperature,
                seed: u64::from(prompt),
                ignore_eos: args.ignore_eos,
                drafts_max: None,
                cache_salt: Some(salt.clone()),
            }
        };
        let target = &self.targets[target];
        match &self.loads[load] {
            Load::Closed(concurrency) => {
                let requests = requests_closed(*concurrency, self.args);
                let closed = Closed { concurrency: *concurrency, requests };
                closed.run(&self.client, target, ask).await
            }
            Load::Open(shape) => {
                let open = Open {
                    shape: shape.clone(),
                    seconds: self.args.seconds,
                    in_flight_max: self.args.in_flight_max as usize,
                    // Every target meets the same times.
                    seed: seed(self.args, round),
                };
                open.run(&self.client, target, ask).await
            }
        }
    }
}

/// The chance of a round.
fn seed(args: &LoadArgs, round: u32) -> u64 {
    args.seed.wrapping_add(u64::from(round))
}

fn requests_closed(concurrency: u32, args: &LoadArgs) -> u32 {
    concurrency.saturating_mul(args.requests_each).max(args.requests_min)
}

/// What one step of an open loop may send: all of it is kept until the end.
const ARRIVALS_MAX: u32 = 1_000_000;

/// The most requests of one step, over all rounds.
fn requests(load: &Load, args: &LoadArgs) -> Result<u32, String> {
    let shape = match load {
        Load::Closed(concurrency) => return Ok(requests_closed(*concurrency, args)),
        Load::Open(shape) => shape,
    };
    let count = |round: u32| {
        let times = Arrivals::new(shape.clone(), seed(args, round));
        let due = times.take_while(|it| *it < args.seconds).take(ARRIVALS_MAX as usize);
        u32::try_from(due.count()).expect("at most a million")
    };
    let counts: Vec<u32> = (0..args.rounds).map(count).collect();
    let (least, most) = (counts.iter().min(), counts.iter().max());
    match (least.copied().unwrap_or(0), most.copied().unwrap_or(0)) {
        (0, _) => Err(format!("{shape}: no request comes within {} seconds", args.seconds)),
        (_, ARRIVALS_MAX) => Err(format!("{shape}: more than {ARRIVALS_MAX} requests")),
        (_, most) => Ok(most),
    }
}

/// An error when two have the same name.
fn distinct(what: &str, names: impl Iterator<Item = String>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for name in names {
        if seen.contains(&name) {
            return Err(format!("there are two {what}s called {name}"));
        }
        seen.insert(name);
    }
    Ok(())
}

/// Which block of prompts a step takes when targets do not get the same: in one round no two have
/// the same, since they may share engines and with them cached prefixes; from round to round they
/// change places, so that each text is seen from several targets.
fn block(round: u32, load: usize, target: usize, targets: usize) -> u32 {
    let turn = (target + usize::try_from(round).expect("32 bits fit")) % targets;
    u32::try_from(load * targets + turn).expect("there are few steps")
}

#[cfg(test)]
mod tests;
