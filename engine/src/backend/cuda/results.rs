//! What a step yields, on its way back: fetched when the step is queued, read late.

use kernels::cuda::{Buffer, Device, DeviceError, Outbox};
use kernels::ops::rows::Entry;
use kernels::ops::sample::{Choices, LOGPROBS_MAX};

use crate::backend::BackendError;
use crate::batch::ids::TokenId;
use crate::batch::plan::{StepChoices, StepPlan, TokenLogprobs};

/// Where a step's yield arrives.
#[derive(Debug)]
pub(super) struct Outboxes {
    results: Outbox<u32>,
    logprobs: Outbox<f32>,
    top_tokens: Outbox<u32>,
    top_logprobs: Outbox<f32>,
}

/// A step on its way.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) outbox: usize,
    entries: Vec<SentEntry>,
}

#[derive(Clone, Copy, Debug)]
struct SentEntry {
    /// Its first chooser.
    choice: usize,
    drafts: u32,
    /// How many alternatives it wants reported.
    wanted: Option<usize>,
}

impl Sent {
    pub(super) fn new(outbox: usize, plan: &StepPlan, laid: &[Entry]) -> Self {
        let wanted = plan.entries.iter().map(|it| it.sampling.logprobs);
        let entries = laid.iter().zip(wanted).map(|(laid, it)| SentEntry {
            choice: laid.choice as usize,
            drafts: laid.drafts,
            wanted: it.map(|it| (it as usize).min(LOGPROBS_MAX)),
        });
        Self { outbox, entries: entries.collect() }
    }

    fn reports(&self) -> bool {
        self.entries.iter().any(|it| it.wanted.is_some())
    }
}

impl Outboxes {
    pub(super) fn new(
        device: &Device,
        results: usize,
        choosers: usize,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            results: Outbox::new(device, results)?,
            logprobs: Outbox::new(device, choosers)?,
            top_tokens: Outbox::new(device, choosers * LOGPROBS_MAX)?,
            top_logprobs: Outbox::new(device, choosers * LOGPROBS_MAX)?,
        })
    }

    /// Queues the way back of the first `len` words of results, and of what is reported.
    pub(super) fn fetch(
        &mut self,
        sent: &Sent,
        (results, len): (&Buffer<u32>, usize),
        choices: &Choices,
        choosers: usize,
    ) -> Result<(), DeviceError> {
        self.results.fetch(results, len)?;
        if sent.reports() {
            self.logprobs.fetch(&choices.logprobs, choosers)?;
            self.top_tokens.fetch(&choices.top_tokens, choosers * LOGPROBS_MAX)?;
            self.top_logprobs.fetch(&choices.top_logprobs, choosers * LOGPROBS_MAX)?;
        }
        Ok(())
    }

    /// Waits for the step and reads what it yielded; `words` of results for each entry.
    pub(super) fn read(
        &mut self,
        sent: &Sent,
        words: usize,
        choices: &mut StepChoices,
    ) -> Result<(), BackendError> {
        let results = self.results.wait()?.chunks_exact(words);
        choices.drafts.extend(sent.entries.iter().map(|it| it.drafts));
        for result in results.take(sent.entries.len()) {
            choices.counts.push(result[0]);
            choices.tokens.extend(result[1..=result[0] as usize].iter().map(|it| TokenId(*it)));
        }
        if sent.reports() {
            self.report(sent, choices)?;
        }
        Ok(())
    }

    /// Log-probabilities of the tokens that stand, where they are asked for.
    fn report(&mut self, sent: &Sent, choices: &mut StepChoices) -> Result<(), BackendError> {
        let chosen = self.logprobs.wait()?;
        let tokens = self.top_tokens.wait()?;
        let logprobs = self.top_logprobs.wait()?;
        for (entry, &count) in sent.entries.iter().zip(&choices.counts) {
            let Some(wanted) = entry.wanted else { continue };
            for (at, &chosen) in chosen.iter().enumerate().skip(entry.choice).take(count as usize) {
                let top = at * LOGPROBS_MAX..at * LOGPROBS_MAX + wanted;
                let pairs = tokens[top.clone()].iter().zip(&logprobs[top]);
                let known = pairs.take_while(|(token, _)| **token != u32::MAX);
                choices.logprobs.push(TokenLogprobs {
                    chosen,
                    top: known.map(|(token, it)| (TokenId(*token), *it)).collect(),
                });
            }
        }
        Ok(())
    }
}
