//! What is written down of a request: times and counts for the metrics, one line for the log.

use std::sync::Arc;
use std::time::Instant;

use crate::clock;
use crate::metrics::Metrics;
use crate::runner::Round;
use crate::serve::answer::Refusal;
use crate::serve::choice::{Choice, Cost, Ending, Times};

/// The status that logs give to a client that went away.
const CLIENT_GONE: u16 = 499;

/// Writes its line when dropped, so that a request that nobody waited for has one too.
#[derive(Debug)]
pub struct Record {
    metrics: Arc<Metrics>,
    pub name: Arc<str>,
    path: &'static str,
    pub arrival: Instant,
    first: Option<Instant>,
    outcome: Outcome,
    prompt_tokens: u32,
    /// Texts that the loop was given, did not refuse, and has not ended.
    pub open: u32,
    cost: Cost,
    /// Tokens of the longest text that has ended.
    longest: u32,
    ending: Option<Ending>,
}

#[derive(Debug)]
enum Outcome {
    /// Nothing was decided: the client left.
    Open,
    Complete,
    Refused(Refusal),
}

impl Record {
    pub fn new(
        metrics: Arc<Metrics>,
        name: Arc<str>,
        path: &'static str,
        arrival: Instant,
    ) -> Self {
        Self {
            metrics,
            name,
            path,
            arrival,
            first: None,
            outcome: Outcome::Open,
            prompt_tokens: 0,
            open: 0,
            cost: Cost::default(),
            longest: 0,
            ending: None,
        }
    }

    pub fn refuse(&mut self, refusal: &Refusal) {
        self.outcome = Outcome::Refused(refusal.clone());
    }

    /// The loop took in all texts, `n` for each prompt.
    pub fn accept(&mut self, prompt_tokens: u32, n: u32) {
        self.prompt_tokens = prompt_tokens;
        self.metrics.requests.n.observe(n.into());
    }

    /// A round comes to a text that had others at `before`.
    pub fn round(&mut self, before: Option<Times>, round: &Round) {
        self.first.get_or_insert(round.at);
        let times = &self.metrics.requests.seconds;
        let Some(before) = before else {
            times.first_token.observe(seconds(self.arrival, round.at));
            return;
        };
        let tokens = u32::try_from(round.tokens.len()).expect("few in a round");
        for _ in 0..tokens {
            times.each_token.observe(seconds(before.last, round.at) / f64::from(tokens));
        }
    }

    /// A text has ended.
    pub fn ended(&mut self, choice: &Choice, ending: Ending) {
        self.ending = Some(ending);
        self.open -= 1;
        let metrics = &self.metrics.requests;
        metrics.success.with_label_values(&[ending.name()]).inc();
        metrics.tokens.generated.observe(choice.cost.tokens.into());
        self.longest = self.longest.max(choice.cost.tokens);
        let Some(Times { started, first, last }) = choice.times else { return };
        let times = &metrics.seconds;
        times.queue.observe(seconds(self.arrival, started));
        times.prompt.observe(seconds(started, first));
        times.decode.observe(seconds(first, last));
        times.inference.observe(seconds(started, last));
        times.whole.observe(seconds(self.arrival, last));
        if 1 < choice.cost.tokens {
            let others = f64::from(choice.cost.tokens - 1);
            times.mean_token.observe(seconds(first, last) / others);
        }
    }

    /// All texts have ended.
    pub fn complete(&mut self, cost: Cost, prompt_tokens: u32) {
        self.metrics.requests.tokens.longest.observe(self.longest.into());
        self.cost = cost;
        self.prompt_tokens = prompt_tokens;
        self.outcome = Outcome::Complete;
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let metrics = &self.metrics.requests;
        metrics.success.with_label_values(&[Ending::Abort.name()]).inc_by(self.open.into());
        if matches!(self.outcome, Outcome::Open) {
            metrics.gone.inc_by(self.open.into());
        }
        let now = clock::now();
        let ms = |at: Instant| at.saturating_duration_since(self.arrival).as_secs_f64() * 1e3;
        let (status, code) = match &self.outcome {
            Outcome::Open => (CLIENT_GONE, "client_gone"),
            Outcome::Complete => (200, "ok"),
            Outcome::Refused(refusal) => (refusal.status(), refusal.code()),
        };
        let refusal = match &self.outcome {
            Outcome::Refused(refusal) => Some(refusal.to_string()),
            _ => None,
        };
        tracing::info!(
            target: "engine::request",
            id = &*self.name,
            path = self.path,
            status,
            code,
            prompt_tokens = self.prompt_tokens,
            cached_tokens = self.cost.cached,
            tokens = self.cost.tokens,
            accepted = self.cost.accepted,
            rejected = self.cost.rejected,
            first_ms = self.first.map(ms),
            total_ms = ms(now),
            finish = self.ending.map(Ending::name),
            detail = refusal,
        );
    }
}

fn seconds(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64()
}
