//! What a step yields, on its way back: what is reported is fetched when the step is queued, all is
//! read late.

use kernels::cuda::{Device, DeviceError, Outbox};
use kernels::ops::rows::Entry;
use kernels::ops::sample::{Choices, LOGPROBS_MAX};

use crate::backend::BackendError;
use crate::batch::ids::TokenId;
use crate::batch::plan::{StepChoices, StepPlan, TokenLogprobs};

/// Where what is reported of a step arrives.
#[derive(Debug)]
pub(super) struct Outboxes {
    logprobs: Outbox<f32>,
    top_tokens: Outbox<u32>,
    top_logprobs: Outbox<f32>,
}

/// A step on its way.
#[derive(Debug)]
pub(super) struct Sent {
    /// Of the box that its results go to, and of the outboxes.
    pub(super) number: usize,
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
    pub(super) fn new(number: usize, plan: &StepPlan, laid: &[Entry]) -> Self {
        let wanted = plan.entries.iter().map(|it| it.sampling.logprobs);
        let entries = laid.iter().zip(wanted).map(|(laid, it)| SentEntry {
            choice: laid.choice as usize,
            drafts: laid.drafts,
            wanted: it.map(|it| (it as usize).min(LOGPROBS_MAX)),
        });
        Self { number, entries: entries.collect() }
    }

    fn reports(&self) -> bool {
        self.entries.iter().any(|it| it.wanted.is_some())
    }
}

impl Outboxes {
    pub(super) fn new(device: &Device, choosers: usize) -> Result<Self, DeviceError> {
        Ok(Self {
            logprobs: Outbox::new(device, choosers)?,
            top_tokens: Outbox::new(device, choosers * LOGPROBS_MAX)?,
            top_logprobs: Outbox::new(device, choosers * LOGPROBS_MAX)?,
        })
    }

    /// Queues the way back of what is reported.
    pub(super) fn fetch(
        &mut self,
        sent: &Sent,
        choices: &Choices,
        choosers: usize,
    ) -> Result<(), DeviceError> {
        if sent.reports() {
            self.logprobs.fetch(&choices.logprobs, choosers)?;
            self.top_tokens.fetch(&choices.top_tokens, choosers * LOGPROBS_MAX)?;
            self.top_logprobs.fetch(&choices.top_logprobs, choosers * LOGPROBS_MAX)?;
        }
        Ok(())
    }

    /// Reads what a step yielded; `results` of each entry: number of tokens, tokens.
    pub(super) fn read<'a>(
        &mut self,
        sent: &Sent,
        results: impl Iterator<Item = &'a [u32]>,
        choices: &mut StepChoices,
    ) -> Result<(), BackendError> {
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
