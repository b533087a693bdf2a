//! The live line: what is in flight where, what was chosen, how fast it goes.

use reqwest::Client;
use tokio::time::Instant;

use super::ready;
use crate::clock;
use crate::config::{Up, reachable};
use crate::exposition::Exposition;

/// Asks the metrics of all three and remembers the last answers, for rates.
#[derive(Debug)]
pub(super) struct Gauges {
    client: Client,
    router: String,
    engines: [String; 2],
    high: u32,
    before: Option<(Instant, [Counts; 2])>,
}

/// What an engine has done since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    tokens: f64,
    rounds: f64,
    accepted: f64,
}

impl Gauges {
    pub(super) fn new(config: &Up) -> Self {
        let at = &config.addresses;
        let metrics = |address| format!("http://{}/metrics", reachable(address));
        Self {
            client: ready::client(),
            router: metrics(at.admin),
            engines: [metrics(at.speculative), metrics(at.throughput)],
            high: config.high,
            before: None,
        }
    }

    /// Never fails: what is not answered is shown as a question mark.
    pub(super) async fn line(&mut self) -> String {
        let router = self.ask(&self.router).await;
        let engines = [self.ask(&self.engines[0]).await, self.ask(&self.engines[1]).await];
        let counts = engines.each_ref().map(Counts::of);
        let now = clock::now();
        let before = self.before.replace((now, counts));
        let rates = before.map(|(then, before)| {
            let seconds = (now - then).as_secs_f64();
            rates(seconds, &before, &counts)
        });
        describe(&router, rates, self.high)
    }

    async fn ask(&self, url: &str) -> Exposition {
        let Ok(answer) = self.client.get(url).send().await else { return Exposition::default() };
        Exposition::parse(&answer.text().await.unwrap_or_default())
    }
}

impl Counts {
    fn of(metrics: &Exposition) -> Self {
        let sum = |name| metrics.sum(name, &[]).unwrap_or(0.0);
        Self {
            tokens: sum("vllm:generation_tokens_total"),
            rounds: sum("vllm:spec_decode_num_drafts_total"),
            accepted: sum("vllm:spec_decode_num_accepted_tokens_total"),
        }
    }
}

/// (tokens a second of both, tokens a round of the speculative one where it drafted)
fn rates(seconds: f64, before: &[Counts; 2], now: &[Counts; 2]) -> (f64, Option<f64>) {
    let tokens: f64 = now.iter().zip(before).map(|(now, then)| now.tokens - then.tokens).sum();
    let rounds = now[0].rounds - before[0].rounds;
    let accepted = now[0].accepted - before[0].accepted;
    (tokens.max(0.0) / seconds.max(1e-3), (0.0 < rounds).then(|| 1.0 + accepted / rounds))
}

fn describe(router: &Exposition, rates: Option<(f64, Option<f64>)>, high: u32) -> String {
    let in_flight = |endpoint| {
        let labels = [("endpoint", endpoint), ("class", "work")];
        let found = router.sum("crossover_router_in_flight", &labels);
        found.map_or("?".to_owned(), |it| format!("{it:.0}"))
    };
    let is_mode = |mode| router.sum("crossover_router_mode", &[("mode", mode)]) == Some(1.0);
    let mode = ["speculative", "throughput"].into_iter().find(|it| is_mode(it)).unwrap_or("?");
    let mut line = format!(
        "in flight: speculative {}, throughput {} | new ones go to: {mode} (switches above {high})",
        in_flight("speculative"),
        in_flight("throughput"),
    );
    if let Some((tokens, per_round)) = rates {
        line += &format!(" | {tokens:.0} tok/s");
        if let Some(per_round) = per_round {
            line += &format!(" | {per_round:.2} tokens a round");
        }
    }
    line
}

#[cfg(test)]
mod tests;
