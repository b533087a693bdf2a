//! Finds the crossover of a pair and writes the file that router and engine read.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use router::calibration::{self, Identity};
use router::config::Role;
use serde_json::Value;

use crate::calibration::{File, Key};
use crate::client::{Ask, Client, Target};
use crate::clock::{self, Clock};
use crate::load::closed::Closed;
use crate::prompts::{self, Set};
use crate::report;
use crate::sample::failures_told;
use crate::target;

pub mod confidence;
pub mod depth;
pub mod search;

use depth::Drafting;
use search::{Measure, Rules, Search, usual_ladder};

/// Which pair, and how well to look.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The instance that speculates.
    #[arg(long, default_value = "http://127.0.0.1:8101")]
    pub speculative: String,
    /// The instance that does not.
    #[arg(long, default_value = "http://127.0.0.1:8102")]
    pub throughput: String,
    /// Look only at how many drafts pay on the instance that speculates, which has no other
    /// beside it; the file is for `--draft-until auto` alone.
    #[arg(long)]
    pub one: bool,
    /// The file to write; one that is there and still right is left as it is.
    #[arg(long, default_value = "calibration.json")]
    pub out: PathBuf,
    /// Measure anew even when the file that is there is still right.
    #[arg(long)]
    pub again: bool,
    /// Part of the key: how weights are stored; what the instance says, unless given.
    #[arg(long, default_value = "")]
    pub quantisation: String,
    /// Part of the key: what one instance has; what the instance says, unless given.
    #[arg(long, default_value = "")]
    pub device: String,
    /// The most requests in flight on one instance to look at.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub in_flight_max: u32,
    /// The most drafts to look at [default: what the speculative instance makes; 0 for an instance
    /// that is not told by a request how many]
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=16))]
    pub drafts_max: Option<u32>,
    /// Runs of each instance at one load: at least these many,
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=100))]
    pub repeats_min: u32,
    /// and at most these, while it is not sure which is faster.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(2..=100))]
    pub repeats_max: u32,
    /// When it is sure: a chance between 0.5 and 1.
    #[arg(long, default_value_t = 0.95, value_parser = parse_chance)]
    pub sure: f64,
    /// Requests of one run: this many times what is in flight, and at least `--requests-min`. A run
    /// of once what is in flight would be counted only until the luckiest answer ends, and be
    /// prompts for the most part: drafts would look worse than they are.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=100))]
    pub requests_each: u32,
    #[arg(long, default_value_t = 6)]
    pub requests_min: u32,
    #[arg(long, value_enum, default_value = "chat")]
    pub prompts: Set,
    /// Tokens of each answer.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens: u32,
    /// Let answers end where they end, with so many tokens at most. What comes after an end is hard
    /// to guess, so without this a head looks worse than it is on chat.
    #[arg(long)]
    pub natural_ends: bool,
    /// Allow instances that are not on this machine.
    #[arg(long)]
    pub allow_remote: bool,
}

fn parse_chance(text: &str) -> Result<f64, String> {
    let chance = text.parse().ok().filter(|it: &f64| 0.5 < *it && *it < 1.0);
    chance.ok_or_else(|| format!("{text:?} is not a chance between 0.5 and 1"))
}

/// Measures, writes and says what was found.
pub async fn run(args: &Args) -> Result<(), String> {
    can_be_written(args)?;
    let mut pair = Pair::connect(args).await?;
    let key = pair.key().await?;
    if args.one {
        let depth = pair.depth().await?.unwrap_or_default();
        return keep(args, key, File::of(Vec::new(), Vec::new()), Some(depth));
    }
    let rules = Rules {
        ladder: usual_ladder(args.in_flight_max),
        repeats_min: args.repeats_min,
        repeats_max: args.repeats_max.max(args.repeats_min),
        sure: args.sure,
    };
    if !args.again
        && let Some(high) = standing(&args.out, &key)
    {
        let mut search = Search::new(&mut pair, rules.clone());
        if search.confirms(high).await? {
            let at = args.out.display();
            report::show(&format!(
                "{at} still stands: threshold {high} ({} runs); --again measures anew.",
                search.runs()
            ));
            return Ok(());
        }
    }
    let mut search = Search::new(&mut pair, rules);
    let crossing = search.run().await?;
    let together = Some(search.together(crossing).await?);
    let file = search.file(crossing);
    let found = search.sentence(crossing);
    let depth = pair.depth().await?;
    report::show(&found);
    keep(args, key, File { together, ..file }, depth)
}

