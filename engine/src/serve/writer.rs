//! Writes answers: whole ones, and streams of events with one for each round.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use hyper::Response;
use serde_json::{Map, Value, json};

use crate::serve::answer::{self, Body, Refusal};
use crate::serve::answers::Answers;
use crate::serve::choice::{Cost, Delta};
use crate::serve::gate::Pass;
use crate::serve::ready::Ready;
use crate::serve::wishes::StreamOptions;

/// For a client that reads, to be told that its time is over.
const TELL_MAX: Duration = Duration::from_secs(1);

/// How an endpoint writes its answers.
pub trait Shape: fmt::Debug + Send + Sync {
    /// The `object` of a whole answer and of an event.
    fn objects(&self) -> (&'static str, &'static str);

    /// What comes before the first text of a choice, as an event of its own: an entry of `choices`
    /// without its index.
    fn opening(&self, index: usize) -> Option<Value>;

    /// An entry of `choices` in an event, without its index; `None` if there is nothing to show.
    fn delta(&mut self, ready: &Ready, index: usize, delta: &Delta) -> Option<Value>;

    /// An entry of `choices` in a whole answer, without its index.
    fn whole(&mut self, ready: &Ready, index: usize, delta: &Delta) -> Value;
}

/// What all parts of an answer begin with.
#[derive(Debug)]
pub struct Head {
    pub id: String,
    pub created: u64,
}

/// Writes the parts of an answer.
#[derive(Debug)]
pub struct Writer {
    pub ready: Arc<Ready>,
    pub shape: Box<dyn Shape>,
    pub head: Head,
}

impl Writer {
    fn object(&self, object: &str) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("id".to_owned(), json!(self.head.id));
        map.insert("object".to_owned(), json!(object));
        map.insert("created".to_owned(), json!(self.head.created));
        map.insert("model".to_owned(), json!(self.ready.about.names[0]));
        map.insert("system_fingerprint".to_owned(), json!(self.ready.about.fingerprint));
        map
    }

    fn mark(&self, seeds: &[u64]) -> Value {
        json!({ "mode": self.ready.about.mode, "seeds": seeds })
    }

    /// The whole answer, once all texts have ended; within until its body is sent.
    pub async fn whole(
        mut self,
        mut answers: Answers,
        pass: Pass,
    ) -> Result<Response<Body>, Refusal> {
        let mut texts: Vec<Delta> = (0..answers.count()).map(|_| Delta::default()).collect();
        while let Some((index, delta)) = answers.next().await? {
            let text = &mut texts[index];
            text.text.push_str(&delta.text);
            text.logprobs.extend(delta.logprobs);
            text.prompt.extend(delta.prompt);
            text.finish = delta.finish;
        }
        let seeds: Vec<u64> = (0..answers.count()).map(|it| answers.seed(it)).collect();
        let mut choices = Vec::with_capacity(texts.len());
        for (index, text) in texts.iter().enumerate() {
            choices.push(with_index(index, self.shape.whole(&self.ready, index, text)));
        }
        let mut map = self.object(self.shape.objects().0);
        map.insert("choices".to_owned(), choices.into());
        map.insert("usage".to_owned(), usage(answers.prompt_tokens, answers.cost()));
        map.insert("crossover".to_owned(), self.mark(&seeds));
        Ok(answer::holding(answer::json(&Value::Object(map)), pass))
    }

    /// The answer as events, as the texts grow.
    pub fn stream(self, answers: Answers, options: StreamOptions, pass: Pass) -> Response<Body> {
        let opened = vec![false; answers.count()];
        let stage = Stage::Texts;
        let until = answers.deadline + TELL_MAX;
        let state = State { writer: self, answers, options, opened, stage };
        let events = Box::pin(stream::unfold(state, State::next));
        answer::events(pass.bind(events, until))
    }

    /// One event. `usage` is null in all but the last where the client asked for it.
    fn event(&self, choices: Vec<Value>, usage: Option<Value>, seeds: &[u64]) -> String {
        let mut map = self.object(self.shape.objects().1);
        map.insert("choices".to_owned(), Value::Array(choices));
        if let Some(usage) = usage {
            map.insert("usage".to_owned(), usage);
        }
        if !seeds.is_empty() {
            map.insert("crossover".to_owned(), self.mark(seeds));
        }
        format!("data: {}\n\n", Value::Object(map))
    }
}

