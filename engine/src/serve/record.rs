//! What is written down of a request: times and counts for the metrics, one line for the log.

use std::sync::Arc;
use std::time::Instant;

use crate::clock;
use crate::metrics::Metrics;
use crate::runner::Round;
use crate::serve::answer::Refusal;
use crate::serve::choice::{Choice, Cost, Ending};

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
    cost: Cost,
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
            cost: Cost::default(),
            ending: None,
        }
    }

    pub fn refuse(&mut self, refusal: &Refusal) {
        self.metrics.requests.refused.with_label_values(&[refusal.code()]).inc();
        self.outcome = Outcome::Refused(refusal.clone());
    }

    /// The texts were taken in by the loop.
    pub fn accept(&mut self, prompt_tokens: u32, n: u32) {
        self.prompt_tokens = prompt_tokens;
        self.metrics.requests.n.observe(n.into());
    }

    /// A round comes to a text that had its last at `before`.
    pub fn round(&mut self, before: Option<Instant>, round: &Round) {
        self.first.get_or_insert(round.at);
        let tokens = u32::try_from(round.tokens.len()).expect("few in a round");
        let Some(before) = before else {
            let waited = round.at.saturating_duration_since(self.arrival);
            self.metrics.requests.seconds.first_token.observe(waited.as_secs_f64());
            return;
        };
        let seconds = round.at.saturating_duration_since(before).as_secs_f64();
        for _ in 0..tokens {
            self.metrics.requests.seconds.each_token.observe(seconds / f64::from(tokens));
        }
    }

    /// A text has ended.
    pub fn ended(&mut self, choice: &Choice, ending: Ending) {
        self.ending = Some(ending);
        let metrics = &self.metrics.requests;
        metrics.success.with_label_values(&[ending.name()]).inc();
        metrics.tokens.generated.observe(choice.cost.tokens.into());
        let (Some(first), Some(last)) = (choice.first, choice.last) else { return };
        let seconds = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64();
        metrics.seconds.whole.observe(seconds(self.arrival, last));
        metrics.seconds.decode.observe(seconds(first, last));
        if 1 < choice.cost.tokens {
            let each = seconds(first, last) / f64::from(choice.cost.tokens - 1);
            metrics.seconds.mean_token.observe(each);
        }
    }

    /// All texts have ended.
    pub fn complete(&mut self, cost: Cost, prompt_tokens: u32) {
        self.cost = cost;
        self.prompt_tokens = prompt_tokens;
        self.outcome = Outcome::Complete;
    }
}

impl Drop for Record {
    fn drop(&mut self) {
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
