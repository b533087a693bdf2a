//! What the loop's thread tells the outside about its steps: metrics, the last steps, the load.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::batch::load::EngineLoad;
use crate::batch::step::Event;
use crate::metrics::Metrics;
use crate::runner::pulse::Pulse;

/// Steps that `/debug/steps` remembers.
pub const STEPS_KEPT: usize = 256;

/// One step, so that a slow engine explains itself.
#[derive(Clone, Debug, Serialize)]
pub struct StepRecord {
    /// Steps since the start.
    pub number: u64,
    /// Time of the whole step, and from the end of the one before to its start.
    pub step_ms: f64,
    pub between_ms: f64,
    /// Rows fed, and how many of them to read prompts.
    pub rows: u64,
    pub prompt_rows: u64,
    /// Tokens written.
    pub tokens: u64,
    /// Drafts a request could get; those made and accepted.
    pub depth: u32,
    pub drafted: u64,
    pub accepted: u64,
    pub running: u32,
    pub decoding: u32,
    pub waiting: u32,
    pub pages_used: u32,
    pub preemptions: u64,
}

/// What other threads may see of the loop.
#[derive(Debug, Default)]
pub struct Seen {
    load: Mutex<EngineLoad>,
    steps: Mutex<VecDeque<StepRecord>>,
}

impl Seen {
    pub fn load(&self) -> EngineLoad {
        *self.load.lock().expect("nothing panics while it is held")
    }

    /// The last steps, oldest first.
    pub fn steps(&self) -> Vec<StepRecord> {
        let steps = self.steps.lock().expect("nothing panics while it is held");
        steps.iter().cloned().collect()
    }

    fn set_load(&self, load: EngineLoad) {
        *self.load.lock().expect("nothing panics while it is held") = load;
    }

    fn push(&self, record: StepRecord) {
        let mut steps = self.steps.lock().expect("nothing panics while it is held");
        if steps.len() == STEPS_KEPT {
            steps.pop_front();
        }
        steps.push_back(record);
    }
}

/// The loop's side of it.
#[derive(Debug)]
pub struct Observer {
    metrics: Arc<Metrics>,
    seen: Arc<Seen>,
    pulse: Pulse,
    before: EngineLoad,
    last_end: Option<Instant>,
}

impl Observer {
    pub fn new(metrics: Arc<Metrics>, seen: Arc<Seen>, pulse: Pulse) -> Self {
        Self { metrics, seen, pulse, before: EngineLoad::default(), last_end: None }
    }

    /// There is nothing to do.
    pub fn idle(&mut self, load: &EngineLoad) {
        self.queued(load);
        self.last_end = None;
        self.pulse.rest();
    }

    pub fn wake(&self) {
        self.pulse.wake();
    }

    /// Requests came or went between steps.
    pub fn queued(&self, load: &EngineLoad) {
        self.seen.set_load(*load);
        self.metrics.load.running.set(load.running.into());
        self.metrics.load.waiting.set(load.waiting.into());
        self.metrics.load.pages_used.set(load.pages_used.into());
        self.metrics.load.pages_cached.set(load.pages_cached.into());
        self.metrics
            .load
            .kv_usage
            .set(f64::from(load.pages_used) / f64::from(load.pages_total.max(1)));
        self.metrics.drafts.depth.set(load.depth.into());
    }

    /// A turn of the loop is over.
    pub fn stepped(&mut self, load: &EngineLoad, start: Instant, end: Instant, events: &[Event]) {
        self.pulse.turn();
        let before = std::mem::replace(&mut self.before, *load);
        let tokens: usize = events
            .iter()
            .map(|event| match event {
                Event::Tokens { tokens, .. } => tokens.len(),
                Event::Done { .. } => 0,
            })
            .sum();
        self.queued(load);
        self.count(&before, load, tokens as u64);
        let between = self.last_end.replace(end).map_or(Duration::ZERO, |it| start - it);
        if load.counts.steps == before.counts.steps {
            return;
        }
        let taken = end - start;
        let prompt_rows = load.counts.prompt_rows - before.counts.prompt_rows;
        let labels = [bucket(before.decoding), &load.depth.to_string()];
        self.metrics.steps.seconds.with_label_values(&labels).observe(taken.as_secs_f64());
        #[expect(clippy::cast_precision_loss, reason = "rows of a step are few")]
        self.metrics.steps.iteration_tokens.observe((prompt_rows + tokens as u64) as f64);
        self.seen.push(StepRecord {
            number: load.counts.steps,
            step_ms: taken.as_secs_f64() * 1e3,
            between_ms: between.as_secs_f64() * 1e3,
            rows: load.counts.rows - before.counts.rows,
            prompt_rows,
            tokens: tokens as u64,
            depth: load.depth,
            drafted: load.drafts.drafted - before.drafts.drafted,
            accepted: load.drafts.accepted - before.drafts.accepted,
            running: load.running,
            decoding: load.decoding,
            waiting: load.waiting,
            pages_used: load.pages_used,
            preemptions: load.counts.preemptions - before.counts.preemptions,
        });
    }

    fn count(&self, before: &EngineLoad, now: &EngineLoad, tokens: u64) {
        let (counts, drafts) = (&now.counts, &now.drafts);
        let steps = &self.metrics.steps;
        steps.generation_tokens.inc_by(tokens);
        steps.count.inc_by(counts.steps - before.counts.steps);
        steps.rows.inc_by(counts.rows - before.counts.rows);
        steps.prompt_rows.inc_by(counts.prompt_rows - before.counts.prompt_rows);
        steps.prefix_queries.inc_by(counts.prefix_queries - before.counts.prefix_queries);
        steps.prefix_hits.inc_by(counts.prefix_hits - before.counts.prefix_hits);
        steps.preemptions.inc_by(counts.preemptions - before.counts.preemptions);
        let metrics = &self.metrics.drafts;
        metrics.rounds.inc_by(drafts.rounds - before.drafts.rounds);
        metrics.drafted.inc_by(drafts.drafted - before.drafts.drafted);
        metrics.accepted.inc_by(drafts.accepted - before.drafts.accepted);
        let places = drafts.accepted_at.iter().zip(&before.drafts.accepted_at);
        for (counter, (now, before)) in metrics.accepted_at.iter().zip(places) {
            counter.inc_by(now - before);
        }
        metrics.switches_up.inc_by(drafts.switches.up - before.drafts.switches.up);
        metrics.switches_down.inc_by(drafts.switches.down - before.drafts.switches.down);
    }
}

/// The label for so many decoding requests: the least bound that holds them.
fn bucket(decoding: u32) -> &'static str {
    const BOUNDS: [(u32, &str); 10] = [
        (0, "0"),
        (1, "1"),
        (2, "2"),
        (4, "4"),
        (8, "8"),
        (16, "16"),
        (32, "32"),
        (64, "64"),
        (128, "128"),
        (256, "256"),
    ];
    BOUNDS.iter().find(|(bound, _)| decoding <= *bound).map_or("more", |(_, label)| label)
}
