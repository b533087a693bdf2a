//! One streamed chat request, timed, through any OpenAI-compatible endpoint.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use reqwest::redirect;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::clock::Clock;
use crate::events::Events;
use crate::sample::{Outcome, Sample};
pub use crate::target::Target;

/// What to ask for.
#[derive(Clone, Debug)]
pub struct Ask {
    pub prompt: u32,
    pub text: String,
    pub tokens_max: u32,
    pub temperature: f64,
    pub seed: u64,
    pub ignore_eos: bool,
    /// Drafts in a step at most; Crossover's engines know the field.
    pub drafts_max: Option<u32>,
    /// Requests with different ones share no cached prefixes, on servers that know the field.
    pub cache_salt: Option<String>,
}

/// Sends requests, and keeps their connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    clock: Clock,
}

/// A stream that has told nothing for this long is broken; comments tell nothing.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// A request that has not ended by then is broken, whatever its stream still tells.
const REQUEST_MAX: Duration = Duration::from_secs(3600);

/// How long the end of the body may come after the end mark. Whoever leaves before it loses the
/// connection, and looks to a server like one who gave up.
const REST_MAX: Duration = Duration::from_millis(100);

/// Where servers put what a model writes; the latter two are of models that think first.
const TEXTS: [&str; 3] = ["content", "reasoning_content", "reasoning"];

/// For questions that are answered at once.
const ANSWER_MAX: Duration = Duration::from_secs(10);

impl Client {
    pub fn new(clock: Clock) -> Self {
        let http = reqwest::Client::builder()
            .no_proxy()
            // A redirection leads to what nobody asked to measure, and off this machine perhaps.
            .redirect(redirect::Policy::none())
            .connect_timeout(Duration::from_secs(5))
            .read_timeout(SILENCE_MAX)
            .pool_idle_timeout(Duration::from_secs(3))
            .tcp_nodelay(true)
            .build()
            .expect("no TLS and no proxy are asked for, so nothing can fail");
        Self { http, clock }
    }

    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// A page as text.
    pub async fn text(&self, url: &str) -> Result<String, String> {
        let fail = |error: reqwest::Error| format!("{url}: {}", error.without_url());
        let answer = self.http.get(url).timeout(ANSWER_MAX).send().await.map_err(fail)?;
        match answer.status() {
            status if status.is_success() => answer.text().await.map_err(fail),
            status => Err(format!("{url}: {status}")),
        }
    }

    /// The name of the first model that the target serves.
    pub async fn model(&self, target: &Target) -> Result<String, String> {
        let url = format!("{}/v1/models", target.url);
        let text = self.text(&url).await?;
        let models: Value = serde_json::from_str(&text).map_err(|it| format!("{url}: {it}"))?;
        let name = models["data"][0]["id"].as_str();
        Ok(name.ok_or_else(|| format!("{url} names no model"))?.to_owned())
    }

    /// Drafts that the target makes in a step; none where it does not tell.
    pub async fn draft_depth(&self, target: &Target) -> u32 {
        let load = self.told(target, "/load").await;
        load["draft_depth"].as_u64().and_then(|it| it.try_into().ok()).unwrap_or(0)
    }

    /// What the target tells of itself; nothing if it is no engine of ours.
    pub async fn info(&self, target: &Target) -> Value {
        self.told(target, "/server_info").await
    }

