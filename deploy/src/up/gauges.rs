//! The live line: what is in flight where, what was chosen, how fast it goes.

use reqwest::Client;
use tokio::time::Instant;

use super::ready;
use crate::body;
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
    before: [Option<(Instant, Counts)>; 2],
}

/// What an engine has done since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    tokens: f64,
    rounds: f64,
    accepted: f64,
}

/// What was done since the last look: tokens a second, and drafting where it was done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Pace {
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
            before: [None; 2],
        }
    }

    /// Never fails: what is not answered is shown as a question mark.
    pub(super) async fn line(&mut self) -> String {
        let router = self.ask(&self.router).await;
        let mut pace = None;
        for which in 0..2 {
            let counts = Counts::of(&self.ask(&self.engines[which]).await);
            let now = counts.map(|it| (clock::now(), it));
            // An engine that did not answer once goes on from what it said before.
            if let Some(now) = now
                && let Some(before) = self.before[which].replace(now)
            {
                let more = Pace::between(before, now);
                pace = Some(pace.map_or(more, |it: Pace| it.with(more)));
            }
        }
        describe(&router, pace, self.high)
    }

    async fn ask(&self, url: &str) -> Exposition {
        let Ok(answer) = self.client.get(url).send().await else { return Exposition::default() };
        let bytes = body::read(answer).await.unwrap_or_default();
        Exposition::parse(&String::from_utf8_lossy(&bytes))
    }
}

impl Counts {
    /// `None` when the engine did not answer.
    fn of(metrics: &Exposition) -> Option<Self> {
        let sum = |name| metrics.sum(name, &[]).unwrap_or(0.0);
        Some(Self {
            tokens: metrics.sum("vllm:generation_tokens_total", &[])?,
            rounds: sum("vllm:spec_decode_num_drafts_total"),
            accepted: sum("vllm:spec_decode_num_accepted_tokens_total"),
        })
    }
}

impl Pace {
    /// An engine that began anew has counted less than before: it has no pace for once.
    fn between(before: (Instant, Counts), now: (Instant, Counts)) -> Self {
        let seconds = (now.0 - before.0).as_secs_f64().max(1e-3);
        let (before, now) = (before.1, now.1);
        if now.tokens < before.tokens {
            return Self::default();
        }
        Self {
            tokens: (now.tokens - before.tokens) / seconds,
            rounds: now.rounds - before.rounds,
            accepted: now.accepted - before.accepted,
        }
    }

    fn with(self, other: Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
            rounds: self.rounds + other.rounds,
            accepted: self.accepted + other.accepted,
        }
    }
}

fn describe(router: &Exposition, pace: Option<Pace>, high: u32) -> String {
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
    if let Some(Pace { tokens, rounds, accepted }) = pace {
        line += &format!(" | {tokens:.0} tok/s");
        if 0.0 < rounds {
            line += &format!(" | {:.2} tokens a round", 1.0 + accepted / rounds);
        }
    }
    line
}

#[cfg(test)]
mod tests;