/// Writes the file, and says which depths it has, if they were looked at.
fn keep(args: &Args, key: Key, file: File, depth: Option<depth::Table>) -> Result<(), String> {
    let found = depth.as_deref().map(depth::sentence);
    let depth = depth.unwrap_or_default();
    let file = File { key, measured: clock::utc(), depth, ..file };
    if !args.one {
        // A router would refuse it and keep what it has: no reason to lose what is there.
        file.read_by_router().map_err(|why| format!("found what no router takes: {why}"))?;
    }
    let (place, made) = places(&args.out);
    let written = fs::write(&made, file.text()).and_then(|()| fs::rename(&made, &place));
    written.map_err(|error| format!("cannot write {}: {error}", args.out.display()))?;
    found.iter().for_each(|it| report::show(it));
    Ok(())
}

/// Where the file is, whatever links to it, and where it is written: whole, then renamed, since a
/// router that reloads meanwhile must read the old file or the new one.
fn places(path: &Path) -> (PathBuf, PathBuf) {
    let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut made = place.clone().into_os_string();
    made.push(".new");
    (place, made.into())
}

/// Told before a quarter of an hour is spent on what cannot be kept, or replaces more than it is.
fn can_be_written(args: &Args) -> Result<(), String> {
    let at = args.out.display();
    let (place, made) = places(&args.out);
    if place.exists() && !place.is_file() {
        return Err(format!("cannot write {at}: it is not a file"));
    }
    let tried = fs::write(&made, "").and_then(|()| fs::remove_file(&made));
    tried.map_err(|error| format!("cannot write {at}: {error}"))?;
    let has_curves = || {
        let file: File = serde_json::from_str(&fs::read_to_string(&args.out).ok()?).ok()?;
        Some(file.curves.values().any(|it| !it.is_empty()))
    };
    if args.one && !args.again && has_curves() == Some(true) {
        return Err(format!(
            "{at} has the curves of a pair, which --one would lose: give another --out, or --again"
        ));
    }
    Ok(())
}

/// Whether a router would use a file with this key for such an instance; the error is why not.
fn usable(key: &Key, info: &Value) -> Result<(), String> {
    let told = |field: &str| info[field].as_str().map(str::to_owned);
    let identity =
        Identity { models: None, quantisation: told("quantisation"), device: told("device") };
    let Key { model, quantisation, device } = key.clone();
    let key = calibration::Key { model, quantisation, device };
    match key.mismatch(&identity) {
        Some(why) => Err(format!("the file {why}; no router would take it")),
        None => Ok(()),
    }
}

/// The threshold of a file that was made for the same key.
fn standing(path: &Path, key: &Key) -> Option<u32> {
    let file: File = serde_json::from_str(&fs::read_to_string(path).ok()?).ok()?;
    file.read_by_router().ok()?;
    (file.key == *key).then_some(file.threshold?.high)
}

/// Two running instances.
struct Pair {
    client: Client,
    targets: [Target; 2],
    args: Args,
    /// Prompts used so far; an instance sees none twice, and both see the same.
    prompts: [u32; 2],
    /// Another calibration of the same instances has another number.
    salt: u64,
}

impl Pair {
    async fn connect(args: &Args) -> Result<Self, String> {
        let client = Client::new(Clock::start());
        let mut targets = Vec::new();
        let other = if args.one { &args.speculative } else { &args.throughput };
        for (role, url) in Role::ALL.into_iter().zip([&args.speculative, other]) {
            let mut target = target::parse(&format!("{}={url}", role.label()))?;
            target::check(&target, args.allow_remote)?;
            target.model = client.model(&target).await?;
            targets.push(target);
        }
        let targets: [Target; 2] = targets.try_into().expect("there are two roles");
        if targets[0].model != targets[1].model {
            let mut why = String::from("the instances serve different models:");
            for target in &targets {
                write!(why, " {:?}", target.model).expect("a string takes all");
            }
            return Err(why);
        }
        Ok(Self { client, targets, args: args.clone(), prompts: [0, 0], salt: clock::unix_ns() })
    }

    /// What is given, or else what the instances say.
    async fn key(&self) -> Result<Key, String> {
        let [first, second] = &self.targets;
        let infos = [self.client.info(first).await, self.client.info(second).await];
        let part = |flag: &str, field: &str| match flag {
            "" => infos[0][field].as_str().unwrap_or_default().to_owned(),
            given => given.to_owned(),
        };
        let device = Key { device: part(&self.args.device, "device"), ..Key::default() };
        let mut key = Key {
            model: first.model.clone(),
            quantisation: part(&self.args.quantisation, "quantisation"),
            ..device.clone()
        };
        if self.args.device.is_empty() && usable(&device, &infos[1]).is_err() {
            report::progress("The instances have unlike devices: the file's key names none.");
            key.device.clear();
        }
        for (target, info) in self.targets.iter().zip(&infos) {
            usable(&key, info).map_err(|why| format!("{}: {why}", target.name))?;
        }
        Ok(key)
    }