    /// A page of JSON; nothing where there is none.
    async fn told(&self, target: &Target, path: &str) -> Value {
        let text = self.text(&format!("{}{path}", target.url)).await.unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Runs one request to its end. Never fails: what went wrong is in the sample.
    pub async fn run(&self, target: &Target, ask: &Ask, due_ms: f64) -> Sample {
        let mut sample = Sample {
            target: target.name.clone(),
            concurrency: 0,
            round: 0,
            prompt: ask.prompt,
            due_ms,
            sent_ms: self.clock.ms(),
            first_ms: None,
            end_ms: 0.0,
            prompt_tokens: 0,
            tokens: 0,
            accepted: None,
            text: String::new(),
            outcome: Outcome::Error,
            status: 0,
            endpoint: None,
            reason: None,
        };
        let mut request = self
            .http
            .post(format!("{}/v1/chat/completions", target.url))
            .timeout(REQUEST_MAX)
            .json(&body(&target.model, ask));
        for (name, value) in &target.headers {
            request = request.header(name, value);
        }
        if let Ok(answer) = request.send().await {
            self.read(answer, &mut sample).await;
        }
        if sample.outcome != Outcome::Done {
            sample.end_ms = self.clock.ms();
        }
        sample
    }

    async fn read(&self, answer: reqwest::Response, sample: &mut Sample) {
        let header = |name: &str| Some(answer.headers().get(name)?.to_str().ok()?.to_owned());
        sample.endpoint = header("x-crossover-endpoint");
        sample.reason = header("x-crossover-reason");
        sample.status = answer.status().as_u16();
        if !answer.status().is_success() {
            let is_shed = matches!(sample.status, 429 | 503);
            sample.outcome = if is_shed { Outcome::Shed } else { Outcome::Error };
            return;
        }
        sample.outcome = Outcome::Broken;
        let mut bytes = answer.bytes_stream();
        let mut events = Events::default();
        let mut hash = DefaultHasher::new();
        let mut is_counted = false;
        while let Some(found) = told(&mut bytes, &mut events).await {
            for event in found {
                if event == "[DONE]" {
                    sample.end_ms = self.clock.ms();
                    sample.text = format!("{:016x}", hash.finish());
                    if is_counted {
                        sample.outcome = Outcome::Done;
                    }
                    let rest = async { while let Some(Ok(_)) = bytes.next().await {} };
                    // Where it does not come, the connection is given up, and that is all.
                    timeout(REST_MAX, rest).await.unwrap_or_default();
                    return;
                }
                let Ok(event) = serde_json::from_str::<Value>(&event) else { return };
                if !event["error"].is_null() {
                    return;
                }
                for text in TEXTS.iter().filter_map(|it| event["choices"][0]["delta"][it].as_str())
                {
                    if !text.is_empty() {
                        sample.first_ms.get_or_insert_with(|| self.clock.ms());
                        hash.write(text.as_bytes());
                    }
                }
                is_counted |= take_usage(&event["usage"], sample);
            }
        }
    }
}

/// The next events of a stream, at least one; `None` when it is over, broken or silent.
async fn told<B: AsRef<[u8]>, E>(
    bytes: &mut (impl Stream<Item = Result<B, E>> + Unpin),
    events: &mut Events,
) -> Option<Vec<String>> {
    let next = async {
        loop {
            let found = events.push(bytes.next().await?.ok()?.as_ref())?;
            if !found.is_empty() {
                return Some(found);
            }
        }
    };
    timeout(SILENCE_MAX, next).await.ok().flatten()
}

fn body(model: &str, ask: &Ask) -> Value {
    let mut body = json!({
        "model": model,
        "messages": [{ "role": "user", "content": ask.text }],
        "max_tokens": ask.tokens_max,
        "temperature": ask.temperature,
        "seed": ask.seed,
        "ignore_eos": ask.ignore_eos,
        "stream": true,
        "stream_options": { "include_usage": true },
    });
    if let Some(salt) = &ask.cache_salt {
        body["cache_salt"] = json!(salt);
    }
    if let Some(drafts) = ask.drafts_max {
        body["speculative"] = json!(drafts);
    }
    body
}

/// Whether the event says how many tokens there are.
fn take_usage(usage: &Value, sample: &mut Sample) -> bool {
    let count = |value: &Value| value.as_u64().and_then(|it| u32::try_from(it).ok());
    let Some(tokens) = count(&usage["completion_tokens"]) else { return false };
    sample.tokens = tokens;
    sample.prompt_tokens = count(&usage["prompt_tokens"]).unwrap_or(0);
    sample.accepted = count(&usage["completion_tokens_details"]["accepted_prediction_tokens"]);
    true
}

#[cfg(test)]
mod tests;