fn with_index(index: usize, entry: Value) -> Value {
    let mut map = Map::new();
    map.insert("index".to_owned(), json!(index));
    if let Value::Object(rest) = entry {
        map.extend(rest);
    }
    Value::Object(map)
}

pub fn usage(prompt_tokens: u32, cost: Cost) -> Value {
    json!({
        "prompt_tokens": prompt_tokens,
        "completion_tokens": cost.tokens,
        "total_tokens": prompt_tokens + cost.tokens,
        "prompt_tokens_details": { "cached_tokens": cost.cached },
        "completion_tokens_details": {
            "accepted_prediction_tokens": cost.accepted,
            "rejected_prediction_tokens": cost.rejected,
        },
    })
}

/// A stream of events between two of them.
struct State {
    writer: Writer,
    answers: Answers,
    options: StreamOptions,
    /// Which choices have had their opening.
    opened: Vec<bool>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Texts,
    /// The client was told of a failure; the connection must not end as if all were well.
    Broken,
    Ended,
}

impl State {
    async fn next(mut self) -> Option<(io::Result<Bytes>, Self)> {
        loop {
            match self.stage {
                Stage::Ended => return None,
                Stage::Broken => {
                    self.stage = Stage::Ended;
                    // What was said last goes out before the connection is given up.
                    tokio::task::yield_now().await;
                    return Some((Err(io::Error::other("the engine failed")), self));
                }
                Stage::Texts => {}
            }
            let events = match self.answers.next().await {
                Ok(Some((index, delta))) => self.events(index, &delta),
                Ok(None) => {
                    self.stage = Stage::Ended;
                    self.last_events()
                }
                Err(refusal) => {
                    self.stage = Stage::Broken;
                    let refused = &self.writer.ready.metrics.requests.refused;
                    refused.with_label_values(&[refusal.code()]).inc();
                    format!("data: {}\n\n", refusal.body())
                }
            };
            if !events.is_empty() {
                return Some((Ok(events.into()), self));
            }
        }
    }

    /// A round as one event; nothing if there is nothing to show of it yet.
    fn events(&mut self, index: usize, delta: &Delta) -> String {
        let mut events = String::new();
        let is_first = !std::mem::replace(&mut self.opened[index], true);
        if is_first && let Some(entry) = self.writer.shape.opening(index) {
            let entry = with_index(index, entry);
            events += &self.writer.event(vec![entry], self.usage_so_far(), &[]);
        }
        let Writer { ready, shape, .. } = &mut self.writer;
        if let Some(entry) = shape.delta(ready, index, delta) {
            let entry = with_index(index, entry);
            let seeds = [self.answers.seed(index)];
            let seeds = if delta.finish.is_some() { &seeds[..] } else { &[] };
            events += &self.writer.event(vec![entry], self.usage_so_far(), seeds);
        }
        events
    }

    fn usage_so_far(&self) -> Option<Value> {
        match self.options {
            StreamOptions { usage_always: true, .. } => Some(self.usage()),
            StreamOptions { usage: true, .. } => Some(Value::Null),
            StreamOptions { .. } => None,
        }
    }

    fn usage(&self) -> Value {
        usage(self.answers.prompt_tokens, self.answers.cost())
    }

    fn last_events(&self) -> String {
        let mut events = String::new();
        if self.options.usage {
            events += &self.writer.event(Vec::new(), Some(self.usage()), &[]);
        }
        events + "data: [DONE]\n\n"
    }
}
