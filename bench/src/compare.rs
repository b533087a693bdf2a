//! The same load on our own endpoint and on peers that are installed here, ratios from one run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::client::Client;
use crate::clock::Clock;
use crate::report::{self, Results};
use crate::sweep;
use crate::target::{self, Target};

pub mod peer;

use peer::{Kind, Pair, Peer, Start};

/// Our own pair, the peers, and the load.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Our router in front of the pair.
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    pub routed: String,
    /// The pair itself, for routers that are put in front of it.
    #[arg(long, default_value = "http://127.0.0.1:8101")]
    pub speculative: String,
    #[arg(long, default_value = "http://127.0.0.1:8102")]
    pub throughput: String,
    /// What HAProxy sends to the speculative instance before it uses the other.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub high: u32,
    /// Peers to compare with.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "llama-server,haproxy,nginx,sglang-router,vllm-router"
    )]
    pub peers: Vec<Kind>,
    /// Where a peer's program is, KIND=PATH, if not where programs usually are.
    #[arg(long = "program", value_parser = parse_program)]
    pub programs: Vec<(Kind, PathBuf)>,
    /// The model's file, for llama-server.
    #[arg(long)]
    pub gguf: Option<PathBuf>,
    /// Threads of llama-server [default: all cores]
    #[arg(long)]
    pub threads: Option<usize>,
    #[command(flatten)]
    pub load: sweep::LoadArgs,
}

fn parse_program(text: &str) -> Result<(Kind, PathBuf), String> {
    let (kind, path) = text.split_once('=').ok_or("a program is KIND=PATH")?;
    Ok((<Kind as clap::ValueEnum>::from_str(kind, false)?, PathBuf::from(path)))
}

/// Starts the peers, loads all of them and our own in turns, prints ratios and stops the peers.
pub async fn run(mut args: Args) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
    let programs: BTreeMap<Kind, PathBuf> = args.programs.iter().cloned().collect();
    let ours = named(OURS, &args.routed)?;
    target::check(&ours, args.load.allow_remote)?;
    let mut targets = vec![ours];
    if args.load.model.is_none() {
        // What proxies in front of our pair call it is theirs: SGLang's says "unknown".
        args.load.model = Some(Client::new(Clock::start()).model(&targets[0]).await?);
    }
    // Held until the end: a peer stops when it is dropped.
    let mut running: Vec<Peer> = Vec::new();
    for &kind in &args.peers {
        let program = programs.get(&kind).cloned().unwrap_or_else(|| kind.label().into());
        let start = Start {
            kind,
            program,
            folder: folder.path().to_owned(),
            pair: Pair {
                speculative: args.speculative.clone(),
                throughput: args.throughput.clone(),
                high: args.high,
            },
            gguf: args.gguf.clone(),
            threads: args.threads,
            in_flight_max: args.load.concurrency.iter().copied().max().unwrap_or(16),
        };
        match start.run().await {
            Ok(peer) => {
                let headers = kind.headers();
                targets.push(Target { headers, ..named(kind.label(), &peer.url)? });
                running.push(peer);
            }
            Err(why) => report::progress(&format!("without {}: {why}", kind.label())),
        }
    }
    let results = sweep::measure(targets, &args.load).await?;
    report::show(&format!("{}\n{}", report::table(&results), ratios(&results)));
    drop(running);
    sweep::some_done(&results)
}

const OURS: &str = "crossover";

fn named(name: &str, url: &str) -> Result<Target, String> {
    target::parse(&format!("{name}={url}"))
}

/// Ours over each peer's: above 1 we are faster.
fn ratios(results: &Results) -> String {
    let peers: Vec<&String> = results.targets.iter().filter(|it| *it != OURS).collect();
    let mut text = String::from("| load |");
    peers.iter().for_each(|it| text.push_str(&format!(" over {it} |")));
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(peers.len()));
    for load in &results.loads {
        text.push_str(&format!("\n| {load} |"));
        for peer in &peers {
            let ratio = |value: fn(&crate::cell::Cell) -> f64| {
                let (ours, theirs) =
                    (results.median(OURS, load, value), results.median(peer, load, value));
                if 0.0 < theirs { format!("{:.2}", ours / theirs) } else { "-".to_owned() }
            };
            let failed = results.failures(OURS, load) + results.failures(peer, load);
            let mark = if failed == 0 { "" } else { " !" };
            let (total, each) = (ratio(|it| it.total), ratio(|it| it.each));
            text.push_str(&format!(" {total} / {each}{mark} |"));
        }
    }
    text.push_str(
        "\n\nOurs over theirs: total tok/s / median tok/s of a request. With ! some requests \
         failed.\n",
    );
    text
}

#[cfg(test)]
mod tests;