    /// Drafts by load; nothing where the instance makes none.
    async fn depth(&mut self) -> Result<Option<depth::Table>, String> {
        let drafts_max = match self.args.drafts_max {
            Some(drafts) => drafts,
            None => self.client.draft_depth(&self.targets[0]).await,
        };
        if drafts_max == 0 {
            return Ok(None);
        }
        let doubles = |it: &u32| it.is_power_of_two();
        let ladder: Vec<u32> =
            usual_ladder(self.args.in_flight_max).into_iter().filter(doubles).collect();
        let repeats = self.args.repeats_min;
        depth::table(self, &ladder, drafts_max, repeats).await.map(Some)
    }

    fn requests(&self, in_flight: u32) -> u32 {
        (in_flight * self.args.requests_each).max(self.args.requests_min)
    }

    /// Prompts that the instance has not seen, for `requests` requests.
    fn fresh(&mut self, at: usize, requests: u32) -> Like {
        let first = self.prompts[at];
        self.prompts[at] = first.wrapping_add(requests);
        // What an earlier calibration left in a prefix cache would favour one of the two.
        Like { requests, first, drafts_max: None, cache_salt: self.salt.to_string() }
    }

    async fn run(&self, at: usize, in_flight: u32, like: Like) -> Result<f64, String> {
        let (set, tokens_max) = (self.args.prompts, self.args.tokens);
        let ignore_eos = !self.args.natural_ends;
        let Like { requests, first, drafts_max, cache_salt } = like;
        let ask = move |index| Ask {
            prompt: first.wrapping_add(index),
            text: prompts::prompt(set, first.wrapping_add(index)),
            tokens_max,
            temperature: 0.0,
            seed: u64::from(first.wrapping_add(index)),
            ignore_eos,
            drafts_max,
            cache_salt: Some(cache_salt.clone()),
        };
        let closed = Closed { concurrency: in_flight, requests };
        let run = closed.run(&self.client, &self.targets[at], ask).await;
        match failures_told(&run.samples) {
            None => Ok(run.tokens_per_second()),
            Some(why) => {
                Err(format!("{}: {why}, with {in_flight} in flight", self.targets[at].name))
            }
        }
    }
}

/// What the requests of one run have in common.
#[derive(Clone, Debug)]
struct Like {
    requests: u32,
    first: u32,
    drafts_max: Option<u32>,
    cache_salt: String,
}

impl Drafting for Pair {
    async fn total_with(
        &mut self,
        drafts: u32,
        in_flight: u32,
        repeat: u32,
    ) -> Result<f64, String> {
        let like = Like {
            requests: self.requests(in_flight),
            first: repeat * self.args.in_flight_max.saturating_mul(self.args.requests_each),
            drafts_max: Some(drafts),
            cache_salt: format!("{}-{drafts}-{in_flight}-{repeat}", self.salt),
        };
        let total = self.run(0, in_flight, like).await?;
        report::progress(&format!(
            "{in_flight:>4} in flight  {drafts:>2} drafts    {total:8.1} tok/s"
        ));
        Ok(total)
    }
}

impl Measure for &mut Pair {
    async fn total(&mut self, role: Role, in_flight: u32) -> Result<f64, String> {
        let at = usize::from(role == Role::Throughput);
        let like = self.fresh(at, self.requests(in_flight));
        let total = self.run(at, in_flight, like).await?;
        let name = role.label();
        report::progress(&format!("{in_flight:>4} in flight  {name:<12} {total:8.1} tok/s"));
        Ok(total)
    }

    async fn both(&mut self, in_flight: u32, alone: [f64; 2]) -> Result<[f64; 2], String> {
        let slower = alone[0].min(alone[1]);
        let requests = |speed: f64| f64::from(self.requests(in_flight)) * speed / slower;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "above 0, and a cast saturates"
        )]
        let requests = alone.map(|it| requests(it).round() as u32);
        let (first, second) = (self.fresh(0, requests[0]), self.fresh(1, requests[1]));
        let (first, second) =
            tokio::join!(self.run(0, in_flight, first), self.run(1, in_flight, second));
        let both = [first?, second?];
        let total = both[0] + both[1];
        report::progress(&format!("{in_flight:>4} in flight  both at once {total:8.1} tok/s"));
        Ok(both)
    }
}

#[cfg(test)]
mod tests;
