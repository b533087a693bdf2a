//! Runs texts through the step loop.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use engine::backend::cuda::CudaBackend;
use engine::batch::ids::{SeqId, TokenId};
use engine::batch::pages::Salt;
use engine::batch::sampling::Sampling;
use engine::batch::step::{Engine, Event, Limits, Request};
use engine::clock;
use engine::draft::depth::Depth;
use engine::draft::held::Held;
use engine::draft::{Ask, DRAFTS_MAX, Drafter, Proposal, Silent};

/// A text as it came out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Text {
    pub(crate) tokens: Vec<u32>,
    /// Drafts kept by each step that had some.
    pub(crate) kept: Vec<u32>,
}

/// As [`Held`], in the steps for which it says so when asked.
pub(crate) struct Sometimes<F>(pub(crate) F);

impl<F> fmt::Debug for Sometimes<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sometimes").finish_non_exhaustive()
    }
}

impl<F: FnMut() -> bool> Drafter for Sometimes<F> {
    fn propose(&mut self, asks: &[Ask<'_>], proposals: &mut [Proposal]) {
        if (self.0)() {
            Held.propose(asks, proposals);
        }
    }

    fn reads_tokens(&self) -> bool {
        false
    }

    fn forget(&mut self, _: SeqId) {}
}

/// The loop over one backend.
pub(crate) struct Drive {
    engine: Engine,
    next: u64,
    events: Vec<Event>,
    /// Time of each step of the last run, and whether what it told came of drafts.
    pub(crate) times: Vec<Duration>,
    pub(crate) drafted: Vec<bool>,
}

impl Drive {
    pub(crate) fn new(backend: CudaBackend, depth: u32) -> Self {
        let drafter: Box<dyn Drafter> = if depth == 0 { Box::new(Silent) } else { Box::new(Held) };
        Self::with(backend, drafter, depth)
    }

    pub(crate) fn with(backend: CudaBackend, drafter: Box<dyn Drafter>, depth: u32) -> Self {
        let limits = Limits { waiting_max: 1024, tokens_max: 8192, prompt_rows_max: 2048 };
        let depth = if depth == 0 { Depth::none() } else { Depth::always(depth) };
        let engine = Engine::new(limits, Box::new(backend), drafter, depth);
        let (events, times, drafted) = (Vec::new(), Vec::new(), Vec::new());
        Self { engine, next: 0, events, times, drafted }
    }

    /// Runs all prompts, `together` at a time.
    pub(crate) fn texts(
        &mut self,
        prompts: &[Vec<u32>],
        together: usize,
        new_max: u32,
        sampling: &Sampling,
    ) -> Result<Vec<Text>, Box<dyn Error>> {
        let mut texts = Vec::new();
        self.times.clear();
        self.drafted.clear();
        for prompts in prompts.chunks(together) {
            texts.extend(self.wave(prompts, new_max, sampling)?);
        }
        Ok(texts)
    }

    fn wave(
        &mut self,
        prompts: &[Vec<u32>],
        new_max: u32,
        sampling: &Sampling,
    ) -> Result<Vec<Text>, Box<dyn Error>> {
        let mut texts: BTreeMap<SeqId, Text> = BTreeMap::new();
        for prompt in prompts {
            texts.insert(self.submit(prompt, new_max, sampling)?, Text::default());
        }
        while !self.engine.is_idle() {
            let start = clock::now();
            let events = self.step()?;
            self.times.push(clock::now() - start);
            let mut any = false;
            for event in events {
                if let Event::Tokens { seq, tokens, drafted, kept, .. } = event
                    && let Some(text) = texts.get_mut(&seq)
                {
                    text.tokens.extend(tokens.iter().map(|it| it.0));
                    if 0 < drafted {
                        any = true;
                        text.kept.push(kept);
                    }
                }
            }
            self.drafted.push(any);
        }
        Ok(texts.into_values().collect())
    }

    /// One step, and what came of it.
    pub(crate) fn step(&mut self) -> Result<Vec<Event>, Box<dyn Error>> {
        self.engine.step(&mut self.events)?;
        Ok(std::mem::take(&mut self.events))
    }

    pub(crate) fn submit(
        &mut self,
        prompt: &[u32],
        new_max: u32,
        sampling: &Sampling,
    ) -> Result<SeqId, Box<dyn Error>> {
        let id = SeqId(self.next);
        self.next += 1;
        let request = Request {
            id,
            prompt: prompt.iter().map(|it| TokenId(*it)).collect(),
            new_max,
            sampling: Arc::new(sampling.clone()),
            priority: 0,
            drafts_max: DRAFTS_MAX,
            guide: None,
            salt: Salt::default(),
        };
        self.engine.submit(request).map_err(|it| format!("{it:?}"))?;
        Ok(id)
    }
}

/// The median, in milliseconds.
pub(crate) fn median_ms(times: &[Duration]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).map_or(0.0, |it| it.as_secs_f64() * 1e3)
}
