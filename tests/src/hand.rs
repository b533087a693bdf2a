//! Drives a backend by hand, without the step loop: the caller says how many rows and drafts.

use std::sync::Arc;

use engine::backend::Backend;
use engine::batch::ids::{PageId, SeqId, TokenId};
use engine::batch::plan::{Entry, StepChoices, StepPlan, TokenLogprobs};
use engine::batch::sampling::Sampling;

/// A sequence with pages enough for its whole life.
#[derive(Clone, Debug)]
pub struct Line {
    pub lane: u32,
    pub pages: Vec<PageId>,
    pub tokens: Vec<TokenId>,
    pub prompt_len: u32,
    /// Tokens the model has read.
    pub computed: u32,
    pub sampling: Arc<Sampling>,
}

/// What a line does in a step: nothing when `fed_max` is 0.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    pub fed_max: u32,
    pub held: u32,
}

impl Line {
    /// A line with pages of its own: `pages_each` of them, counted from its lane.
    pub fn new(lane: u32, pages_each: u32, prompt: &[u32], sampling: Sampling) -> Self {
        Self {
            lane,
            pages: (lane * pages_each..(lane + 1) * pages_each).map(PageId).collect(),
            tokens: prompt.iter().copied().map(TokenId).collect(),
            prompt_len: u32::try_from(prompt.len()).expect("prompts are short"),
            computed: 0,
            sampling: Arc::new(sampling),
        }
    }

    /// What it wrote so far.
    pub fn written(&self) -> Vec<u32> {
        self.tokens[self.prompt_len as usize..].iter().map(|it| it.0).collect()
    }

    fn push(&self, plan: &mut StepPlan, share: Share) {
        let own = &self.tokens[self.computed as usize..];
        let behind = u32::try_from(own.len()).expect("lines are short");
        let fed = share.fed_max.min(behind);
        let pages_start = plan.pages.len();
        plan.rows.extend_from_slice(&own[..fed as usize]);
        plan.pages.extend_from_slice(&self.pages);
        plan.entries.push(Entry {
            seq: SeqId(u64::from(self.lane)),
            lane: self.lane,
            start: self.computed,
            fed,
            chained: false,
            given: 0,
            held: if fed == behind { share.held } else { 0 },
            chooses: fed == behind,
            masked: false,
            scored: 0,
            outputs_start: self.prompt_len,
            sampling: Arc::clone(&self.sampling),
            pages: pages_start..plan.pages.len(),
        });
    }
}

/// What a line got in a step.
#[derive(Clone, Debug, Default)]
pub struct Got {
    pub tokens: Vec<TokenId>,
    pub logprobs: Vec<TokenLogprobs>,
}

/// One step over the lines.
pub fn step(backend: &mut dyn Backend, lines: &mut [Line], shares: &[Share]) -> Vec<Got> {
    let mut plan = StepPlan::default();
    let busy = |share: &Share| 0 < share.fed_max;
    for (line, &share) in lines.iter().zip(shares).filter(|(_, share)| busy(share)) {
        line.push(&mut plan, share);
    }
    let mut choices = StepChoices::default();
    backend.submit(&plan).expect("the plan is within the shape");
    backend.collect(&mut choices).expect("a step was submitted");
    let (mut tokens, mut logprobs) = (choices.tokens.as_slice(), choices.logprobs.as_slice());
    let mut entries = plan.entries.iter().zip(&choices.counts);
    let mut got = vec![Got::default(); lines.len()];
    let pairs = lines.iter_mut().zip(&mut got).zip(shares);
    for ((line, got), _) in pairs.filter(|(_, share)| busy(share)) {
        let (entry, &count) = entries.next().expect("one count for each entry");
        let chosen = tokens.split_off(..count as usize).expect("as many as counted");
        let reported = if line.sampling.logprobs.is_some() { chosen.len() } else { 0 };
        let reported = logprobs.split_off(..reported).expect("one for each token");
        let kept = u32::try_from(chosen.len().saturating_sub(1)).expect("few drafts");
        line.computed += entry.fed + kept;
        line.tokens.extend_from_slice(chosen);
        *got = Got { tokens: chosen.to_vec(), logprobs: reported.to_vec() };
    }
    assert!(tokens.is_empty() && logprobs.is_empty(), "more than counted");
    got
}
