//! One streamed chat request, timed, through any OpenAI-compatible endpoint.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::{Value, json};

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

/// A stream that has told nothing for this long is broken.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// For questions that are answered at once.
const ANSWER_MAX: Duration = Duration::from_secs(10);

impl Client {
    pub fn new(clock: Clock) -> Self {
        let http = reqwest::Client::builder()
            .no_proxy()
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
        answer.error_for_status().map_err(fail)?.text().await.map_err(fail)
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
            .json(&body(&target.model, ask));
        for (name, value) in &target.headers {
            request = request.header(name, value);
        }
        if let Ok(answer) = request.send().await {
            self.read(answer, &mut sample).await;
        }
        sample.end_ms = self.clock.ms();
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
        while let Some(Ok(chunk)) = bytes.next().await {
            let Some(found) = events.push(&chunk) else { return };
            for event in found {
                if event == "[DONE]" {
                    sample.outcome = Outcome::Done;
                    sample.text = format!("{:016x}", hash.finish());
                    return;
                }
                let Ok(event) = serde_json::from_str::<Value>(&event) else { return };
                if let Some(text) = event["choices"][0]["delta"]["content"].as_str()
                    && !text.is_empty()
                {
                    sample.first_ms.get_or_insert_with(|| self.clock.ms());
                    hash.write(text.as_bytes());
                }
                take_usage(&event["usage"], sample);
            }
        }
    }
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

fn take_usage(usage: &Value, sample: &mut Sample) {
    let count = |value: &Value| value.as_u64().and_then(|it| u32::try_from(it).ok());
    if let Some(tokens) = count(&usage["completion_tokens"]) {
        sample.tokens = tokens;
        sample.prompt_tokens = count(&usage["prompt_tokens"]).unwrap_or(0);
        sample.accepted = count(&usage["completion_tokens_details"]["accepted_prediction_tokens"]);
    }
}
