//! Reads from engines' metrics how many tokens a round of speculation gives.

use crate::client::Client;

/// What is counted, of all engines together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Speculation {
    pub rounds: f64,
    pub accepted: f64,
}

/// The sums over all pages; `None` when there is none, or one cannot be read.
pub async fn speculation(client: &Client, pages: &[String]) -> Option<Speculation> {
    let mut sum = Speculation::default();
    for page in pages {
        let text = client.text(page).await.ok()?;
        sum.rounds += total(&text, "vllm:spec_decode_num_drafts_total");
        sum.accepted += total(&text, "vllm:spec_decode_num_accepted_tokens_total");
    }
    (!pages.is_empty()).then_some(sum)
}

/// Tokens a round between two readings: what was accepted and the one that every round gives.
pub fn round_tokens(before: Option<Speculation>, after: Option<Speculation>) -> Option<f64> {
    let (before, after) = before.zip(after)?;
    let rounds = after.rounds - before.rounds;
    (0.0 < rounds).then(|| 1.0 + (after.accepted - before.accepted) / rounds)
}

/// The sum of a metric over its labels.
fn total(page: &str, name: &str) -> f64 {
    let of_line = |line: &str| {
        let rest = line.strip_prefix(name)?;
        if !rest.starts_with([' ', '{']) {
            return None;
        }
        line.rsplit_once(' ')?.1.parse::<f64>().ok()
    };
    page.lines().filter_map(of_line).sum()
}

#[cfg(test)]
mod tests;
