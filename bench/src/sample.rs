//! What one request did, as it is kept in the raw lines of a result.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How a request ended.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Done,
    /// Refused for load: 429 or 503.
    Shed,
    /// Any other refusal, or no answer.
    Error,
    /// The stream ended without its end mark, told an error, or did not say how many tokens it has.
    Broken,
}

/// Why requests failed, and how many did so: `2 of 6 requests failed (status 503: 1, cut off: 1)`;
/// `None` when none did.
pub fn failures_told(samples: &[Sample]) -> Option<String> {
    let why = |sample: &Sample| match sample.outcome {
        Outcome::Done => None,
        Outcome::Broken => Some("no proper end".to_owned()),
        Outcome::Shed | Outcome::Error if sample.status == 0 => Some("no answer".to_owned()),
        Outcome::Shed | Outcome::Error => Some(format!("status {}", sample.status)),
    };
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    samples.iter().filter_map(why).for_each(|why| *counts.entry(why).or_default() += 1);
    let failed: usize = counts.values().sum();
    let whys: Vec<String> = counts.iter().map(|(why, count)| format!("{why}: {count}")).collect();
    let told = || format!("{failed} of {} requests failed ({})", samples.len(), whys.join(", "));
    (0 < failed).then(told)
}

/// One request. Times are milliseconds since the run began.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Sample {
    pub target: String,
    /// In flight at once in a closed loop; 0 in an open one.
    pub concurrency: u32,
    pub round: u32,
    /// Which prompt it was: equal prompts must give equal texts.
    pub prompt: u32,
    /// When it should have been sent: waiting for the client itself counts as latency.
    pub due_ms: f64,
    pub sent_ms: f64,
    pub first_ms: Option<f64>,
    pub end_ms: f64,
    pub prompt_tokens: u32,
    pub tokens: u32,
    /// Drafts that were kept, where the server reports it.
    pub accepted: Option<u32>,
    /// Hash of the text.
    pub text: String,
    pub outcome: Outcome,
    pub status: u16,
    /// Which endpoint served it and why, where a router says so.
    pub endpoint: Option<String>,
    pub reason: Option<String>,
}

impl Sample {
    /// Time to the first token, from when the request was due.
    pub fn ttft_ms(&self) -> Option<f64> {
        Some(self.first_ms? - self.due_ms)
    }

    /// Time a token after the first: (end - first) / (tokens - 1). Chunk gaps would mislead, since
    /// a round of speculation sends several tokens at once.
    pub fn tpot_ms(&self) -> Option<f64> {
        let after_first = self.tokens.checked_sub(1).filter(|&it| 0 < it)?;
        Some((self.end_ms - self.first_ms?) / f64::from(after_first))
    }

    /// Tokens a second of this one request, first to last.
    pub fn rate(&self) -> Option<f64> {
        self.tpot_ms().filter(|&it| 0.0 < it).map(|it| 1e3 / it)
    }

    /// Tokens that arrived between two times: one at the first token, the rest spread evenly.
    pub fn tokens_within(&self, start_ms: f64, end_ms: f64) -> f64 {
        let Some(first) = self.first_ms else { return 0.0 };
        let at_first = if start_ms <= first && first < end_ms { 1.0 } else { 0.0 };
        let span = self.end_ms - first;
        if self.tokens < 2 || span <= 0.0 {
            return at_first * f64::from(self.tokens);
        }
        let overlap = (self.end_ms.min(end_ms) - first.max(start_ms)).max(0.0);
        at_first + f64::from(self.tokens - 1) * overlap / span
    }
}
